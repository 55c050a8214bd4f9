-- Begins a script that needs the server's time in microseconds on all its paths.
-- Reads: nothing.
-- Sets: server_us, now_ms, and what `begin` sets.
--@begin
local server_us = seconds * 1000000 + micros
local now_ms = (server_us - server_us % 1000) / 1000
