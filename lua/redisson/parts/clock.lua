-- Begins a script: names calls and the lock's key, and reads the time of the server.
-- Reads: nothing.
-- Sets: call, key, time, server_us, now_ms.
local call, key = redis.call, KEYS[1]
local time = call('TIME')
local server_us = time[1] * 1000000 + time[2]
local now_ms = math.floor(server_us / 1000)
