-- KEYS: sorted set, stream. ARGV: now.
local due = redis.call('ZRANGE', KEYS[1], '-inf', ARGV[1], 'BYSCORE', 'LIMIT', 0, 100)
for _, id in ipairs(due) do
  redis.call('ZREM', KEYS[1], id)
  redis.call('XADD', KEYS[2], 'MAXLEN', '~', 1000, '*', 'id', id)
end
return #due
