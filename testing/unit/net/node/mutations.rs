//! Server whose answers change at random on their way. Nothing may panic, and no call may get another one's answer. The
//! node has to serve again as soon as the server is well.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Instant;

use fastrand::Rng;
use futures_util::future::join_all;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;
use crate::net::Script;
use crate::net::fake;

const RESPONSE_TIMEOUT: Duration = Duration::from_millis(200);
const CALLERS: usize = 8;
/// Time limit that is far longer than the node needs to serve again.
const BOUND: Duration = Duration::from_secs(30);
/// Answers that no caller asked for.
const UNASKED: [&str; 8] = [
    "+OK\r\n",
    ":7\r\n",
    "$-1\r\n",
    "*2\r\n:1\r\n$3\r\nabc\r\n",
    ">2\r\n+invalidate\r\n*0\r\n",
    ">3\r\n$8\r\nsmessage\r\n$1\r\na\r\n$1\r\nx\r\n",
    "$99999999999\r\n",
    "-READONLY You can't write against a read only replica.\r\n",
];

static SCRIPT: Script = Script::new("return 1");

/// Returns the answer to a command. A script is answered by the id that comes last among its arguments.
fn answer(words: &[String]) -> String {
    match words[0].to_ascii_uppercase().as_str() {
        "HELLO" => fake::hello("standalone"),
        "TIME" => fake::TIME.to_owned(),
        "EVALSHA" | "EVAL" => {
            let reply = format!("ok {} 1700000000 0", words[words.len() - 1]);
            format!("${}\r\n{reply}\r\n", reply.len())
        }
        _ => "+OK\r\n".to_owned(),
    }
}

/// Changes an answer in one way: its bytes, how often it comes, or what comes with it.
fn mutate(answer: &mut Vec<u8>, before: &[u8], random: &mut Rng) {
    let at = random.usize(..answer.len());
    match random.u8(..8) {
        0 => answer[at] = random.u8(..),
        1 => answer.insert(at, b"$*>%:-0123456789\r\n"[random.usize(..18)]),
        2 => answer.truncate(at),
        3 => answer.extend_from_within(..),
        4 => answer.clear(),
        5 => *answer = before.to_vec(),
        6 => drop(answer.splice(..0, random.choice(UNASKED).unwrap_or_default().bytes())),
        _ => answer.extend_from_slice(random.choice(UNASKED).unwrap_or_default().as_bytes()),
    }
}

/// Answers requests on one connection, in pieces. Changes one answer of thirty, unless the server is well.
async fn serve(mut stream: TcpStream, mut random: Rng, is_well: Arc<AtomicBool>) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let (mut said, mut done, mut before) = (Vec::new(), 0, Vec::new());
    while stream.read_buf(&mut said).await? > 0 {
        while let Some((words, end)) = fake::command(&said, done) {
            done = end;
            let whole = answer(&words).into_bytes();
            let mut sent = whole.clone();
            if random.u8(..30) == 0 && !is_well.load(SeqCst) {
                mutate(&mut sent, &before, &mut random);
            }
            before = whole;
            let length = random.usize(1..64);
            for piece in sent.chunks(length) {
                stream.write_all(piece).await?;
            }
        }
    }
    Ok(())
}

fn call_of(id: &str) -> Call {
    let mut call = Call::new(&SCRIPT, 0);
    call.echoed_arg(id);
    call
}

/// Asks in one of four ways. Returns the answers, and checks that each belongs to its call.
async fn ask(node: &Node, id: &str, way: usize) -> Vec<Result<Answered<Value>, Fault>> {
    let ids: Vec<_> = (0..3).map(|number| format!("{id}-{number}")).collect();
    let answers = match way % 4 {
        0 => vec![node.call_apart(&call_of(&ids[0])).await],
        1 => node.call_all(&ids.iter().map(|id| call_of(id)).collect::<Vec<_>>()).await.unwrap_or_default(),
        2 => vec![node.call(&call_of(&ids[0]), Admission::Owner, Precedence::Ahead).await],
        _ => vec![node.call(&call_of(&ids[0]), Admission::Owner, Precedence::InTurn).await],
    };
    for (answer, id) in answers.iter().zip(&ids) {
        if let Ok(answered) = answer {
            let Value::BulkString(words) = &answered.value else { panic!("{answered:?} to {id}") };
            let text = String::from_utf8_lossy(words);
            assert_eq!(text.split(' ').nth(1), Some(id.as_str()), "{text}");
        }
    }
    answers
}

fn count(answers: &[Result<Answered<Value>, Fault>]) -> usize {
    answers.iter().filter(|answer| answer.is_ok()).count()
}

/// Asks a healthy server like callers that come at the same time, so that several answers come together. Each has to go
/// to its own caller: none may be found out only by the id in it.
async fn nobody_is_handed_anothers_answer(node: &Node) {
    let callers = (0..CALLERS).map(async |caller| {
        for number in 0..50 {
            for answer in ask(node, &format!("well-{caller}-{number}"), number).await {
                if let Err(Fault::Unknown { source: Some(source), .. }) = answer {
                    assert!(!source.to_string().contains("not one to this request"), "{source}");
                }
            }
        }
    });
    join_all(callers).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mutated_replies_are_never_those_of_others() {
    let (mut random, time) = fake::randomness();
    let (listener, addr) = fake::listening().await;
    let is_well = Arc::<AtomicBool>::default();
    let well = Arc::clone(&is_well);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream, random.fork(), Arc::clone(&well)));
        }
    });
    let options = Options { response_timeout: RESPONSE_TIMEOUT, ..Options::default() };
    let node = fake::node_at(addr, &options, Role::Standalone, BackgroundRuntime::Process);
    let (node, began) = (&*node, Instant::now());
    let callers = (0..CALLERS).map(async |caller| {
        let (mut asked, mut answered) = (0, 0);
        while began.elapsed() < time {
            answered += count(&ask(node, &format!("{caller}-{asked}"), asked).await);
            asked += 1;
            tokio::task::yield_now().await;
        }
        answered
    });
    let answered: usize = join_all(callers).await.into_iter().sum();
    println!("{answered} answers within {time:?}");
    assert!(answered > 0, "most answers are not changed");
    is_well.store(true, SeqCst);
    let back = Instant::now();
    for way in 0..4 {
        while count(&ask(node, &format!("well-{way}"), way).await) == 0 {
            assert!(back.elapsed() < BOUND, "no answer of a server that is well");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    nobody_is_handed_anothers_answer(node).await;
}
