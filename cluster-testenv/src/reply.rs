//! RESP2 replies.

use std::{borrow::Cow, io::BufRead};

use crate::{Error, Result};

/// Answer of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reply {
    /// Status, such as `OK`.
    Simple(String),
    /// Error with its code in front, such as `OOM command not allowed …`.
    Error(String),
    /// Integer.
    Int(i64),
    /// Bytes.
    Bulk(Vec<u8>),
    /// No value.
    Nil,
    /// List of replies.
    Array(Vec<Reply>),
}

impl Reply {
    /// Turns an error reply into an error; every other reply stays what it is.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] for an error reply.
    pub fn into_result(self) -> Result<Self> {
        if let Self::Error(text) = self { Err(Error::Refused(text)) } else { Ok(self) }
    }

    /// Returns true for the status `OK`.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        matches!(self, Self::Simple(status) if status == "OK")
    }

    /// Returns true if there is no value.
    #[must_use]
    pub fn is_nil(&self) -> bool {
        *self == Self::Nil
    }

    /// Text of an error reply.
    pub fn error(&self) -> Option<&str> {
        if let Self::Error(text) = self { Some(text) } else { None }
    }

    /// Value of an integer reply.
    pub fn int(&self) -> Option<i64> {
        if let Self::Int(number) = self { Some(*number) } else { None }
    }

    /// Bytes of a bulk reply.
    pub fn bytes(&self) -> Option<&[u8]> {
        if let Self::Bulk(bytes) = self { Some(bytes) } else { None }
    }

    /// Text of a status or bulk reply; bytes that are not UTF-8 are replaced.
    pub fn text(&self) -> Option<Cow<'_, str>> {
        match self {
            Self::Simple(status) => Some(Cow::Borrowed(status)),
            Self::Bulk(bytes) => Some(String::from_utf8_lossy(bytes)),
            Self::Error(_) | Self::Int(_) | Self::Nil | Self::Array(_) => None,
        }
    }

    /// Elements of an array.
    pub fn array(&self) -> Option<&[Self]> {
        if let Self::Array(replies) = self { Some(replies) } else { None }
    }

    /// Text of a field, in a list of names and values.
    pub(crate) fn field(&self, name: &str) -> Option<Cow<'_, str>> {
        let pair = self.array()?.chunks(2).find(|pair| pair[0].text().is_some_and(|text| text == name))?;
        pair.get(1)?.text()
    }

    /// Returns the error that the server should not have answered this.
    pub(crate) fn unexpected(&self) -> Error {
        Error::Unexpected(format!("{self:?}"))
    }

    /// Returns the bytes of the reply.
    pub(crate) fn encode(&self) -> Vec<u8> {
        match self {
            Self::Simple(status) => format!("+{status}\r\n").into_bytes(),
            Self::Error(text) => format!("-{text}\r\n").into_bytes(),
            Self::Int(number) => format!(":{number}\r\n").into_bytes(),
            Self::Bulk(bytes) => [format!("${}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat(),
            Self::Nil => b"$-1\r\n".to_vec(),
            Self::Array(replies) => {
                let head = format!("*{}\r\n", replies.len()).into_bytes();
                replies.iter().fold(head, |head, reply| [head, reply.encode()].concat())
            }
        }
    }

    /// Reads one reply.
    pub(crate) fn read(from: &mut impl BufRead) -> Result<Self> {
        let line = read_line(from)?;
        let (kind, rest) = line.split_at_checked(1).ok_or_else(|| unexpected(&line))?;
        Ok(match kind {
            "+" => Self::Simple(rest.to_owned()),
            "-" => Self::Error(rest.to_owned()),
            ":" => Self::Int(rest.parse().map_err(|_| unexpected(&line))?),
            "$" => match read_length(&line, rest)? {
                None => Self::Nil,
                Some(length) => Self::Bulk(read_bytes(from, length)?),
            },
            "*" => match read_length(&line, rest)? {
                None => Self::Nil,
                Some(length) => Self::Array((0..length).map(|_| Self::read(from)).collect::<Result<_>>()?),
            },
            _ => return Err(unexpected(&line)),
        })
    }
}

fn read_line(from: &mut impl BufRead) -> Result<String> {
    let mut line = Vec::new();
    from.read_until(b'\n', &mut line).map_err(Error::io("reading a reply"))?;
    let Some(line) = line.strip_suffix(b"\r\n") else {
        return Err(Error::Unexpected("the connection was closed".to_owned()));
    };
    Ok(String::from_utf8_lossy(line).into_owned())
}

/// Parses a length; -1 stands for no value.
fn read_length(line: &str, digits: &str) -> Result<Option<usize>> {
    if digits == "-1" { Ok(None) } else { digits.parse().map(Some).map_err(|_| unexpected(line)) }
}

fn read_bytes(from: &mut impl BufRead, length: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; length + 2];
    from.read_exact(&mut bytes).map_err(Error::io("reading a reply"))?;
    bytes.truncate(length);
    Ok(bytes)
}

fn unexpected(line: &str) -> Error {
    Error::Unexpected(format!("{line:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn garbage_and_a_closed_connection_are_errors() {
        for wire in ["", "\r\n", "?\r\n", "$x\r\n", ":\r\n", "+O", "$3\r\nab"] {
            assert!(Reply::read(&mut wire.as_bytes()).is_err(), "{wire:?}");
        }
    }
}
