-- Begins a script: names calls and both keys, and reads the time of the server.
-- Reads: nothing.
-- Sets: call, read_key, write_key, time, server_us, now_ms.
local call, read_key, write_key = redis.call, KEYS[1], KEYS[2]
local time = call('TIME')
local server_us = time[1] * 1000000 + time[2]
local now_ms = math.floor(server_us / 1000)
