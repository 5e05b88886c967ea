-- What Redisson's RLock.unlock() does: KEYS[1] lock, KEYS[2] channel; ARGV[1] message, ARGV[2] lease in ms, ARGV[3] owner.
-- Replies nil when the owner holds nothing, 0 when it still holds, 1 when the lock is free and waiters have been told.
if redis.call('hexists', KEYS[1], ARGV[3]) == 0 then
  return nil
end
if redis.call('hincrby', KEYS[1], ARGV[3], -1) > 0 then
  redis.call('pexpire', KEYS[1], ARGV[2])
  return 0
end
redis.call('del', KEYS[1])
redis.call('publish', KEYS[2], ARGV[1])
return 1
