-- Writes what is pending. A part that removes records does so first: else a pending field of theirs would come after.
-- Reads: call, key.
-- Sets: to_set, to_delete, both empty after it.
if #to_delete > 0 then call('HDEL', key, unpack(to_delete)) end
if #to_set > 0 then call('HSET', key, unpack(to_set)) end
to_set, to_delete = {}, {}
