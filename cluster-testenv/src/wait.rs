//! Waits for conditions that have no notification.

use std::{
    thread,
    time::{Duration, Instant},
};

use crate::{Error, Result};

/// Calls `condition` every few milliseconds until it returns a value, and returns this value.
///
/// # Errors
///
/// [`Error::NotInTime`] with the name `what`, if `condition` returns no value within `bound`.
pub fn wait_for<T>(what: impl Into<String>, bound: Duration, mut condition: impl FnMut() -> Option<T>) -> Result<T> {
    const PERIOD: Duration = Duration::from_millis(5);
    let started = Instant::now();
    loop {
        if let Some(value) = condition() {
            return Ok(value);
        }
        if started.elapsed() >= bound {
            return Err(Error::NotInTime { what: what.into(), bound });
        }
        thread::sleep(PERIOD);
    }
}

/// Waits until there is no complaint. Otherwise the error has the last one.
pub(crate) fn wait_until_well(
    what: &str,
    bound: Duration,
    mut complaint: impl FnMut() -> Option<String>,
) -> Result<()> {
    let mut last = None;
    let well = wait_for("", bound, || {
        last = complaint();
        last.is_none().then_some(())
    });
    well.map_err(|_| Error::NotInTime { what: format!("{what} ({})", last.unwrap_or_default()), bound })
}
