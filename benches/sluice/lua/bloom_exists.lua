-- A Bloom filter in a bitmap, as it is often written: the client hashes, the script looks at seven bits.
for i = 1, 7 do
    if redis.call('GETBIT', KEYS[1], ARGV[i]) == 0 then
        return 0
    end
end
return 1
