-- Deletes the fields of the first waiting writer. The caller changes the head.
-- Reads: head.
-- Sets: n (a local of the block), to_delete.
local n = #to_delete
to_delete[n + 1], to_delete[n + 2], to_delete[n + 3] = 'U' .. head, 'N' .. head, 'P' .. head
