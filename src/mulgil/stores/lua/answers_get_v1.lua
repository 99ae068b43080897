-- The first bytes of a value, nothing if there is none or it is no string. KEYS: the entry. ARGV: most bytes.
if redis.call('TYPE', KEYS[1])['ok'] ~= 'string' then
  return false
end
return redis.call('GETRANGE', KEYS[1], 0, ARGV[1])
