-- Charge the rest of a lease, drop its hold, free its place; or give everything back.
-- ARGV  …, output tokens made since its beginning, '1' to give back
-- Gives the balances of key and tenant.

local made, refund = tonumber(ARGV[STEP]), ARGV[STEP + 1] == '1'
local lease = lease_of(LEASE)
if lease then
  charge_output(lease, made)
  free(lease)
  redis.call('ZREM', EXPIRIES, LEASE)
  if refund and lease.in_key_window == 1 then give_back(scopes[1].window, lease.second, lease.input) end
  if refund and lease.in_tenant_window == 1 then give_back(scopes[2].window, lease.second, lease.input) end
end
if refund then
  -- Its reservation may still be on its way.
  write(TOMBSTONE, '')
  expire_at(TOMBSTONE, now + TOMBSTONE_LIFE)
end
save()
return balances()
