use super::*;

const ANSWERS: [&str; 16] = [
    "+OK\r\n",
    "-NOSCRIPT No matching script.\r\n",
    ":-7\r\n",
    "$0\r\n\r\n",
    "$13\r\ntwo\r\nlines $3\r\n",
    "$-1\r\n",
    "*-1\r\n",
    "*0\r\n",
    "*2\r\n*1\r\n:1\r\n$1\r\na\r\n",
    "%1\r\n+mode\r\n$7\r\ncluster\r\n",
    "~1\r\n:1\r\n",
    "_\r\n",
    ",1.5\r\n",
    "#t\r\n",
    "=7\r\ntxt:abc\r\n",
    ">2\r\n+invalidate\r\n*0\r\n",
];

/// Reads the frame at the start of the bytes. Returns the frame and its length, or `None` if the end of the frame has
/// not arrived.
fn first(bytes: &[u8]) -> io::Result<Option<(Frame<'_>, usize)>> {
    Scan::default().first(bytes)
}

#[test]
fn answers_are_what_the_library_reads_in_them() {
    for answer in ANSWERS {
        let bytes = [answer.as_bytes(), b"+behind it\r\n"].concat();
        let (frame, length) = first(&bytes).expect(answer).expect(answer);
        assert_eq!(length, answer.len(), "{answer}");
        let value = redis::parse_redis_value(answer.as_bytes()).expect(answer);
        let is_pushed = matches!(value, Value::Push { .. });
        assert_eq!(frame, if is_pushed { Frame::Other } else { Frame::Answer(value) }, "{answer}");
    }
}

#[test]
fn what_is_pushed_of_a_channel_is_read_here() {
    let message = ">3\r\n$8\r\nsmessage\r\n$1\r\na\r\n$4\r\nx\r\ny\r\n";
    let pushed = Pushed::Message { channel: "a", message: b"x\r\ny" };
    assert_eq!(first(message.as_bytes()).expect("whole"), Some((Frame::Pushed(pushed, None), message.len())));
    for half in 0..message.len() {
        assert_eq!(first(&message.as_bytes()[..half]).expect(message), None, "{half} bytes");
    }
    let (subscribed, unsubscribed) = (Pushed::Subscribed { channel: "a" }, Pushed::Unsubscribed { channel: "a" });
    for (kind, pushed) in [
        ("ssubscribe", subscribed),
        ("sunsubscribe", unsubscribed),
        ("subscribe", subscribed),
        ("unsubscribe", unsubscribed),
    ] {
        let frame = format!(">3\r\n${}\r\n{kind}\r\n$1\r\na\r\n:1\r\n", kind.len());
        let whole = Some(redis::parse_redis_value(frame.as_bytes()).expect("a push"));
        assert_eq!(first(frame.as_bytes()).expect("whole"), Some((Frame::Pushed(pushed, whole), frame.len())));
    }
    let others = [
        &b">3\r\n$8\r\npmessage\r\n$1\r\na\r\n$1\r\nx\r\n"[..],
        // The channel is no text, the message is missing, the message is null, the channel is missing.
        b">3\r\n$8\r\nsmessage\r\n$1\r\n\xfe\r\n$1\r\nx\r\n",
        b">2\r\n$8\r\nsmessage\r\n$1\r\na\r\n",
        b">3\r\n$8\r\nsmessage\r\n$-1\r\n$1\r\nx\r\n",
        b">1\r\n$8\r\nsmessage\r\n",
    ];
    for other in others {
        let text = other.escape_ascii();
        assert_eq!(first(other).expect("whole"), Some((Frame::Other, other.len())), "{text}");
    }
}

#[test]
fn list_about_a_channel_is_a_push_where_subscriptions_are() {
    let message = "*3\r\n$8\r\nsmessage\r\n$1\r\na\r\n$1\r\nx\r\n".as_bytes();
    let confirmation = "*3\r\n$10\r\nssubscribe\r\n$1\r\na\r\n:1\r\n".as_bytes();
    let pong = "*2\r\n$4\r\npong\r\n$0\r\n\r\n".as_bytes();
    let list = |bytes| Frame::Answer(redis::parse_redis_value(bytes).expect("a list"));
    let of_lists =
        |bytes| Scan { has_listed_pushes: true, ..Scan::default() }.first(bytes).expect("whole").expect("whole").0;
    assert_eq!(of_lists(message), Frame::Pushed(Pushed::Message { channel: "a", message: b"x" }, None));
    let Frame::Pushed(Pushed::Subscribed { channel: "a" }, Some(Value::Push { .. })) = of_lists(confirmation) else {
        panic!("{:?}", of_lists(confirmation))
    };
    assert_eq!(of_lists(pong), list(pong));
    for bytes in [message, confirmation] {
        assert_eq!(first(bytes).expect("whole"), Some((list(bytes), bytes.len())), "an answer where requests are");
    }
}

