-- Stock as a counter in a string, as blog posts have it: KEYS[1] stock; ARGV[1] quantity.
-- Replies with what is left, -1 when there is not enough.
local stock = tonumber(redis.call('get', KEYS[1]) or '0')
if stock < tonumber(ARGV[1]) then
  return -1
end
return redis.call('decrby', KEYS[1], ARGV[1])
