#!lua
-- The commands of a release that lets the only waiter in, as lua/hash/leave.lua carries them out, without what it decides.
local call, key = redis.call, KEYS[1]
local time = call('TIME')
local seconds, micros = time[1], time[2]
local now_ms = seconds * 1000 + (micros - micros % 1000) / 1000
call('HMGET', key, 'h', 'u', 'write', 'read')
call('HMGET', key, 't', 'U-next')
local ends = string.format('%d', now_ms + 30000)
call('HSET', key, 't', seconds .. micros, 'h', '2 w ' .. ends .. ' 1763875200000 01 0123456789abcdef0123456789abcdef.123.localhost:12345',
  'write', ends)
call('HDEL', key, 'U-next', 'N-next', 'P-next', 'u')
call('PEXPIREAT', key, string.format('%d', now_ms + 90000))
call('SPUBLISH', key .. ARGV[1], '0123456789abcdef0123456789abcdef.124.localhost:12345 1763875200000000 1 ' .. ends .. ' ' .. seconds .. micros .. ' 0')
return 'held ' .. seconds .. ' ' .. micros
