-- Composes the beginning of all channels of the lock. They lie in the key's slot: a key without a hash tag gets one.
-- Reads: key.
-- Sets: channel.
local channel = string.find(key, '^[^{]*{[^}]+}') and key or '{' .. key .. '}'
