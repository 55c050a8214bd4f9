-- Publishes a message to the clients of Redisson and to ours, as a plain and as a sharded one: servers and versions differ in
-- what clients subscribe to. '0' wakes one waiter of each client of Redisson, and '1' wakes all.
-- Reads: key, message (nil: there is none)
-- Sets: unpublished, the last word of the reply, if the server refuses
local unpublished = ''
if message then
  local channel = 'redisson_rwlock:' .. (string.find(key, '{', 1, true) and key or '{' .. key .. '}')
  local plain, sharded = redis.pcall('PUBLISH', channel, message), redis.pcall('SPUBLISH', channel, message)
  if type(plain) == 'table' or type(sharded) == 'table' then unpublished = ' unpublished' end
end
