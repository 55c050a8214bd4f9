#!lua flags=no-writes
-- Tells which commands the user may not run on the lock's keys, as the schemes run them. Changes nothing.
-- KEYS: the lock's, all of them
-- ARGV: commands, with a blank between them
-- Returns 'rights - 0 0', and behind it the commands that are refused
local refused = {}
for command in string.gmatch(ARGV[1], '%S+') do
  local may = true
  for _, key in ipairs(KEYS) do may = may and redis.acl_check_cmd(command, key) end
  if not may then refused[#refused + 1] = ' ' .. command end
end
return 'rights - 0 0' .. table.concat(refused)
