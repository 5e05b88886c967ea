-- What Redisson's RLock.tryLock() does: KEYS[1] lock; ARGV[1] lease in ms, ARGV[2] owner.
-- Returns nil if the owner acquired or re-entered the lock, else the remaining lease of the holder in ms.
if redis.call('exists', KEYS[1]) == 0 or redis.call('hexists', KEYS[1], ARGV[2]) == 1 then
  redis.call('hincrby', KEYS[1], ARGV[2], 1)
  redis.call('pexpire', KEYS[1], ARGV[1])
  return nil
end
return redis.call('pttl', KEYS[1])
