-- Empty the key's window, and with ARGV '1' the tenant's too. Open leases stay, but what they were
-- charged in an emptied window cannot be given back any more.

local tenant_too = ARGV[STEP] == '1'

local function empty(window)
  redis.call('DEL', window.key)
  window.oldest, window.newest = second, { 0, 0, 0 }
  window.sum, window.bucket = { 0, 0, 0 }, { 0, 0, 0 }
end

empty(scopes[1].window)
if tenant_too then empty(scopes[2].window) end
for _, member in ipairs(redis.call('ZRANGE', EXPIRIES, 0, -1)) do
  local lease = string.sub(member, 1, 1) == 'l' and lease_of(member)
  if lease then
    if lease.key == KEY then lease.in_key_window = 0 end
    if tenant_too then lease.in_tenant_window = 0 end
    save_lease(lease)
  end
end
save()
return 1
