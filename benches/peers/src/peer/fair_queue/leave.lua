#!lua
-- Lets the next clients in: after a writer all waiting readers, after the last reader a writer.
-- KEYS: the lock, waiting readers, waiting writers. ARGV: mode, beginning of channels
local call, lock, readers, writers = redis.call, KEYS[1], KEYS[2], KEYS[3]
if ARGV[1] == 'r' then
  if call('HINCRBY', lock, 'readers', -1) > 0 then return 'left' end
  call('HDEL', lock, 'readers')
else
  call('HDEL', lock, 'writer')
  local waiting = call('LRANGE', readers, 0, -1)
  if #waiting > 0 then
    call('DEL', readers)
    call('HSET', lock, 'readers', #waiting)
    for _, client in ipairs(waiting) do call('SPUBLISH', ARGV[2] .. client, '1') end
    return 'left'
  end
end
local next = call('LPOP', writers)
if next then
  call('HSET', lock, 'writer', 1)
  call('SPUBLISH', ARGV[2] .. next, '1')
end
return 'left'
