-- The record of the key with this digest, or false. KEYS: records, digests. ARGV: the digest.
local id = redis.call('HGET', KEYS[2], ARGV[1])
return id and redis.call('HGET', KEYS[1], id)
