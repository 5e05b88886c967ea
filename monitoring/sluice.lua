-- Exports all numbers of INFO sluice through redis_exporter:
--
--     redis_exporter --script=sluice.lua
--
-- The exporter evaluates this script with EVAL at each scrape. It wants an array of names and values, all strings, and exports
-- each pair as redis_script_values{key="<name>"}. The names are those of INFO: sluice_lock_waiting. Of a histogram, each number
-- has a name: sluice_times_lock_wait_usec_count, ..._sum, ..._le_64, ..., ..._le_+Inf. A loaded family is sluice_family_<name> with
-- the value 1.
local result = {}

local function add(name, value)
    result[#result + 1] = name
    result[#result + 1] = value
end

for name, value in string.gmatch(redis.call('INFO', 'sluice'), '(sluice_[%w_]+):([^\r\n]*)') do
    if string.find(value, '^%-?%d+$') then
        add(name, value)
    elseif string.find(value, '^count=') then
        for part, number in string.gmatch(value, '([%w_]+)=(%d+)') do
            add(name .. '_' .. part, number)
            if part == 'count' then
                add(name .. '_le_+Inf', number)
            end
        end
    elseif name == 'sluice_families' then
        for family in string.gmatch(value, '[%w_]+') do
            add('sluice_family_' .. family, '1')
        end
    end
end

return result
