local read, write = redis.call('HGET', KEYS[1], 'read'), redis.call('HGET', KEYS[1], 'write')
if read and ARGV[1] - read < tonumber(ARGV[2]) then return 0 end
if write and ARGV[1] - write < tonumber(ARGV[3]) then return 0 end
redis.call('HSET', KEYS[1], 'write', ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[4])
return 1
