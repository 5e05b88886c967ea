-- What Redisson's RLock.unlock() does: KEYS[1] lock, KEYS[2] channel; ARGV[1] message, ARGV[2] lease in ms, ARGV[3] owner.
-- Returns nil if the owner has no hold, 0 if it still has one, 1 if the lock is free and waiting clients were notified.
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
