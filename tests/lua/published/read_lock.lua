local key_ttl_ms, read_limit_ms, write_limit_ms, now_ms = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local write = redis.call('HGET', KEYS[1], 'write')
if write and not (now_ms - write > write_limit_ms) then return 0 end
redis.call('HSET', KEYS[1], 'read', now_ms)
redis.call('PEXPIRE', KEYS[1], key_ttl_ms)
return 1
