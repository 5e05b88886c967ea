-- Stock as a counter in a string, as in many blog posts: KEYS[1] stock; ARGV[1] quantity.
-- Returns the remaining quantity, or -1 if the stock is too small.
local stock = tonumber(redis.call('get', KEYS[1]) or '0')
if stock < tonumber(ARGV[1]) then
  return -1
end
return redis.call('decrby', KEYS[1], ARGV[1])
