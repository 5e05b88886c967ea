-- A limit per window, as in many blog posts: KEYS[1] counter; ARGV[1] limit, ARGV[2] window in milliseconds.
-- Returns 1 if the request is allowed, 0 if not.
local used = redis.call('incr', KEYS[1])
if used == 1 then
  redis.call('pexpire', KEYS[1], ARGV[2])
end
if used > tonumber(ARGV[1]) then
  return 0
end
return 1
