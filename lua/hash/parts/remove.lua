-- Removes the record of the reader `id`, which is in `slot`. The reader in the last slot moves into the gap.
-- Reads: id, own_since, slot, end_reader, before_end (the reader in the slot before the last one, if it is known), format, sub.
-- Sets: sole, slots, end_slot, end_reader, picked, holder_changed, to_set, to_delete.
if sub(own_since, 1, 1) == '0' then to_delete[#to_delete + 1] = 'n' .. id end
if sole then
  sole = nil
else
  local n = #to_delete
  to_delete[n + 1], to_delete[n + 2], to_delete[n + 3] = 'r' .. end_slot, 's' .. id, 'R' .. id
  if slot ~= end_slot then
    n = #to_set
    to_set[n + 1], to_set[n + 2], to_set[n + 3], to_set[n + 4] = 'r' .. slot, end_reader, 's' .. end_reader, slot
  end
  end_slot = format('%d', slots - 1)
  if slot ~= end_slot then end_reader = before_end end
end
slots, picked, holder_changed = slots - 1, nil, true
