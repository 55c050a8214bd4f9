//! Changes of the scripts that the oracle has to notice. Each one replaces one text by another one.

/// Text of a script, and the text in its place.
pub(super) type Change = (&'static str, &'static str);

/// Faults with the stamps of other clients.
pub(super) const STAMPS: [Change; 21] = [
    // At its limit a stamp does not count.
    ("foreign_write + write_limit_ms + 1", "foreign_write + write_limit_ms"),
    ("max(foreign_read or 0, covered) + read_limit_ms + 1", "max(foreign_read or 0, covered) + read_limit_ms"),
    // The stamp behind our stamp is forgotten, or shortened.
    ("covered = max(foreign_read, covered)", "covered = 0"),
    ("max(stamp_ms, read_until_ms, covered)", "max(stamp_ms, read_until_ms)"),
    (
        "    if covered > 0 then\n      to_set[#to_set + 1], to_set[#to_set + 2] = 'read', format('%d', covered)\n    elseif",
        "    if",
    ),
    // Our stamps count as stamps of other clients, or theirs as ours.
    ("  if read and read ~= read_stamp then f", "  if read and tonumber(read) ~= tonumber(read_stamp or '0') then f"),
    ("if read and read ~= read_stamp then f", "if read and read ~= read_stamp and read ~= writer_stamp then f"),
    // An overrun holder does not learn of the overrun.
    ("now_ms and not write and own_since + 0 >= overrun_ms", "now_ms and own_since + 0 >= overrun_ms"),
    ("elseif mode == 'r' and (write or own_since + 0 < overrun_ms) then", "elseif false then"),
    ("birth, overrun_ms, last = last + 1, now_ms, max(server_us, last + 1)", ""),
    // An overrun while another client holds the lock is forgotten with the first answer. The answer is to a new
    // client, a repeat, a release or a renewal.
    ("birth, overrun_ms, last = last + 1, now_ms,", "overrun_ms, last = now_ms,"),
    (
        "birth, writer, writer_gone, holder_changed = last + 1, nil, true, true",
        "writer, writer_gone, holder_changed = nil, true, true",
    ),
    ("    birth = last + 1\n    last = max(server_us, birth)\n", ""),
    ("who may delete it\n    birth = last + 1", "who may delete it"),
    ("if was_live and write then birth = last + 1 end", ""),
    ("is_overwritten = write ~= writer_stamp", "is_overwritten = false"),
    ("is_overwritten = write and true or false", "is_overwritten = false"),
    // More than one token is granted although the earlier tokens are unknown.
    ("if known == 0 then", "if known == 0 then birth = last end\n  if false then"),
    // The header of one reader does not show the stamps of other readers.
    ("stamp_ms > sole_ms or covered + overrun_ms > 0", "stamp_ms > sole_ms"),
    ("if write then\n  held_until = start", "if write and not read then\n  held_until = start"),
    // A number that is no time counts as a time.
    ("number <= 9007199254740000 and math.floor(number) or 0", "math.floor(number) or 0"),
];

/// Faults with notes, and with the holders that a refusal names.
/// `tests/lua` finds a note that stays behind a released writer, and a number that passes with a note.
pub(super) const NOTES_AND_REFUSALS: [Change; 11] = [
    // A note does not go with the conversion, or its text or its number does not.
    ("if has_note then", "if false then"),
    ("note = #to_set, call('HGET', key, 'n' .. old)", "note = #to_set, '0 x'"),
    (
        "note = #to_set, call('HGET', key, 'n' .. old)",
        "note = #to_set, '0' .. match(call('HGET', key, 'n' .. old), ' .*$')",
    ),
    // A copy of an earlier note replaces a later one.
    ("if not note or match(note, '^%d+') + 0 < number + 0 then", "if true then"),
    ("match(note, '^%d+') + 0 < number + 0", "match(note, '^%d+') + 0 <= number + 0"),
    // A hold that is over gets a note.
    ("if write == writer_stamp and writer_ms > now_ms then\n    field", "if write == writer_stamp then\n    field"),
    (
        "  if own_ms + 0 > now_ms and kind ~= 'x' and not write and own_since",
        "  if kind ~= 'x' and not write and own_since",
    ),
    // The sign of a note is lost.
    ("'3 w %d %s %04d %s'", "'3 w %d %d %04d %s'"),
    ("format('%d %s', sole_ms, sole_since), n + 6", "format('%d %d', sole_ms, sole_since), n + 6"),
    // A refusal names a wrong number of holders, or no holder.
    ("live_reader .. ' ', end_slot", "live_reader .. ' ', '1'"),
    ("elseif live_reader then", "elseif false then"),
];

