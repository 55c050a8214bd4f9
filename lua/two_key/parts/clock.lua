-- Reads the time of the server.
-- Reads: call.
-- Sets: time, server_us, now_ms.
local time = call('TIME')
local server_us = time[1] * 1000000 + time[2]
local now_ms = math.floor(server_us / 1000)
