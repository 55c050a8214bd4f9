-- Begins the phase of the readers that wait.
-- Reads: phase, later_readers.
-- Sets: phase, in_phase, later_readers, queue_changed.
phase, in_phase, later_readers, queue_changed = phase == 'x' and 'y' or 'x', later_readers, 0, true
