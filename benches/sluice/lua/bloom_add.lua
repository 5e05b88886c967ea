-- A Bloom filter in a bitmap, as it is often written: the client hashes, the script sets seven bits.
local added = 0
for i = 1, 7 do
    if redis.call('SETBIT', KEYS[1], ARGV[i], 1) == 0 then
        added = 1
    end
end
return added
