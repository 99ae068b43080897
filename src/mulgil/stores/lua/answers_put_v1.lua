-- Keep a value. KEYS: the entry. ARGV: the value, milliseconds to live.
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
