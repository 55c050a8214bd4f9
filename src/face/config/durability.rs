//! Durability in a configuration: a level without replicas by its name, or the replicas with their timeout.

use std::fmt;
use std::num::NonZeroU8;
use std::str::FromStr;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, MapAccess, Visitor};

use crate::base::durability::{Durability, Replicas};
use crate::base::duration_text::{DurationText, InvalidDuration};
use crate::base::error::{Error, Result};

const LEVELS: &str = "\"primary\", \"server\", or replicas and timeout";
const REPLICAS: &str = "all, or a number from 1 to 255";

/// Field `durability` of a configuration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct DurabilityField(pub(super) Durability);

/// Fields within `durability`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReplicatedFields {
    replicas: ReplicasField,
    timeout: DurationText,
}

#[derive(Clone, Copy)]
struct ReplicasField(Replicas);

impl From<ReplicatedFields> for DurabilityField {
    fn from(fields: ReplicatedFields) -> Self {
        let ReplicatedFields { replicas: ReplicasField(replicas), timeout: DurationText(timeout) } = fields;
        Self(Durability::Replicated { replicas, timeout })
    }
}

/// Reads the name of a level without replicas.
impl FromStr for DurabilityField {
    type Err = ();

    fn from_str(name: &str) -> std::result::Result<Self, ()> {
        match name {
            "primary" => Ok(Self(Durability::Primary)),
            "server" => Ok(Self(Durability::Server)),
            _ => Err(()),
        }
    }
}

impl FromStr for ReplicasField {
    type Err = ();

    fn from_str(text: &str) -> std::result::Result<Self, ()> {
        if text == "all" {
            return Ok(Self(Replicas::All));
        }
        let number = text.parse::<NonZeroU8>();
        number.map(|number| Self(Replicas::At(number.get()))).map_err(|_| ())
    }
}

impl<'de> Deserialize<'de> for DurabilityField {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Level;
        impl<'de> Visitor<'de> for Level {
            type Value = DurabilityField;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(LEVELS)
            }

            fn visit_str<E: serde::de::Error>(self, name: &str) -> std::result::Result<Self::Value, E> {
                name.parse().map_err(|()| E::invalid_value(serde::de::Unexpected::Str(name), &self))
            }

            fn visit_map<A: MapAccess<'de>>(self, fields: A) -> std::result::Result<Self::Value, A::Error> {
                ReplicatedFields::deserialize(MapAccessDeserializer::new(fields)).map(Into::into)
            }
        }
        deserializer.deserialize_any(Level)
    }
}

impl<'de> Deserialize<'de> for ReplicasField {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Number;
        impl Visitor<'_> for Number {
            type Value = ReplicasField;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(REPLICAS)
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> std::result::Result<Self::Value, E> {
                text.parse().map_err(|()| E::invalid_value(serde::de::Unexpected::Str(text), &self))
            }

            // Formats without unsigned numbers, such as TOML.
            fn visit_i64<E: serde::de::Error>(self, number: i64) -> std::result::Result<Self::Value, E> {
                self.visit_str(&number.to_string())
            }

            fn visit_u64<E: serde::de::Error>(self, number: u64) -> std::result::Result<Self::Value, E> {
                self.visit_str(&number.to_string())
            }
        }
        deserializer.deserialize_any(Number)
    }
}

/// Variables of the durability, as far as they were read.
#[derive(Default)]
pub(super) struct DurabilityVars {
    level: Option<DurabilityField>,
    replicas: Option<ReplicasField>,
    timeout: Option<DurationText>,
}

impl DurabilityVars {
    /// Reads one variable. `name` is its full name, for error messages. Returns false if `field` belongs to another
    /// option.
    pub(super) fn set(&mut self, name: &str, field: &str, value: &str) -> Result<bool> {
        let wrong = |reason: &str| Error::invalid("durability", format!("{name}{reason}"));
        match field {
            "DURABILITY" => self.level = Some(value.parse().map_err(|()| wrong(" must be primary or server"))?),
            "DURABILITY_REPLICAS" => {
                self.replicas = Some(value.parse().map_err(|()| wrong(&format!(" must be {REPLICAS}")))?);
            }
            "DURABILITY_TIMEOUT" => {
                self.timeout = Some(value.parse().map_err(|reason: InvalidDuration| wrong(&format!(": {reason}")))?);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Returns the durability that the variables give together. `prefix` is that of their names, for error messages.
    pub(super) fn finish(self, prefix: &str) -> Result<Option<DurabilityField>> {
        let reason = match (self.level, self.replicas, self.timeout) {
            (level, None, None) => return Ok(level),
            (None, Some(replicas), Some(timeout)) => return Ok(Some(ReplicatedFields { replicas, timeout }.into())),
            (None, ..) => format!("set both {prefix}_DURABILITY_REPLICAS and {prefix}_DURABILITY_TIMEOUT, or neither"),
            (Some(_), ..) => format!(
                "set either {prefix}_DURABILITY, or {prefix}_DURABILITY_REPLICAS and {prefix}_DURABILITY_TIMEOUT"
            ),
        };
        Err(Error::invalid("durability", reason))
    }
}

#[cfg(test)]
mod tests {
    use serde::de::value::{Error, I64Deserializer};

    use super::*;

    /// TOML has signed numbers only.
    #[test]
    fn signed_numbers_of_replicas_are_read() {
        let read = |number| ReplicasField::deserialize(I64Deserializer::<Error>::new(number)).map(|field| field.0);
        assert_eq!(read(2).ok(), Some(Replicas::At(2)));
        for number in [-1, 0, 256] {
            assert!(read(number).is_err(), "{number}");
        }
    }
}
