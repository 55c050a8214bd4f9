#!lua flags=allow-oom
-- Extends the live hold of one acquisition. Never shortens it, and never brings back a lost one. No waiter enters.
-- KEYS: the lock
-- ARGV: id, lease_ms; for a hold that may be cached: 'k', and how many more tokens a writer wants at most (may be missing);
--   for a writer's hold that is to last until a given time at least: 'u', until_ms
-- Returns 'renewed id <time> remaining_ms' | with 'k' 'renewed id <time> remaining_ms waited_for first_token tokens' (0 or 1;
--   the new tokens, '0 0' for none) | 'lost id <time> forced_token' | 'version id <time>'
local id, lease_ms, letter, wanted_tokens = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local may_cache = letter == 'k'
local RETENTION_MS, MAX_TOKENS = 60000, 2048
-- No client gives the limits, so each stamp counts.
local limits = '9007199254740000 9007199254740000'

--@clock
local holder, queue, write, read, stored, last, flag
if may_cache then
  holder, queue, write, read, stored, last, flag = unpack(call('HMGET', key, 'h', 'u', 'write', 'read', 'R' .. id, 't', 'k'))
else
  holder, queue, write, read, stored = unpack(call('HMGET', key, 'h', 'u', 'write', 'read', 'R' .. id))
end
local deadline_ms, is_granted, free_ms, first, new_tokens = now_ms + lease_ms, false, nil, 0, 0
--@state

if sole == id then
  own_ms, own_since = sole_ms, sole_since
elseif stored then
  own_ms, own_since = match(stored, '^(%d+) (%d+)$')
end
if writer == id and write == writer_stamp and writer_ms > now_ms then
  is_granted, deadline_ms, holder_changed = true, max(deadline_ms, writer_ms), true
  if letter == 'u' then deadline_ms = max(deadline_ms, ARGV[4] + 0) end
  writer_ms = deadline_ms
  to_set[1], to_set[2] = 'write', format('%d', deadline_ms)
  if may_cache and (wanted_tokens or 0) + 0 > 0 then -- up to the clock, as those of a grant
    local passed = max(1, server_us - last)
    tokens = math.min(wanted_tokens + 0, MAX_TOKENS, passed)
    new_tokens, first = tokens, last + passed - tokens + 1
    to_set[3], to_set[4] = 't', format('%d', last + passed)
  end
elseif own_ms and kind ~= 'x' and own_ms + 0 > now_ms and not write and own_since + 0 >= overrun_ms then
  is_granted, live_reader_ms, deadline_ms = true, own_ms, max(deadline_ms, own_ms + 0)
  read_until_ms = deadline_ms
  if sole then sole_ms = deadline_ms else to_set[1], to_set[2] = 'R' .. id, format('%d %s', deadline_ms, own_since) end
  --@readers
elseif writer == id or own_ms then
  -- The hold is dead, or an intruder is or was beside it. It is dead from now on, and removed like any dead hold. No
  -- token up to now is known any more. Otherwise a release whose first reply was lost would take the end for its own effect.
  local was_live = writer and writer_ms > now_ms or not writer and kind ~= 'x' and own_ms + 0 > now_ms
  local is_overwritten = write and true or false
  if writer then is_overwritten = write ~= writer_stamp end
  if was_live and is_overwritten then birth = (call('HGET', key, 't') or 0) + 1 end
  holder_changed = true
  if writer then
    if write == writer_stamp then to_delete[1] = 'write' end
    writer_ms = 0
  else
    to_set[1], to_set[2] = 'R' .. id, '0 ' .. own_since
    if sole then to_set[3], to_set[4], to_set[5], to_set[6], sole = 'r1', id, 's' .. id, '1', nil end
  end
end
local is_waited_for = alive_until_ms > now_ms and (writer or waiting_writers > 0)
if is_granted and may_cache then -- if a waiter exists, an earlier flag stays, with the time of the last recall
  local flag_token, recalled_ms = match(flag or '', '^(%d+)(.*)$')
  local token = new_tokens > 0 and to_set[4] or last
  if not (is_waited_for and flag_token == last) then recalled_ms = '' end
  if token .. recalled_ms ~= flag then to_set[#to_set + 1], to_set[#to_set + 2] = 'k', token .. recalled_ms end
end
--@finish
if is_granted then
  local answer = 'renewed ' .. id .. ' ' .. seconds .. ' ' .. micros .. ' ' .. format('%d', deadline_ms - now_ms)
  return may_cache and answer .. format(' %d %d %d', is_waited_for and 1 or 0, first, new_tokens) or answer
end
return 'lost ' .. id .. ' ' .. seconds .. ' ' .. micros .. ' ' .. (call('HGET', key, 'F') or 0)
