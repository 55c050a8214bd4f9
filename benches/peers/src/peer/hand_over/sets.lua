#!lua
-- Fields of a lock that a writer holds while one client waits.
redis.call('HSET', KEYS[1], 't', '1763875200000000', 'h', '2 w 1763875230000 1763875200000 01 0123456789abcdef0123456789abcdef.123.localhost:12345',
  'write', '1763875230000', 'u', '2 1763875230000 x 0 0 1 0123456789abcdef0123456789abcdef.124.localhost:12345 0123456789abcdef0123456789abcdef.124.localhost:12345',
  'U-next', '1763875230000 10000 1763875200000 01', 'N-next', '-', 'P-next', '-')
