#!lua flags=allow-oom
-- Replies to the recall of a try: a guard uses the hold. Publishes that to the waiter, and changes nothing.
-- KEYS: the lock
-- ARGV: id
-- Returns 'told id <time>', even if no process has received it
local key = KEYS[1]
local id = ARGV[1]
local MAX_BYTES = 118 -- of a manager's name, a number and a label

-- The id comes out of a message, which any client may have sent. A text that is no id goes nowhere.
if id == '' or #id > MAX_BYTES or string.find(id, '[%s%c]') then return redis.error_reply('ERR this is no id') end
local time = redis.call('TIME')
--@channel
local published = redis.pcall('SPUBLISH', channel .. ':wake:' .. string.sub(id, 1, 32), 'used ' .. id)
return 'told ' .. id .. ' ' .. time[1] .. ' ' .. time[2] .. (type(published) == 'table' and ' unpublished' or '')
