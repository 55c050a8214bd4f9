-- Defines how a stamp is read, in milliseconds. A value that no clock shows in milliseconds belongs to no client: 0.
-- Reads: nothing.
-- Sets: stamp_of.
local function stamp_of(text)
  local number = tonumber(text)
  return number and number > 0 and number <= 9007199254740000 and math.floor(number) or 0
end
