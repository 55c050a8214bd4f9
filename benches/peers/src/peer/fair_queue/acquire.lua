#!lua
-- Lets a client in, or gives it a place in the queue of its mode. A waiting writer stops new readers.
-- KEYS: the lock, waiting readers, waiting writers. ARGV: mode, client
local call, lock, readers, writers = redis.call, KEYS[1], KEYS[2], KEYS[3]
local inside = call('HMGET', lock, 'readers', 'writer')
if ARGV[1] == 'r' then
  if inside[2] or call('LLEN', writers) > 0 then
    call('RPUSH', readers, ARGV[2])
    return 'queued'
  end
  call('HINCRBY', lock, 'readers', 1)
elseif inside[1] or inside[2] then
  call('RPUSH', writers, ARGV[2])
  return 'queued'
else
  call('HSET', lock, 'writer', 1)
end
return 'granted'
