-- GCRA, as in libraries: KEYS[1] the time at which the whole burst is available again;
-- ARGV[1] burst, ARGV[2] count, ARGV[3] period in milliseconds. Returns {limited, remaining, retry, reset}.
local interval = tonumber(ARGV[3]) * 1000 / tonumber(ARGV[2])
local room = interval * (tonumber(ARGV[1]) + 1)
local time = redis.call('time')
local now = time[1] * 1000000 + time[2]
local arrival = tonumber(redis.call('get', KEYS[1]) or now)
if arrival < now then
  arrival = now
end
local next_arrival = arrival + interval
local over = next_arrival - now - room
if over > 0 then
  return {1, 0, math.ceil(over / 1000), math.ceil((arrival - now) / 1000)}
end
local reset = math.ceil((next_arrival - now) / 1000)
redis.call('set', KEYS[1], string.format('%.0f', next_arrival), 'px', reset)
return {0, math.floor(-over / interval), -1, reset}
