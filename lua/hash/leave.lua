#!lua flags=allow-oom
-- Releases the hold of one acquisition, or removes the acquisition from the queue. The next waiter enters. A writer's hold
-- may rest instead: it stays taken until a given time, and no request finds it under its id any more.
-- KEYS: the lock
-- ARGV: id, limits of timestamp clients ('<read_limit_ms> <write_limit_ms>'), until_ms to which a writer's hold rests (may
--   be missing)
-- Returns 'held id <time>' or 'queued id <time>' if it was live until now
--   | 'none id <time> forced_token last_token first_token' | 'version id <time>'
local id, limits, until_ms = ARGV[1], ARGV[2], ARGV[3]
-- A key that is not used any more may live MAX_UNUSED_MS longer, if that saves a command.
local RETENTION_MS, MAX_UNUSED_MS, MAX_TOKENS = 60000, 120000, 2048

--@begin
local now_ms = seconds * 1000 + (micros - micros % 1000) / 1000
local fields = call('HMGET', key, 'h', 'u', 'write', 'read')
local holder, queue, write, read = fields[1], fields[2], fields[3], fields[4]

-- Fast paths: the caller holds the lock alone. The header is cut where its parts usually end. A part that is cut wrongly is
-- no stamp and no id.
local start = sub(holder or '', 1, 17)
local held_until, own_stamp -- the caller's deadline, and the field of its stamp
if until_ms then
  -- The hold may rest, which the slow path sees to.
elseif write then
  held_until = start == '3 w ' .. write and sub(holder, 38) == id and write + 0 > now_ms and write
  own_stamp = 'write'
elseif read and start .. '.0' == '3 s ' .. read then
  held_until = sub(holder, 33) == id and sub(start, 5) + 0 > now_ms and sub(start, 5)
  own_stamp = 'read'
end

if held_until and not queue then -- no client waits
  call('HDEL', key, 'h', own_stamp)
  if held_until - now_ms > MAX_UNUSED_MS then call('PEXPIREAT', key, format('%d', now_ms + RETENTION_MS)) end
  return 'held ' .. id .. ' ' .. seconds .. ' ' .. micros
end

-- Fast path: the caller is a reader of several, and no client waits, or a writer that another reader keeps out. The reader
-- in the last slot moves into the gap.
local count, stamp = match(read and not write and holder or '', '^3 r (%d+) (%d+%.0) 0 0$')
if stamp == read and count ~= '1' and stamp + 0 > now_ms then
  local new_count, alive_until_ms, head, fields = format('%d', count - 1), '0', nil, nil
  if queue then
    alive_until_ms, head = match(queue, '^3 (%d+) %a 0 %d+ %d+ (%S+) %S+$')
    fields = call('HMGET', key, 'R' .. id, 's' .. id, 'r' .. count, 'r' .. new_count, 'U' .. (head or ''))
  else
    fields = call('HMGET', key, 'R' .. id, 's' .. id, 'r' .. count)
  end
  local record, slot_of, moved, before, first = unpack(fields)
  local is_plain = record and #record == 27 and match(record, '^%d+') + 0 > now_ms -- a longer record has a note
  if is_plain and queue then
    is_plain = first and match(first, '^%d+') + 0 > now_ms
      and match(call('HGET', key, 'R' .. (slot_of == new_count and moved or before)), '^%d+') + 0 > now_ms
  end
  if is_plain then
    local header = '3 r ' .. new_count .. ' ' .. stamp .. ' 0 0'
    if slot_of == count then
      call('HSET', key, 'h', header)
    else
      call('HSET', key, 'h', header, 'r' .. slot_of, moved, 's' .. moved, slot_of)
    end
    call('HDEL', key, 'r' .. count, 's' .. id, 'R' .. id)
    call('PEXPIREAT', key, format('%d', max(stamp + 0, alive_until_ms + 0) + RETENTION_MS))
    return 'held ' .. id .. ' ' .. seconds .. ' ' .. micros
  end
end

