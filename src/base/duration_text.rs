//! Durations as people write and read them: `10s`, `1.2s`, `500ms`.

use std::fmt;
use std::time::Duration;

/// Duration in the form that people write and read. A `Config`, errors and logs use this form.
///
/// `Display` rounds down. From one second on, it writes seconds with two decimals. From one millisecond on, it writes
/// whole milliseconds. Shorter durations are exact. `FromStr` reads a number with one of the units `ns`, `us`, `ms`,
/// `s`, `m`, `min`, `h` and `d`. It also reads `max`, which means no limit.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use redis_rwlock::DurationText;
///
/// let DurationText(limit) = "1.5h".parse()?;
/// assert_eq!(limit, Duration::from_secs(5400));
/// assert_eq!(DurationText(Duration::from_micros(12_345_678)).to_string(), "12.34s");
/// assert!("soon".parse::<DurationText>().is_err());
/// # Ok::<_, redis_rwlock::InvalidDuration>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(clippy::exhaustive_structs)] // it is a duration and nothing else
pub struct DurationText(pub Duration);

pub(crate) fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

impl fmt::Display for DurationText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            span if span < Duration::from_millis(1) => write!(f, "{span:?}"),
            span if span < Duration::from_secs(1) => {
                write!(f, "{:?}", Duration::new(0, span.subsec_millis() * 1_000_000))
            }
            span => write!(f, "{:?}", Duration::new(span.as_secs(), span.subsec_millis() / 10 * 10_000_000)),
        }
    }
}

/// Error for a text that is not a [`DurationText`]. The number or the unit of the text is missing or invalid.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0:?} is no duration: write it as 10s, 500ms, 1.5h or max")]
pub struct InvalidDuration(String);

impl std::str::FromStr for DurationText {
    type Err = InvalidDuration;

    fn from_str(text: &str) -> Result<Self, InvalidDuration> {
        let refused = || InvalidDuration(text.to_owned());
        if text == "max" {
            return Ok(Self(Duration::MAX));
        }
        let unit = text.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(refused)?;
        let (number, unit) = text.split_at(unit);
        let unit_nanos: u128 = match unit {
            "ns" => 1,
            "us" | "µs" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" | "min" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            "d" => 86_400_000_000_000,
            _ => return Err(refused()),
        };
        let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
        // A second has 10^9 nanoseconds, so more than nine decimals would have no effect.
        let digits = u32::try_from(part.len()).ok().filter(|digits| (1..=9).contains(digits)).ok_or_else(refused)?;
        let number = |digits: &str| digits.parse::<u32>().map(u128::from).map_err(|_| refused());
        let nanos = number(whole)? * unit_nanos + number(part)? * unit_nanos / 10_u128.pow(digits);
        let seconds = u64::try_from(nanos / 1_000_000_000).map_err(|_| refused())?;
        let below = u32::try_from(nanos % 1_000_000_000).map_err(|_| refused())?;
        Ok(Self(Duration::new(seconds, below)))
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for DurationText {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// Durations as two JSON fields: a text for people, and a number that programs can compare.
#[cfg(feature = "serde")]
pub(crate) mod json {
    use std::time::Duration;

    use serde::Serializer;
    use serde::ser::SerializeMap as _;

    use super::{DurationText, millis};

    macro_rules! in_milliseconds {
        ($($field:ident)*) => {$(
            pub(crate) fn $field<S: Serializer>(span: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
                let number = Some(millis(*span));
                both(serializer, stringify!($field), concat!(stringify!($field), "_ms"), Some(*span), number)
            }
        )*};
    }
    in_milliseconds!(age remaining waiting limit);

    #[allow(clippy::ref_option)] // as serde calls it
    pub(crate) fn votes_in<S: Serializer>(span: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
        both(serializer, "votes_in", "votes_in_ms", *span, span.map(millis))
    }

    /// Writes the number in microseconds, because a round trip usually takes less than a millisecond.
    #[allow(clippy::ref_option)] // as serde calls it
    pub(crate) fn round_trip<S: Serializer>(span: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
        let number = span.map(|span| u64::try_from(span.as_micros()).unwrap_or(u64::MAX));
        both(serializer, "round_trip", "round_trip_us", *span, number)
    }

    fn both<S: Serializer>(
        serializer: S,
        text_field: &'static str,
        number_field: &'static str,
        span: Option<Duration>,
        number: Option<u64>,
    ) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_map(Some(2))?;
        fields.serialize_entry(text_field, &span.map(|span| DurationText(span).to_string()))?;
        fields.serialize_entry(number_field, &number)?;
        fields.end()
    }
}

#[cfg(all(test, feature = "_testing"))]
#[path = "../../testing/unit/base/duration_text/tests.rs"]
mod tests;
