//! Questions about errors.

use redis_rwlock::{Error, LossReason, Refusal};

/// Asserts that the server refused a request for this reason.
#[track_caller]
pub fn assert_refused(error: &Error, reason: Refusal) {
    assert_matches!(error, Error::Refused { refusal, .. } if *refusal == reason);
}

/// Asserts that a hold was lost for this reason.
#[track_caller]
pub fn assert_lost(error: &Error, because: LossReason) {
    assert_matches!(error, Error::Lost { reason, .. } if *reason == because);
}

/// Returns the option that an error names.
#[track_caller]
pub fn option_of(error: &Error) -> &'static str {
    match error {
        Error::InvalidOption { option, .. } => option,
        other => panic!("{other:?}"),
    }
}
