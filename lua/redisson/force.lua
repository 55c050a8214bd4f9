#!lua flags=allow-oom
-- Ends the holds of the lock, if one of those that an `inspect` has shown is still there, or if dead readers alone keep the lock.
-- Else other holders have it, and it stays as it is.
-- KEYS: the lock, the tokens
-- ARGV: the beginning of the names of timeouts, the ids that the `inspect` has shown, with blanks between them
-- Returns {'forced - <time> 0', id, …}, the ids of the holds that this has ended
local call, key = redis.call, KEYS[1]

local time = call('TIME')
local mode, found = call('HGET', key, 'mode'), false
for id in string.gmatch(ARGV[2], '%S+') do
  for _, field in ipairs({id .. ':1', id .. ':1:write', id, id .. ':write'}) do
    found = found or mode and field ~= 'mode' and call('HEXISTS', key, field) == 1
  end
  if found then break end
end
local fields = mode and call('HGETALL', key) or {}
local lives = mode ~= 'read'
for n = 1, #fields, 2 do
  for i = not (found or lives) and tonumber(fields[n + 1]) or 0, 1, -1 do
    lives = lives or call('PTTL', ARGV[1] .. fields[n] .. ':rwlock_timeout:' .. string.format('%d', i)) > 0
  end
end
local reply, message = {''}, nil
if found or not lives then
  local forced = 0 - (call('ZMSCORE', KEYS[2], '#token')[1] or 0)
  for n = 1, #fields, 2 do
    local field, count = fields[n], tonumber(fields[n + 1])
    if count then
      local name = string.match(field, '^(.*):write$')
      for i = name and 0 or count, 1, -1 do call('DEL', ARGV[1] .. field .. ':rwlock_timeout:' .. string.format('%d', i)) end
      reply[#reply + 1] = string.match(name or field, '^(%x+%..+):1$') or name or field
    end
  end
  call('DEL', key)
  message = mode == 'read' and '0' or '1'
  if forced > 0 then
    call('ZREMRANGEBYSCORE', KEYS[2], 0, '+inf')
    call('ZADD', KEYS[2], string.format('%.0f', -forced), '#forced')
  end
end
--@publish
reply[1] = 'forced - ' .. time[1] .. ' ' .. time[2] .. ' 0' .. unpublished
return reply
