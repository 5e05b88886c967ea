-- Stock as a hash with the fields total and ordered: KEYS[1] stock; ARGV[1] quantity.
-- Returns the sold quantity, or 0 if the stock is too small.
local counts = redis.call('hmget', KEYS[1], 'total', 'ordered')
local qty = tonumber(ARGV[1])
if tonumber(counts[2]) + qty <= tonumber(counts[1]) then
  redis.call('hincrby', KEYS[1], 'ordered', qty)
  return qty
end
return 0
