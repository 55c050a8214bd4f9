-- Publishes message, if there is one, to the clients of Redisson and to ours, as a plain and as a sharded message: servers
-- and versions differ in what their clients subscribe to. '0' wakes one waiter of each client of Redisson, and '1' all.
-- It reads the local key, and sets the local unpublished to the last word of the reply, if the server refuses.
local unpublished = ''
if message then
  local channel = 'redisson_rwlock:' .. (string.find(key, '{', 1, true) and key or '{' .. key .. '}')
  local plain, sharded = redis.pcall('PUBLISH', channel, message), redis.pcall('SPUBLISH', channel, message)
  if type(plain) == 'table' or type(sharded) == 'table' then unpublished = ' unpublished' end
end
