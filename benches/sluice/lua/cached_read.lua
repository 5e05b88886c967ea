-- A cached read as rockscache has it (https://github.com/dtm-labs/rockscache): KEYS[1] a hash; ARGV[1] now, ARGV[2] until
-- when the caller's lock lasts, both in seconds; ARGV[3] the caller. Replies with the value and what to do.
local value = redis.call('hget', KEYS[1], 'value')
local lock = redis.call('hget', KEYS[1], 'lockUntil')
if lock ~= false and tonumber(lock) < tonumber(ARGV[1]) or lock == false and value == false then
  redis.call('hset', KEYS[1], 'lockUntil', ARGV[2])
  redis.call('hset', KEYS[1], 'lockOwner', ARGV[3])
  return {value, 'LOCKED'}
end
return {value, lock}
