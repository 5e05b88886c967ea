-- Stock with orders, a limit for each user and an event: KEYS[1] stock (a string), KEYS[2] orders (a hash), KEYS[3]
-- users (a hash), KEYS[4] event stream; ARGV[1] quantity, ARGV[2] order, ARGV[3] user, ARGV[4] limit.
-- Returns the remaining quantity (for a known order: the one after that order), -1 if sold out, -2 if over the user's limit.
local known = redis.call('hget', KEYS[2], ARGV[2])
if known then
  return tonumber(known)
end
local qty = tonumber(ARGV[1])
if tonumber(redis.call('get', KEYS[1]) or '0') < qty then
  return -1
end
if tonumber(redis.call('hget', KEYS[3], ARGV[3]) or '0') + qty > tonumber(ARGV[4]) then
  return -2
end
local left = redis.call('decrby', KEYS[1], qty)
redis.call('hset', KEYS[2], ARGV[2], left)
redis.call('hincrby', KEYS[3], ARGV[3], qty)
redis.call('xadd', KEYS[4], 'maxlen', '~', 100000, '*', 'op', 'deduct', 'order', ARGV[2], 'user', ARGV[3], 'qty', qty, 'available', left)
return left
