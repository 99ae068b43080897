-- One record or false, or all of them in a list. KEYS: records. ARGV: an id, or nothing for all.
if ARGV[1] == '' then
  return redis.call('HVALS', KEYS[1])
end
return redis.call('HGET', KEYS[1], ARGV[1])