/// Faults with the recallable flag.
pub(super) const MARKS: [Change; 28] = [
    // The recallable flag is not set: by a grant, a reader that joins, a conversion, a renewal.
    ("if may_cache then call('HSET', key, 'k', token) end", ""),
    ("      if may_cache then call('HSET', key, 'k', last) end\n", ""),
    ("if is_granted and may_cache and not (is_recallable", "if false and not (is_recallable"),
    ("if is_granted and may_cache and (waited_for", "if false and (waited_for"),
    ("if token .. recalled_ms ~= flag then", "if false then"),
    // The flag does not follow new tokens, or counts for a later phase.
    ("local token = new_tokens > 0 and to_set[4] or last", "local token = last"),
    ("is_recallable = flag_token and tonumber(flag_token) == last", "is_recallable = flag_token"),
    // The server forgets that it sent a recall.
    ("may_cache and not (is_recallable and waited_for == 1) then", "may_cache then"),
    ("is_try or passed_ms < 0 or passed_ms >= RECALL_INTERVAL_MS", "true"),
    ("flag_token, recalled_ms = match(flag, '^(%d+) ?(%d*)$')", "flag_token, recalled_ms = match(flag, '^(%d+)'), '0'"),
    // A waiter recalls although a waiting writer keeps it out. A try does not give its id, waits for the time of the
    // next recall, or moves it.
    ("is_recallable and (mode == 'w' or writer)\n", "is_recallable\n"),
    ("is_try and flag_token .. ' ' .. id or flag_token", "flag_token"),
    ("if is_try or passed_ms < 0", "if passed_ms < 0"),
    ("    elseif not is_try then\n", "    else\n"),
    // A try takes a place in the queue where it recalls no holder, or forgets a place that it has.
    ("if is_try and not (can_recall or is_alive) then", "if false then"),
    ("if is_try and not (can_recall or is_alive) then", "if is_try and not can_recall then"),
    // A waiter does not learn of the flag.
    ("  recalled = ' 1'\n", ""),
    ("  code = 'kept'", ""),
    // A renewal reports no waiters, or reports dead waiters. A grant reports no readers to a writer.
    ("is_waited_for and 1 or 0, first", "0, first"),
    ("is_waited_for = alive_until_ms > now_ms and", "is_waited_for = queue and"),
    ("(head ~= '-' or writer and in_phase + later_readers > 0 and alive_until_ms > now_ms)", "head ~= '-'"),
    // There are too many tokens, tokens come twice, or they are not the tokens of the repeat.
    ("tokens = math.min(wanted_tokens + 0, MAX_TOKENS, passed)", "tokens = math.min(wanted_tokens + 0, passed)"),
    (
        "    to_set[3], to_set[4] = 't', format('%d', last + passed)",
        "    to_set[3], to_set[4] = 'F', format('%d', last + passed)",
    ),
    ("    tokens = math.min(wanted_tokens + 0,", "    local tokens = math.min(wanted_tokens + 0,"),
    // A force sends no recall, spares a hold that was renewed, or ends a newer hold.
    ("if recallable then", "if false then"),
    ("if not (held and string.find(seen_ids, ' ' .. held .. ' ', 1, true)) then return reply end", "return reply"),
    ("if not (held and string.find(seen_ids, ' ' .. held .. ' ', 1, true)) then return reply end", ""),
    // An inspection shows no flag.
    ("== last and 1 or 0\nreturn", "== last and 0 or 0\nreturn"),
];

