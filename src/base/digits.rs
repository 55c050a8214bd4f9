//! Decimal digits of numbers, written without an allocation.

/// Decimal digits of a number.
pub(crate) struct Digits {
    digits: [u8; Self::MAX],
    begin: usize,
}

impl Digits {
    /// Number of digits of [`u64::MAX`].
    pub(crate) const MAX: usize = 20;

    pub(crate) fn of(mut number: u64) -> Self {
        let (mut digits, mut begin) = ([b'0'; Self::MAX], Self::MAX);
        while number > 0 || begin == Self::MAX {
            begin -= 1;
            digits[begin] = b'0' + (number % 10) as u8;
            number /= 10;
        }
        Self { digits, begin }
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.digits[self.begin..]
    }

    pub(crate) fn as_str(&self) -> &str {
        str::from_utf8(self.as_bytes()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_the_standard_library_does() {
        for number in [0, 7, 10, 99, 100, 12_345_678_901, u64::MAX - 1, u64::MAX] {
            assert_eq!(Digits::of(number).as_str(), number.to_string());
        }
    }
}
