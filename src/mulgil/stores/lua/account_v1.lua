-- What every script of the budget store begins with; the step itself is appended to it.
-- It does the same as mulgil/admission/window.py and mulgil/stores/memory.py.
--
-- KEYS  state, expiries, window of the tenant, window of the key; all with the tenant's hash tag
-- ARGV  clock in ms ('' for the server's own), lease TTL in ms, TTL of keys in ms, the key's name in
--       the state, then the step's own
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
local CLOCK, LEASE_TTL, KEEP, KEY = ARGV[1], tonumber(ARGV[2]), ARGV[3], 'k' .. ARGV[4]
local STEP = 5

-- Lua's own conversion rounds to 14 digits.
local function text(number)
  return string.format('%.0f', number)
end

local function pack(numbers)
  local texts = {}
  for index, number in ipairs(numbers) do texts[index] = text(number) end
  return table.concat(texts, ' ')
end

local function unpack_numbers(packed)
  local numbers = {}
  for digits in string.gmatch(packed or '', '%d+') do numbers[#numbers + 1] = tonumber(digits) end
  return numbers
end

local function triple(packed)
  return packed and unpack_numbers(packed) or { 0, 0, 0 }
end

-- Time ---------------------------------------------------------------------------------------------

local function server_time()
  if CLOCK ~= '' then return tonumber(CLOCK) end
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

-- It never goes back: see AccountClock in window.py.
local function account_time(saved, seen)
  if not saved then return seen end
  local clock = unpack_numbers(saved)
  if seen >= clock[1] then return seen end
  return clock[1] + math.max(0, seen - clock[2])
end

local saved = redis.call('HMGET', STATE, 'clock', 'tenant', KEY)
local seen = server_time()
local now = account_time(saved[1], seen)
local second = math.floor(now / 1000)

-- Counts: requests under way and output tokens on hold ------------------------------------------------

local counts = {}

local function load_count(name, packed)
  local numbers = unpack_numbers(packed)
  counts[name] = { open = numbers[1] or 0, held = numbers[2] or 0, changed = false }
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

-- Leases -------------------------------------------------------------------------------------------------

local function lease_of(id)
  local packed = redis.call('HGET', STATE, 'l' .. id)
  if not packed then return nil end
  local key, rest = string.match(packed, '^(%S+) (.*)$')
  local numbers = unpack_numbers(rest)
  return {
    id = id, key = key, held = numbers[1], reported = numbers[2], second = numbers[3], input = numbers[4],
    in_key_window = numbers[5], in_tenant_window = numbers[6],
  }
end

local function save_lease(lease)
  redis.call('HSET', STATE, 'l' .. lease.id, lease.key .. ' ' .. pack({
    lease.held, lease.reported, lease.second, lease.input, lease.in_key_window, lease.in_tenant_window,
  }))
end

local function expire_at(member, moment)
  redis.call('ZADD', EXPIRIES, text(moment), member)
  redis.call('PEXPIRE', EXPIRIES, KEEP)
end

-- Drops its hold and its place. Its record goes first, the counts follow in `save`.
local function free(lease)
  redis.call('HDEL', STATE, 'l' .. lease.id)
  change('tenant', -1, -lease.held)
  change(lease.key, -1, -lease.held)
end

local function expire()
  local gone = redis.call('ZRANGEBYSCORE', EXPIRIES, '-inf', text(now))
  for _, member in ipairs(gone) do
    if string.sub(member, 1, 1) == 'l' then
      local lease = lease_of(string.sub(member, 2))
      if lease then free(lease) end
    else
      redis.call('HDEL', STATE, member)
    end
  end
  if #gone > 0 then redis.call('ZREMRANGEBYSCORE', EXPIRIES, '-inf', text(now)) end
end

expire()

-- Windows ------------------------------------------------------------------------------------------------

local function seconds_between(first, last)
  local fields = {}
  for at = first, last do fields[#fields + 1] = text(at) end
  return fields
end

local function is_empty(window)
  return window.sum[1] == 0 and window.sum[2] == 0 and window.sum[3] == 0
end

-- The window as of now: what has left is dropped from it.
local function open_window(key)
  local stored = redis.call('HMGET', key, 'span', 'sum', text(second))
  local oldest = second - BUCKET_LIFE + 1
  local window = { key = key, sum = triple(stored[2]), bucket = triple(stored[3]), changed = false }
  local span = unpack_numbers(stored[1])
  window.oldest, window.newest = math.max(span[1] or second, oldest), { span[2] or 0, span[3] or 0, span[4] or 0 }
  if not stored[1] or span[1] >= oldest then return window end

  window.changed = true
  if math.max(span[2], span[3], span[4]) < oldest then
    redis.call('DEL', key)
    window.sum, window.oldest = { 0, 0, 0 }, second
    return window
  end
  local fields = seconds_between(span[1], oldest - 1)
  for _, packed in ipairs(redis.call('HMGET', key, unpack(fields))) do
    for dimension, amount in ipairs(unpack_numbers(packed)) do
      window.sum[dimension] = window.sum[dimension] - amount
    end
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
  if at ~= second then redis.call('HSET', window.key, text(at), pack(bucket)) end
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
    'span', pack({ window.oldest, newest[1], newest[2], newest[3] }),
    'sum', pack(window.sum),
    text(second), pack(window.bucket))
  redis.call('PEXPIRE', window.key, KEEP)
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
      redis.call('HSET', STATE, name, pack({ count.open, count.held }))
    end
  end
  for _, scope in ipairs(scopes) do
    save_window(scope.window)
    open = open or not is_empty(scope.window)
  end
  -- Of a tenant that has nothing, nothing is kept.
  if open or saved[1] or redis.call('EXISTS', STATE) == 1 then
    redis.call('HSET', STATE, 'clock', pack({ now, seen }))
    redis.call('PEXPIRE', STATE, KEEP)
  end
end

local function balance(scope)
  local sum, count, found = scope.window.sum, count_of(scope.name), {}
  for dimension = REQUESTS, OUTPUT do
    found[dimension] = sum[dimension]
    local empty = now
    if sum[dimension] > 0 then empty = (scope.window.newest[dimension] + BUCKET_LIFE) * 1000 end
    if dimension == OUTPUT and count.held > 0 then empty = (second + BUCKET_LIFE) * 1000 end
    found[5 + dimension] = empty - now
  end
  found[4], found[5] = count.held, count.open
  return found
end

local function balances()
  return { balance(scopes[1]), balance(scopes[2]) }
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
