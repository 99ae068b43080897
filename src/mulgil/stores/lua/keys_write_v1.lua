-- Replaces the record of an id if it still is what the writer thinks it is: 1 when done, 0 when not.
-- KEYS: records, digests. ARGV: id, the record as it was ('' for none), as it will be ('' for none), how many
-- digests it had, these, and those it will have.
local id, was, becomes, had = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
if (redis.call('HGET', KEYS[1], id) or '') ~= was then
  return 0
end
for i = 5, 4 + had do
  redis.call('HDEL', KEYS[2], ARGV[i])
end
if becomes == '' then
  redis.call('HDEL', KEYS[1], id)
else
  redis.call('HSET', KEYS[1], id, becomes)
end
for i = 5 + had, #ARGV do
  redis.call('HSET', KEYS[2], ARGV[i], id)
end
return 1
