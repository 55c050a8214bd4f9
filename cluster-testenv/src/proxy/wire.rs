//! Boundaries of RESP requests and replies, in versions 2 and 3.

/// The bytes are not RESP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotResp;

/// Returns the length of the first reply or request in `bytes`. Returns `None` while a part of it is missing.
pub fn frame_length(bytes: &[u8]) -> Result<Option<usize>, NotResp> {
    let mut at = 0;
    let mut frames_left = 1_usize;
    while frames_left > 0 {
        let Some((line, after_line)) = line_at(bytes, at) else { return Ok(None) };
        at = after_line;
        frames_left -= 1;
        let (kind, rest) = line.split_first().ok_or(NotResp)?;
        match kind {
            b'+' | b'-' | b':' | b'_' | b',' | b'#' | b'(' => {}
            b'$' | b'=' | b'!' => at += number(rest)?.map_or(0, |length| length + 2),
            b'*' | b'~' | b'>' => frames_left += number(rest)?.unwrap_or(0),
            b'%' => frames_left += 2 * number(rest)?.unwrap_or(0),
            // Attributes precede the frame that they belong to.
            b'|' => frames_left += 2 * number(rest)?.unwrap_or(0) + 1,
            _ => return Err(NotResp),
        }
    }
    Ok((at <= bytes.len()).then_some(at))
}

/// Returns the length of the first request in `bytes`, which may be an inline request (`PING\r\n`).
pub fn request_length(bytes: &[u8]) -> Result<Option<usize>, NotResp> {
    match bytes.first() {
        None => Ok(None),
        Some(b'*') => frame_length(bytes),
        // Traffic between the nodes of a cluster.
        Some(_) if bytes.starts_with(b"RCmb") => Err(NotResp),
        // TLS, which begins with byte 22, and any other byte that a person does not type.
        Some(byte) if !byte.is_ascii_graphic() && !byte.is_ascii_whitespace() => Err(NotResp),
        Some(_) => Ok(bytes.iter().position(|byte| *byte == b'\n').map(|end| end + 1)),
    }
}

/// Returns the arguments of a whole request.
pub fn request_args(request: &[u8]) -> Vec<Vec<u8>> {
    if request.first() != Some(&b'*') {
        let words = request.split(u8::is_ascii_whitespace);
        return words.filter(|word| !word.is_empty()).map(<[u8]>::to_vec).collect();
    }
    let mut args = Vec::new();
    let mut at = line_at(request, 0).map_or(0, |(_, next)| next);
    while let Some((line, next)) = line_at(request, at) {
        let Some(length) = line.get(1..).and_then(|digits| number(digits).ok().flatten()) else { break };
        let Some(arg) = request.get(next..next + length) else { break };
        args.push(arg.to_vec());
        at = next + length + 2;
    }
    args
}

/// Returns the first character of a whole reply, and its first two elements if it is an array or push of texts.
pub fn head(reply: &[u8]) -> (u8, [&[u8]; 2]) {
    let kind = reply.first().copied().unwrap_or_default();
    let mut texts: [&[u8]; 2] = [&[]; 2];
    let is_list = matches!(kind, b'*' | b'>');
    let mut at = line_at(reply, 0).map_or(0, |(_, next)| next);
    for text in texts.iter_mut().filter(|_| is_list) {
        let Some((line, next)) = line_at(reply, at) else { break };
        let Some((b'$', digits)) = line.split_first() else { break };
        let Some(length) = number(digits).ok().flatten() else { break };
        *text = reply.get(next..next + length).unwrap_or_default();
        at = next + length + 2;
    }
    (kind, texts)
}

/// Returns the line at `at` without its end, and the position of the next line.
fn line_at(bytes: &[u8], at: usize) -> Option<(&[u8], usize)> {
    let rest = bytes.get(at..)?;
    let end = rest.windows(2).position(|pair| pair == b"\r\n")?;
    Some((&rest[..end], at + end + 2))
}

/// Parses a length; -1 stands for no value.
fn number(digits: &[u8]) -> Result<Option<usize>, NotResp> {
    /// Server's limit for a value.
    const MAX: usize = 512 << 20;
    if digits == b"-1" {
        return Ok(None);
    }
    let number = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok());
    number.filter(|number| *number <= MAX).map(Some).ok_or(NotResp)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_frame_ends_where_it_ends_and_not_before() {
        let frames: [&[u8]; 12] = [
            b"+OK\r\n",
            b"-ERR no\r\n",
            b":-7\r\n",
            b"$4\r\na\r\nb\r\n",
            b"$-1\r\n",
            b"*-1\r\n",
            b"*0\r\n",
            b"*3\r\n$1\r\na\r\n*1\r\n:1\r\n$-1\r\n",
            b"%1\r\n+key\r\n*2\r\n:1\r\n_\r\n",
            b">2\r\n+a\r\n#t\r\n",
            b"|1\r\n+ttl\r\n:3\r\n$2\r\nab\r\n",
            b"=5\r\ntxt:a\r\n",
        ];
        for frame in frames {
            for end in 0..frame.len() {
                assert_eq!(frame_length(&frame[..end]), Ok(None), "{:?}", frame[..end].escape_ascii().to_string());
            }
            let two = [frame, frame].concat();
            assert_eq!(frame_length(&two), Ok(Some(frame.len())), "{}", frame.escape_ascii());
        }
    }

    #[test]
    fn other_protocols_are_told_apart() {
        for bytes in [&b"?\r\n"[..], b"\r\n", b"$x\r\n", b"*99999999999\r\n", b"$-2\r\n"] {
            assert_eq!(frame_length(bytes), Err(NotResp), "{}", bytes.escape_ascii());
        }
        assert_eq!(request_length(&[22, 3, 1, 0]), Err(NotResp));
        assert_eq!(request_length(b"RCmb\0\n"), Err(NotResp));
    }

    #[test]
    fn arguments_are_read_from_arrays_and_from_lines() {
        let array = b"*3\r\n$3\r\nSET\r\n$4\r\na\r\nb\r\n$0\r\n\r\n";
        assert_eq!(request_args(array), [&b"SET"[..], b"a\r\nb", b""]);
        assert_eq!(request_length(b"PING  x\r\nGET"), Ok(Some(9)));
        assert_eq!(request_args(b"PING  x\r\n"), [b"PING".to_vec(), b"x".to_vec()]);
        assert!(request_args(b"\r\n").is_empty());
    }
}
