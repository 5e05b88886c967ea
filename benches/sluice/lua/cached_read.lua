-- A cached read as in rockscache (https://github.com/dtm-labs/rockscache): KEYS[1] a hash; ARGV[1] now, ARGV[2] the end of
-- the caller's lock, both in seconds; ARGV[3] the caller. Returns the value, and LOCKED if the caller must load it.
local value = redis.call('hget', KEYS[1], 'value')
local lock = redis.call('hget', KEYS[1], 'lockUntil')
if lock ~= false and tonumber(lock) < tonumber(ARGV[1]) or lock == false and value == false then
  redis.call('hset', KEYS[1], 'lockUntil', ARGV[2])
  redis.call('hset', KEYS[1], 'lockOwner', ARGV[3])
  return {value, 'LOCKED'}
end
return {value, lock}
