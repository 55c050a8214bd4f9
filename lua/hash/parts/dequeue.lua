-- Takes the waiter `id` out of the queue. The links change at once, and the deletion of its fields is pending.
-- Reads: call, key, id, sub, place (of a reader), next_writer and previous_writer (of a writer); and as `write`.
-- Sets: phase counts, waiting_writers, head, tail, head_record, queue_changed, to_set, to_delete.
--@write
queue_changed, head_record = true, nil
if place then
  local letter = sub(place, 1, 1)
  local end_place = letter .. (letter == phase and in_phase or later_readers)
  if place ~= end_place then -- the last one moves into the gap
    local moved = call('HGET', key, end_place)
    call('HSET', key, place, moved, 'Q' .. moved, place)
  end
  to_delete = {'U' .. id, 'Q' .. id, end_place}
  if letter == phase then in_phase = in_phase - 1 else later_readers = later_readers - 1 end
else
  if head ~= id and tail ~= id then
    call('HSET', key, 'N' .. previous_writer, next_writer, 'P' .. next_writer, previous_writer)
  else
    -- The link back of the first one may be old: `admit` writes it at the end only.
    if head == id then previous_writer = '-' else call('HSET', key, 'N' .. previous_writer, '-') end
    if tail == id then tail = previous_writer else call('HSET', key, 'P' .. next_writer, '-') end
    if head == id then head = next_writer end
  end
  to_delete = {'U' .. id, 'N' .. id, 'P' .. id}
  waiting_writers = waiting_writers - 1
end
