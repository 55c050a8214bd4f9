-- Begins the next phase if the lock is free, and lets waiting readers join readers if no writer waits. After a writer all
-- waiting readers enter, in as many scripts as that takes. After readers the first waiting writer enters. A waiter that a
-- foreign stamp keeps out keeps out the waiters behind it.
-- Reads: call, key, id, now_ms, format, match, max, deadline_ms (of the caller), asked_mode (nil if the caller has no new
--   request), end_reader and head_record with head_next (nil if unread), what `state` sets; and as `write`.
-- Sets: phase counts, waiting_writers, head, tail, queue_changed; slots, end_slot, end_reader, sole, holder_changed,
--   live_reader_ms, live_reader, live_record, too_many_dead, records_left; new_readers, read_until_ms, new_writer and its two, admitted, to_notify,
--   next_reader; own_ms, own_enters, own_is_dead, waiter_record; to_set, to_delete.
local head_is_alive, old_head = false, head
if writer_gone and in_phase == 0 and later_readers > 0 then
  --@phase
end
while true do
  local is_shut = writer and (writer ~= id or write ~= writer_stamp) or foreign_write_until_ms > now_ms
  -- Dead waiting writers go. If there are too many, the next one counts as live, so that no client passes it.
  while head ~= '-' and in_phase == 0 and not is_shut do
    if not head_record then head_record, head_next = unpack(call('HMGET', key, 'U' .. head, 'N' .. head)) end
    head_is_alive = match(head_record, '^%d+') + 0 > now_ms
    if head_is_alive or records_left == 0 then break end
    --@unlink
    if head == id then waiter_record = nil end
    head, head_record, waiting_writers, records_left, queue_changed =
      head_next, nil, waiting_writers - 1, records_left - 1, true
  end
  if is_shut or writer or new_writer then break end
  if in_phase == 0 and later_readers > 0 and head == '-' then
    --@phase
  end
  -- Dead readers go from the last slot on, until one is live or there are too many to know.
  local must_look = in_phase > 0 or asked_mode == 'r' and head == '-'
    or foreign_read_until_ms <= now_ms and (asked_mode or head ~= '-')
  while must_look and slots > 0 and not (live_reader_ms or too_many_dead) do
    local ends_ms, record = sole_ms, nil
    if not sole then
      end_reader = end_reader or call('HGET', key, 'r' .. end_slot)
      record = call('HGET', key, 'R' .. end_reader)
      ends_ms = match(record, '^%d+') + 0
    end
    if ends_ms > now_ms and kind ~= 'x' then
      live_reader_ms, live_reader, live_record = ends_ms, end_reader, record
    elseif records_left == 0 then
      too_many_dead = true
    else
      if (sole or end_reader) == id then own_is_dead = false end
      if #to_set > 0 then
        --@write
      end
      if not sole then
        local n = #to_delete
        to_delete[n + 1], to_delete[n + 2], to_delete[n + 3] = 'r' .. end_slot, 's' .. end_reader, 'R' .. end_reader
      end
      if sub(record or sole_since, -14, -14) == '0' then to_delete[#to_delete + 1] = 'n' .. (sole or end_reader) end
      sole, end_reader, slots, records_left, holder_changed = nil, nil, slots - 1, records_left - 1, true
      end_slot = format('%d', slots)
    end
  end
  local count = math.min(in_phase, records_left)
  if count > 0 and not too_many_dead then -- the readers of the phase enter, from the end of the array
    local places, records, n = {}, {}, #to_delete
    admitted, to_notify, new_readers = admitted or {}, to_notify or {}, new_readers or {}
    for m = 1, count do places[m] = phase .. (in_phase - m + 1) end
    local ids = call('HMGET', key, unpack(places))
    for m, waiter_id in ipairs(ids) do records[m] = 'U' .. waiter_id end
    records = call('HMGET', key, unpack(records))
    for m, waiter_id in ipairs(ids) do
      to_delete[n + 1], to_delete[n + 2], to_delete[n + 3], n = places[m], 'Q' .. waiter_id, 'U' .. waiter_id, n + 3
      local until_ms, claim_ms = match(records[m], '^(%d+) (%d+)')
      if until_ms + 0 > now_ms then
        local ends_ms = now_ms + claim_ms
        if waiter_id == id then
          ends_ms = max(ends_ms, deadline_ms)
          own_ms, own_enters = ends_ms, true
        else
          admitted[#admitted + 1], admitted[#admitted + 2] = waiter_id, ends_ms
        end
        new_readers[#new_readers + 1], new_readers[#new_readers + 2] = waiter_id, ends_ms
        read_until_ms = max(read_until_ms or 0, ends_ms)
      elseif waiter_id == id then
        waiter_record = nil
      end
    end
    in_phase, records_left, queue_changed = in_phase - count, records_left - count, true
  elseif in_phase == 0 and head_is_alive and foreign_read_until_ms <= now_ms
    and not (live_reader_ms or too_many_dead or read_until_ms) then -- the first waiting writer enters
    local claim_ms, claim_tokens = match(head_record, '^%d+ (%d+) %d+ (%d+)$')
    new_writer, new_writer_ms, new_writer_tokens = head, now_ms + claim_ms, claim_tokens
    if head ~= id then admitted, to_notify = {head, new_writer_ms}, to_notify or {} end
    --@unlink
    head, head_record, head_is_alive, waiting_writers, queue_changed = head_next, nil, false, waiting_writers - 1, true
  else
    -- Too many readers for one script. The next reader sends its request again, and this request lets in more.
    if in_phase > 0 then next_reader = call('HGET', key, phase .. in_phase) end
    break
  end
end
if head ~= old_head then
  if head == '-' then tail = '-' else to_set[#to_set + 1], to_set[#to_set + 2] = 'P' .. head, '-' end
end
