-- Begins a script: local names of functions, its key, and the time of the server in the two words of the replies.
-- Reads: nothing.
-- Sets: call, key, format, match, sub, max, seconds, micros.
local call, key = redis.call, KEYS[1]
local format, match, sub, max = string.format, string.match, string.sub, math.max
local time = call('TIME')
local seconds, micros = time[1], time[2]
