-- Check every limit of both scopes; when all fit, charge and hold.
-- ARGV  …, input tokens, output tokens, the key's four limits, the tenant's four limits ('' for none)
-- Gives {balances, shortage, …}; false when the lease was given back before.

local input, output = tonumber(ARGV[STEP]), tonumber(ARGV[STEP + 1])
local asked = { 1, input, output, 1 }

local function shortages()
  local found = {}
  for index, scope in ipairs(scopes) do
    local sum, count = scope.window.sum, count_of(scope.name)
    local used = { sum[1], sum[2], sum[3] + count.held, count.open }
    for dimension = 1, 4 do
      local limit = tonumber(ARGV[STEP + 1 + (index - 1) * 4 + dimension])
      -- Not used + asked > limit: a sum above 2^53 is not exact.
      local missing = limit and asked[dimension] - (limit - used[dimension]) or 0
      if missing > 0 then
        local wait = dimension <= OUTPUT and wait_for(scope.window, dimension, missing) or -1
        found[#found + 1] = { index, dimension, used[dimension], wait }
      end
    end
  end
  return found
end

if record(TOMBSTONE) then
  save()
  return false
end

local known = record(LEASE)
local found = known and {} or shortages()
if #found == 0 and not known then
  save_lease({
    field = LEASE, key = KEY, held = output, reported = 0, second = second, input = input,
    in_key_window = 1, in_tenant_window = 1,
  })
  expire_at(LEASE, now + LEASE_TTL)
  for _, scope in ipairs(scopes) do
    charge(scope.window, REQUESTS, 1)
    charge(scope.window, INPUT, input)
    change(scope.name, 1, output)
  end
end
save()
return { balances(), unpack(found) }