#[test]
fn half_an_answer_is_waited_for() {
    for answer in ANSWERS {
        for half in 0..answer.len() {
            assert_eq!(first(&answer.as_bytes()[..half]).expect(answer), None, "{half} bytes of {answer}");
        }
    }
}

#[test]
fn what_is_no_answer_ends_the_connection() {
    let deep = "*1\r\n".repeat(MAX_DEPTH + 2);
    for bytes in ["hello\r\n", "+\n", "\r\n", "$1\r\nabc\r\n", "$x\r\n", "$\r\n", "*-2\r\n", &deep] {
        assert!(first(bytes.as_bytes()).is_err(), "{bytes}");
    }
}

#[test]
fn length_beyond_all_bounds_is_refused_at_once() {
    for head in ["$18446744073709551615\r\n", "$18446744073709551616\r\n", "*18446744073709551615\r\n", "%9999999\r\n"]
    {
        assert!(first(head.as_bytes()).is_err(), "{head}");
    }
    let longest = MAX_TEXT - 2;
    assert_eq!(first(format!("${longest}\r\n").as_bytes()).expect("it may be so long"), None);
    assert!(first(format!("${}\r\n", longest + 1).as_bytes()).is_err());
    assert!(first(&vec![b'+'; MAX_LINE + 2]).is_err(), "a line without an end");
}

/// Nodes with a replica each, and a range for each slot: each range is at another node than its neighbours.
#[test]
fn map_of_a_torn_cluster_is_no_too_much_where_it_was_asked_for() {
    let node = "*4\r\n$13\r\n10.100.100.10\r\n:6379\r\n$40\r\n0123456789012345678901234567890123456789\r\n*0\r\n";
    let range = format!("*4\r\n:16383\r\n:16383\r\n{}", node.repeat(2));
    let map = format!("*16384\r\n{}", range.repeat(16_384));
    let mut asked_for = Scan { is_map_awaited: true, ..Scan::default() };
    assert!(asked_for.first(map.as_bytes()).expect("not too much").is_some());
    assert!(first(map.as_bytes()).is_err(), "no other answer is so large");
}

/// A reader that measures every piece from the start takes minutes for this.
#[test]
fn answer_in_small_pieces_is_measured_once() {
    let answer = format!("*100000\r\n{}", ":1\r\n".repeat(100_000)).into_bytes();
    let (mut scan, began) = (Scan::default(), std::time::Instant::now());
    for end in (1..answer.len()).step_by(7) {
        assert_eq!(scan.first(&answer[..end]).expect("an answer"), None);
    }
    assert!(scan.first(&answer).expect("an answer").is_some());
    assert!(began.elapsed() < std::time::Duration::from_secs(20), "{:?}", began.elapsed());
}

#[test]
fn random_answers_are_read_alike_however_they_are_cut() {
    let (mut random, time) = crate::net::fake::randomness();
    let began = std::time::Instant::now();
    while began.elapsed() < time {
        let mut bytes: Vec<u8> =
            (0..random.usize(1..6)).flat_map(|_| ANSWERS[random.usize(..ANSWERS.len())].bytes()).collect();
        for _ in 0..random.usize(..4) {
            let at = random.usize(..bytes.len());
            match random.u8(..3) {
                0 => bytes[at] = random.u8(..),
                1 => bytes.insert(at, b"$*>%:-0123456789\r\n"[random.usize(..18)]),
                _ => bytes.truncate(at.max(1)),
            }
        }
        let whole = read_all(&bytes, bytes.len());
        let step = random.usize(1..8);
        assert_eq!(read_all(&bytes, step), whole, "by {step}: {}", bytes.escape_ascii());
    }
}

/// Reads bytes that come in pieces. Returns the frames, and true if the connection ends.
fn read_all(bytes: &[u8], step: usize) -> (Vec<String>, bool) {
    let (mut scan, mut begin, mut read) = (Scan::default(), 0, Vec::new());
    for end in (step..bytes.len()).step_by(step).chain([bytes.len()]) {
        loop {
            match scan.first(&bytes[begin..end]) {
                Ok(Some((frame, length))) => {
                    read.push(format!("{frame:?}"));
                    begin += length;
                }
                Ok(None) => break,
                Err(_) => return (read, true),
            }
        }
    }
    (read, false)
}
