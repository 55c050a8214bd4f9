-- Begins a script that may grant: answers a request that is late, and reads the writer.
-- Reads: not_after_ms, id.
-- Sets: answer, which composes a reply; writer; and what `clock` sets.
--@clock
local function answer(code, words, ...) return string.format('%s %s %s %s' .. words, code, id, time[1], time[2], ...) end
if now_ms > not_after_ms then return answer('late', '') end

-- Both keys are read before any write, so a key of another type ends the script with nothing changed.
local writer = call('GET', write_key)