local server_us = seconds * 1000000 + micros
if held_until and not (write and read) then -- the first waiting writer enters. Behind a writer, readers come before it
  local alive_until_ms, phase, later_readers, waiting_writers, head, tail =
    match(queue, '^3 (%d+) (%a) 0 (%d+) (%d+) (%S+) (%S+)$')
  if head and head ~= '-' and not (write and later_readers ~= '0') then
    local last, record, second = unpack(call('HMGET', key, 't', 'U' .. head, 'N' .. head))
    local until_ms, claim_ms, wanted_tokens = match(record, '^(%d+) (%d+) %d+ (%d+)$')
    local has_second = second ~= '-'
    if until_ms + 0 > now_ms and not (has_second and match(call('HGET', key, 'U' .. second), '^%d+') + 0 <= now_ms) then
      local deadline_ms, passed = now_ms + claim_ms, max(1, server_us - last)
      local token, ends = format('%d', last + passed), format('%d', deadline_ms)
      local tokens = format('%04d', max(1, math.min(wanted_tokens + 0, MAX_TOKENS, passed)))
      local waited_for = (has_second or later_readers ~= '0' and alive_until_ms + 0 > now_ms) and ' 1' or ' 0'
      local to_set = {'t', token, 'h', format('3 w %s %d %s %s', ends, now_ms, tokens, head), 'write', ends}
      local to_delete = {'U' .. head, 'N' .. head, 'P' .. head}
      if read then to_delete[4] = 'read' end
      if has_second then to_set[7], to_set[8] = 'P' .. second, '-' else tail = '-' end
      if has_second or later_readers ~= '0' then
        to_set[#to_set + 1], to_set[#to_set + 2] = 'u', '3 ' .. alive_until_ms .. ' ' .. phase .. ' 0 ' .. later_readers
          .. ' ' .. (waiting_writers - 1) .. ' ' .. second .. ' ' .. tail
      else
        to_delete[#to_delete + 1], alive_until_ms = 'u', 0
      end
      call('HSET', key, unpack(to_set))
      call('HDEL', key, unpack(to_delete))
      call('PEXPIREAT', key, format('%d', max(deadline_ms, alive_until_ms + 0) + RETENTION_MS))
      --@channel
      local published = redis.pcall('SPUBLISH', channel .. ':wake:' .. sub(head, 1, 32), head .. ' ' .. token .. ' '
        .. (tokens + 0) .. ' ' .. ends .. ' ' .. format('%d', server_us) .. waited_for)
      return 'held ' .. id .. ' ' .. seconds .. ' ' .. micros .. (type(published) == 'table' and ' unpublished' or '')
    end
  end
end

-- Slow path.
local last, forced, first, deadline_ms, asked_mode, free_ms
--@state
--@dead

if writer == id or sole == id then
  last, forced, first, head_record, head_next = unpack(call('HMGET', key, 't', 'F', 'b', 'U' .. head, 'N' .. head))
elseif queue then
  last, forced, first, own_record, slot, end_reader, before_end, waiter_record, place, next_writer, previous_writer,
    head_record, head_next = unpack(call('HMGET', key, 't', 'F', 'b', 'R' .. id, 's' .. id, 'r' .. end_slot,
    'r' .. format('%d', slots - 1), 'U' .. id, 'Q' .. id, 'N' .. id, 'P' .. id, 'U' .. head, 'N' .. head))
else
  last, forced, first, own_record, slot, end_reader =
    unpack(call('HMGET', key, 't', 'F', 'b', 'R' .. id, 's' .. id, 'r' .. end_slot))
end
last = tonumber(last or 0)
local code, was_live = 'none', writer == id -- live and yet `none`: an intruder was beside the hold
if writer == id and until_ms and until_ms + 0 > now_ms and write == writer_stamp then
  -- The hold rests. No id begins with an `@`, so no late request finds the hold. No process could answer a recall.
  code, writer, writer_ms, holder_changed = 'held', '@' .. id, until_ms + 0, true
  to_set[1], to_set[2], to_delete[1] = 'write', until_ms, 'k'
  if sub(since_ms, 1, 1) == '0' then to_delete[2], since_ms = 'n' .. id, sub(since_ms, 2) end -- its note ends with the hold
elseif writer == id then
  if write == writer_stamp then
    code, write, to_delete[1] = 'held', nil, 'write'
  else -- another stamp, or none, is that of an intruder, who may delete it
    birth = last + 1
  end
  if sub(since_ms, 1, 1) == '0' then to_delete[#to_delete + 1] = 'n' .. id end
  writer, writer_gone, holder_changed = nil, true, true
elseif own_record or sole == id then
  if sole then own_ms, own_since = sole_ms, sole_since else own_ms, own_since = match(own_record, '^(%d+) (%d+)$') end
  was_live = own_ms + 0 > now_ms and kind ~= 'x'
  -- A `write` beside our readers is that of an intruder. `overrun_ms` tells of an earlier one.
  if was_live and write then birth = last + 1 end
  if was_live and not write and own_since + 0 >= overrun_ms then code = 'held' end
  --@remove
  -- Only without a foreign stamp: its client has given the key a ttl of its own, which may be shorter.
  ttl_stays = code == 'held' and slots == 0 and not queue and read == read_stamp and covered + overrun_ms == 0
    and stamp_ms - now_ms <= MAX_UNUSED_MS
elseif waiter_record then
  if match(waiter_record, '^%d+') + 0 > now_ms then code = 'queued' end
  --@dequeue
end
if queue then -- the next waiter enters
  --@admit
  --@readers
  --@writer
end
free_ms = max(foreign_write_until_ms, foreign_read_until_ms)
--@finish
if code ~= 'none' then return code .. ' ' .. id .. ' ' .. seconds .. ' ' .. micros .. unpublished end
if was_live then last, first = 0, 0 elseif birth then first = birth end
return format('none %s %s %s %s %d %d%s', id, seconds, micros, forced or 0, last, first or last, unpublished)
