//! What every manager promises, whatever it keeps its locks on.

mod exclusion;
