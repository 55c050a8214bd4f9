-- Begins a script: local names of functions, and the time of the server in the two words of the replies.
-- Reads: call.
-- Sets: format, match, sub, max, seconds, micros.
local format, match, sub, max = string.format, string.match, string.sub, math.max
local time = call('TIME')
local seconds, micros = time[1], time[2]
