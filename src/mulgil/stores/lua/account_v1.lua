-- What every script of the budget store begins with; the step itself is appended to it.
-- It does the same as mulgil/admission/window.py and mulgil/stores/memory.py.
--
-- KEYS  state, expiries, window of the tenant, window of the key; all with the tenant's hash tag
-- ARGV  clock in ms ('' for the server's own), lease TTL in ms, TTL of keys in ms, the key's name in
--       the state, the lease ('' where the step is not about one), then the step's own
--
-- state     hash   clock        "last seen"                  the tenant's time; the server's at that moment
--                  tenant       "open held"                  requests under way, output tokens on hold
--                  k<key>       "open held"                  the same of one key; absent when all is 0
--                  l<lease>     "key held reported second input in_key_window in_tenant_window"
--                  d<lease>     ""                           given back: not to be reserved any more
-- expiries  zset   l<lease>, d<lease>, scored by the tenant's time in ms
-- window    hash   <second>     "requests input output"      charged in that second
--                  sum          "requests input output"
--                  span         "oldest newest newest newest"  first second that is counted; last one charged

local BUCKET_LIFE = 61
local TOMBSTONE_LIFE = 60000
local REQUESTS, INPUT, OUTPUT = 1, 2, 3

local STATE, EXPIRIES = KEYS[1], KEYS[2]
local CLOCK, LEASE_TTL, KEEP, KEY, LEASE = ARGV[1], tonumber(ARGV[2]), ARGV[3], 'k' .. ARGV[4], 'l' .. ARGV[5]
local TOMBSTONE = 'd' .. ARGV[5]
local STEP = 6

-- Lua's own conversion rounds to 14 digits; %d is exact up to 2^53, as its numbers are.
local function text(number)
  return string.format('%d', number)
end

local function triple_text(numbers)
  return string.format('%d %d %d', numbers[1], numbers[2], numbers[3])
end

local function triple(packed)
  if not packed then return { 0, 0, 0 } end
  local first, second, third = string.match(packed, '^(%d+) (%d+) (%d+)$')
  return { tonumber(first), tonumber(second), tonumber(third) }
end

-- Time ---------------------------------------------------------------------------------------------

local function server_time()
  if CLOCK ~= '' then return tonumber(CLOCK) end
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

-- It never goes back: see AccountClock in window.py.
local function account_time(saved, seen)
  if not saved then return seen, -1 end
  local last, last_seen = string.match(saved, '^(%d+) (%d+)$')
  last, last_seen = tonumber(last), tonumber(last_seen)
  if seen >= last then return seen, math.floor(last / 1000) end
  return last + math.max(0, seen - last_seen), math.floor(last / 1000)
end

local saved = redis.call('HMGET', STATE, 'clock', 'tenant', KEY, LEASE, TOMBSTONE)
local seen = server_time()
local now, last_second = account_time(saved[1], seen)
local second = math.floor(now / 1000)

-- What is written to the state, all at once at the end of the step: fields and values in turn.
local writings = {}

local function write(field, value)
  local at = #writings
  writings[at + 1], writings[at + 2] = field, value
end

-- Counts: requests under way and output tokens on hold ------------------------------------------------

local counts = {}

local function load_count(name, packed)
  local open, held = string.match(packed or '0 0', '^(%d+) (%d+)$')
  counts[name] = { open = tonumber(open), held = tonumber(held), changed = false }
  return counts[name]
end

local function count_of(name)
  return counts[name] or load_count(name, redis.call('HGET', STATE, name))
end

local function change(name, open, held)
  local count = count_of(name)
  count.open, count.held, count.changed = count.open + open, count.held + held, true
end

load_count('tenant', saved[2])
load_count(KEY, saved[3])

-- Leases, each called by its field in the state ------------------------------------------------------------

local read = { [LEASE] = saved[4], [TOMBSTONE] = saved[5] }

local function record(field)
  if read[field] == nil then read[field] = redis.call('HGET', STATE, field) end
  return read[field]
end

local function drop_record(field)
  read[field] = false
  redis.call('HDEL', STATE, field)
end

local function lease_of(field)
  local packed = record(field)
  if not packed then return nil end
  local key, held, reported, at, input, in_key_window, in_tenant_window =
    string.match(packed, '^(%S+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+)$')
  return {
    field = field, key = key, held = tonumber(held), reported = tonumber(reported), second = tonumber(at),
    input = tonumber(input), in_key_window = tonumber(in_key_window), in_tenant_window = tonumber(in_tenant_window),
  }
end

local function save_lease(lease)
  write(lease.field, string.format('%s %d %d %d %d %d %d', lease.key, lease.held, lease.reported,
    lease.second, lease.input, lease.in_key_window, lease.in_tenant_window))
end

-- The expiries are told to live on once a second, and when they may be new.
local expiries_live_on = last_second == second and counts.tenant.open > 0

local function expire_at(member, moment)
  redis.call('ZADD', EXPIRIES, text(moment), member)
  if not expiries_live_on then
    redis.call('PEXPIRE', EXPIRIES, KEEP)
    expiries_live_on = true
  end
end

-- Drops its hold and its place. Its record goes first, the counts follow in `save`.
local function free(lease)
  drop_record(lease.field)
  change('tenant', -1, -lease.held)
  change(lease.key, -1, -lease.held)
end

local function expire()
  local gone = redis.call('ZRANGEBYSCORE', EXPIRIES, '-inf', text(now))
  if #gone == 0 then return end
  for _, member in ipairs(gone) do
    local lease = string.sub(member, 1, 1) == 'l' and lease_of(member)
    if lease then free(lease) else drop_record(member) end
  end
  redis.call('ZREMRANGEBYSCORE', EXPIRIES, '-inf', text(now))
  expiries_live_on = false
end

expire()

-- Windows ------------------------------------------------------------------------------------------------

local function seconds_between(first, last)
  local fields = {}
  for at = first, last do fields[#fields + 1] = text(at) end
  return fields
end

local SECOND = text(second)

local function is_empty(window)
  return window.sum[1] == 0 and window.sum[2] == 0 and window.sum[3] == 0
end

-- The window as of now: what has left is dropped from it.
local function open_window(key)
  local stored = redis.call('HMGET', key, 'span', 'sum', SECOND)
  local oldest = second - BUCKET_LIFE + 1
  local window = {
    key = key, sum = triple(stored[2]), bucket = triple(stored[3]), changed = false, lives_on = stored[3] and true,
  }
  if not stored[1] then
    window.oldest, window.newest = second, { 0, 0, 0 }
    return window
  end
  local first, requests, input, output = string.match(stored[1], '^(%d+) (%d+) (%d+) (%d+)$')
  first = tonumber(first)
  window.oldest, window.newest = math.max(first, oldest), { tonumber(requests), tonumber(input), tonumber(output) }
  if first >= oldest then return window end

  window.changed = true
  if math.max(unpack(window.newest)) < oldest then
    redis.call('DEL', key)
    window.sum, window.oldest = { 0, 0, 0 }, second
    return window
  end
  local fields = seconds_between(first, oldest - 1)
  for _, packed in ipairs(redis.call('HMGET', key, unpack(fields))) do
    local gone = triple(packed)
    for dimension = REQUESTS, OUTPUT do window.sum[dimension] = window.sum[dimension] - gone[dimension] end
  end
  redis.call('HDEL', key, unpack(fields))
  return window
end

local function charge(window, dimension, amount)
  if amount == 0 then return end
  window.sum[dimension] = window.sum[dimension] + amount
  window.bucket[dimension] = window.bucket[dimension] + amount
  window.newest[dimension] = second
  window.changed = true
end

-- The dimension's newest second in use, looked for backwards.
local function find_newest(window, dimension)
  for at = window.newest[dimension], window.oldest, -1 do
    local bucket = at == second and window.bucket or triple(redis.call('HGET', window.key, text(at)))
    if bucket[dimension] > 0 then return at end
  end
  return 0
end

local function give_back(window, at, input)
  if at < window.oldest then return end
  local bucket = at == second and window.bucket or triple(redis.call('HGET', window.key, text(at)))
  for dimension, amount in ipairs({ 1, input }) do
    local taken = math.min(amount, bucket[dimension])
    bucket[dimension] = bucket[dimension] - taken
    window.sum[dimension] = window.sum[dimension] - taken
  end
  window.changed = true
  if at ~= second then redis.call('HSET', window.key, text(at), triple_text(bucket)) end
  window.newest[REQUESTS], window.newest[INPUT] = find_newest(window, REQUESTS), find_newest(window, INPUT)
end

local function save_window(window)
  if not window.changed then return end
  if is_empty(window) then
    redis.call('DEL', window.key)
    return
  end
  local newest = window.newest
  redis.call('HSET', window.key,
    'span', string.format('%d %d %d %d', window.oldest, newest[1], newest[2], newest[3]),
    'sum', triple_text(window.sum),
    SECOND, triple_text(window.bucket))
  -- Once a second: with the first that is written in it.
  if not window.lives_on then redis.call('PEXPIRE', window.key, KEEP) end
end

-- When so many buckets have left that `amount` is free, in ms from now; -1 when they do not hold as much.
local function wait_for(window, dimension, amount)
  if window.sum[dimension] < amount then return -1 end
  local buckets = redis.call('HMGET', window.key, unpack(seconds_between(window.oldest, second)))
  for index, packed in ipairs(buckets) do
    amount = amount - triple(packed)[dimension]
    if amount <= 0 then return (window.oldest + index - 1 + BUCKET_LIFE) * 1000 - now end
  end
  return -1
end

local scopes = {
  { window = open_window(KEYS[4]), name = KEY },
  { window = open_window(KEYS[3]), name = 'tenant' },
}

-- The end of every step ---------------------------------------------------------------------------------

local function save()
  local open = false
  for name, count in pairs(counts) do
    if count.changed and count.open == 0 and count.held == 0 then
      redis.call('HDEL', STATE, name)
    elseif count.changed then
      write(name, string.format('%d %d', count.open, count.held))
    end
  end
  for _, scope in ipairs(scopes) do
    save_window(scope.window)
    open = open or not is_empty(scope.window)
  end
  -- Of a tenant that has nothing, nothing is kept.
  if open or saved[1] or #writings > 0 then
    write('clock', string.format('%d %d', now, seen))
    redis.call('HSET', STATE, unpack(writings))
    if last_second ~= second then redis.call('PEXPIRE', STATE, KEEP) end
  end
end

-- Milliseconds until a dimension of a scope is as if it had never been used.
local function reset_of(scope, dimension)
  if dimension == OUTPUT and count_of(scope.name).held > 0 then return (second + BUCKET_LIFE) * 1000 - now end
  if scope.window.sum[dimension] == 0 then return 0 end
  return (scope.window.newest[dimension] + BUCKET_LIFE) * 1000 - now
end

local function balance(scope)
  local sum, count = scope.window.sum, count_of(scope.name)
  return string.format('%d %d %d %d %d %d %d %d', sum[REQUESTS], sum[INPUT], sum[OUTPUT], count.held, count.open,
    reset_of(scope, REQUESTS), reset_of(scope, INPUT), reset_of(scope, OUTPUT))
end

-- As one text: the conversion of nested tables costs more than all the arithmetic of a step.
local function balances()
  return balance(scopes[1]) .. ' ' .. balance(scopes[2])
end

-- Moves what was made since the last report from hold to window.
local function charge_output(lease, made)
  local new = math.max(0, made - lease.reported)
  local freed = math.min(new, lease.held)
  lease.reported, lease.held = lease.reported + new, lease.held - freed
  for _, scope in ipairs(scopes) do
    charge(scope.window, OUTPUT, new)
    if freed > 0 then change(scope.name, 0, -freed) end
  end
end
