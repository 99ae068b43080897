-- Prolong leases of one key and move what they made from hold to window.
-- ARGV  …, then lease and output tokens made since its beginning, for each
-- Gives 1 for each that is open, else 0.

local kept = {}
for index = STEP, #ARGV, 2 do
  local lease = lease_of('l' .. ARGV[index])
  if lease then
    charge_output(lease, tonumber(ARGV[index + 1]))
    save_lease(lease)
    expire_at(lease.field, now + LEASE_TTL)
  end
  kept[#kept + 1] = lease and 1 or 0
end
save()
return kept