/// Faults with the rest of a hold that lasts at least until a time.
pub(super) const RESTS: [Change; 8] = [
    // A rest keeps its id, so that late requests find it, or its recallable flag, or the deadline of the lease.
    ("'held', '@' .. id, until_ms + 0, true", "'held', id, until_ms + 0, true"),
    ("'write', until_ms, 'k'", "'write', until_ms, 'none'"),
    ("'held', '@' .. id, until_ms + 0, true", "'held', '@' .. id, max(until_ms + 0, writer_ms), true"),
    // There is no rest, or a rest whose time is over.
    ("until_ms and until_ms + 0 > now_ms and write == writer_stamp", "false"),
    ("until_ms and until_ms + 0 > now_ms and", "until_ms and"),
    // A renewal ignores the time, or shortens the hold to it.
    ("if letter == 'u' then deadline_ms = max(deadline_ms, ARGV[4] + 0) end", ""),
    ("deadline_ms = max(deadline_ms, ARGV[4] + 0)", "deadline_ms = ARGV[4] + 0"),
    // The fast path of a sole holder knows no rest.
    ("if until_ms then\n", "if false then\n"),
];

/// Faults with a hold that passes to another client of its side.
pub(super) const PASSES: [Change; 5] = [
    // The hold of any writer passes.
    ("local writes = mode == 'w' and writer == old and", "local writes = mode == 'w' and writer and writer ~= id and"),
    // A writer's hold keeps its deadline and its token.
    ("if writes then is_granted, deadline_ms = false, now_ms + ARGV[5] end", ""),
    // The old reader stays.
    ("to_delete[m + 1], to_delete[m + 2] = 's' .. old, 'R' .. old", ""),
    // The new reader keeps the old deadline.
    ("sole, sole_ms, sole_since, holder_changed = id, deadline_ms,", "sole, sole_since, holder_changed = id,"),
    // The stamp of the readers does not follow.
    ("live_reader_ms, read_until_ms = deadline_ms, deadline_ms", "live_reader_ms, read_until_ms = deadline_ms, nil"),
];

/// Faults beside more records than one operation may touch.
pub(super) const LIMITS: [Change; 4] = [
    // A writer enters before all readers of the phase are inside.
    (
        "elseif in_phase == 0 and head_is_alive and",
        "elseif head ~= '-' and head_record and match(head_record, '^%d+') + 0 > now_ms and",
    ),
    // No waiter is asked to go on.
    ("if next_reader and next_reader ~= id then", "if false then"),
    // The server examines more records than allowed.
    ("elseif records_left == 0 then\n      too_many_dead", "elseif false then\n      too_many_dead"),
    // A reader that may cache its hold learns of readers that are not inside yet.
    ("alive_until_ms > now_ms and (writer or waiting_writers > 0)", "alive_until_ms > now_ms"),
];

/// Faults that show only when the server's clock is set.
pub(super) const CLOCK: [Change; 4] = [
    // The key is removed too early.
    ("RETENTION_MS, MAX_TOKENS = 60000, 2048", "RETENTION_MS, MAX_TOKENS = 50000, 2048"),
    // A lost hold comes back.
    ("    to_set[1], to_set[2] = 'R' .. id, '0 ' .. own_since", ""),
    // A token does not grow when the clock goes back.
    ("max(server_us, known + 1)", "server_us"),
    // No recall is sent until the clock is again where it was.
    ("is_try or passed_ms < 0 or passed_ms >=", "is_try or passed_ms >="),
];

/// All of them.
pub(super) const ALL: [&[Change]; 7] = [&STAMPS, &NOTES_AND_REFUSALS, &MARKS, &RESTS, &PASSES, &LIMITS, &CLOCK];
