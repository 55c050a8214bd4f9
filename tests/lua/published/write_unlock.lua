if redis.call('HGET', KEYS[1], 'write') == ARGV[1] then redis.call('HDEL', KEYS[1], 'write') end
