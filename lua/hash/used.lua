#!lua flags=allow-oom
-- Answers the call of a try: somebody is inside. Its waiter is told so by its channel, and nothing is changed.
-- KEYS: the lock
-- ARGV: id
-- Returns 'told id <time>', whoever has heard it
local key, id = KEYS[1], ARGV[1]
local MOST_BYTES = 118 -- of a manager's name, a number and a label

-- It comes out of a message, which anybody may have sent: what no id is goes nowhere.
if id == '' or #id > MOST_BYTES or string.find(id, '[%s%c]') then return redis.error_reply('ERR this is no id') end
local time = redis.call('TIME')
local tagged = string.find(key, '^[^{]*{[^}]+}')
redis.pcall('SPUBLISH', (tagged and key or '{' .. key .. '}') .. ':wake:' .. string.sub(id, 1, 32), 'used ' .. id)
return 'told ' .. id .. ' ' .. time[1] .. ' ' .. time[2]
