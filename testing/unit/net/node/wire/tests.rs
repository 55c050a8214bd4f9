use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{join, join_all, poll_immediate};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::net::fake;
use crate::net::pushed::{OnPush, Pushed};

/// Time limit for everything that has to come.
const TIME_LIMIT: Duration = Duration::from_secs(20);

/// Record of the handlers of a wire: its end, and its pushes.
#[derive(Default)]
struct Ends {
    is_closed: Arc<AtomicBool>,
    losses: Arc<AtomicUsize>,
    pushed: Arc<Mutex<Vec<String>>>,
}

impl Ends {
    fn push_handler(&self) -> PushHandler {
        self.handler_with(None)
    }

    fn handler_with(&self, on_push: Option<OnPush>) -> PushHandler {
        let losses = Arc::clone(&self.losses);
        let on_loss = move || {
            losses.fetch_add(1, Ordering::SeqCst);
        };
        PushHandler::new(Arc::clone(&self.is_closed), Some(Arc::new(on_loss)), on_push)
    }

    /// Returns the handlers of a connection that subscribes.
    fn handler_of_link(&self) -> PushHandler {
        let all = Arc::clone(&self.pushed);
        let on_push = move |pushed: Pushed<'_>| all.lock().push(format!("{pushed:?}"));
        self.handler_with(Some(Arc::new(on_push)))
    }

    fn pushed(&self) -> Vec<String> {
        std::mem::take(&mut *self.pushed.lock())
    }

    fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    fn losses(&self) -> usize {
        self.losses.load(Ordering::SeqCst)
    }
}

/// Connects a wire, and returns it with the server's end, behind the greeting.
async fn connected() -> (Wire, Server, Ends) {
    connected_with(Ends::push_handler).await
}

/// Connects a wire that subscribes.
async fn linked() -> (Wire, Server, Ends) {
    connected_with(Ends::handler_of_link).await
}

async fn connected_with(push_handler: fn(&Ends) -> PushHandler) -> (Wire, Server, Ends) {
    let ends = Ends::default();
    let (wire, server) = connected_by(push_handler(&ends)).await;
    (wire, server, ends)
}

async fn connected_by(push_handler: PushHandler) -> (Wire, Server) {
    let (ours, theirs) = streams().await;
    greeted(push_handler, Stream::Tcp(ours), theirs).await
}

/// Opens both ends of a connection.
async fn streams() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let ours = TcpStream::connect(listener.local_addr().expect("bound")).await.expect("connected");
    (ours, listener.accept().await.expect("a connection").0)
}

/// Opens both ends of a connection with TLS.
#[cfg(feature = "tls")]
async fn encrypted_streams() -> (Stream, impl Socket + 'static) {
    let certificates = cluster_testenv::Certificates::make();
    let (ours, theirs) = streams().await;
    let connector = crate::net::tls::Connector::new(&fake::tls::trusting(&certificates)).expect("usable");
    let config = fake::tls::config(&certificates);
    let shaken = join(Stream::Tcp(ours).encrypt(&connector, "localhost"), fake::tls::accept(&config, theirs));
    let (ours, theirs) = shaken.await;
    (ours.expect("a handshake"), theirs)
}

/// Connects a wire with TLS, and returns it with the server's end.
#[cfg(feature = "tls")]
async fn encrypted() -> (Wire, Server, Ends) {
    let (ends, (ours, theirs)) = (Ends::default(), encrypted_streams().await);
    let (wire, server) = greeted(ends.push_handler(), ours, theirs).await;
    (wire, server, ends)
}

async fn greeted(push_handler: PushHandler, stream: Stream, server: impl Socket + 'static) -> (Wire, Server) {
    let accept = async {
        let mut server = Server { stream: Box::new(server), said: Vec::new() };
        assert_eq!(server.receive().await[0], "HELLO");
        server.say(&fake::hello("standalone")).await;
        assert_eq!(server.receive().await[0], "TIME");
        server.say("+OK\r\n").await;
        server
    };
    let greeting = async {
        let (wire, first, others) = Wire::open(stream, push_handler, Arc::default(), 1, |bytes| {
            ["HELLO", "TIME"].iter().for_each(|name| bytes.extend_from_slice(&redis::cmd(name).get_packed_command()));
        });
        first.await.expect("greeted");
        others.await.expect("greeted");
        wire.shared.state.lock().writes = 0;
        wire
    };
    join(greeting, accept).await
}

/// Server's end of a connection.
trait Socket: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Socket for S {}

struct Server {
    stream: Box<dyn Socket>,
    said: Vec<u8>,
}

impl Server {
    /// Returns the next command.
    async fn receive(&mut self) -> Vec<String> {
        loop {
            if let Some((words, end)) = fake::command(&self.said, 0) {
                self.said.drain(..end);
                return words;
            }
            assert!(self.stream.read_buf(&mut self.said).await.expect("a live socket") > 0, "it has gone");
        }
    }

    /// Receives a request, and answers it by its number.
    async fn echo(&mut self) -> Vec<String> {
        let words = self.receive().await;
        self.say(&echo(&words)).await;
        words
    }

    async fn say(&mut self, answer: &str) {
        self.stream.write_all(answer.as_bytes()).await.expect("a live socket");
        self.stream.flush().await.expect("a live socket");
    }

    /// Closes the connection when a request has come.
    async fn hang_up(mut self) {
        self.receive().await;
    }

    /// Returns true if the other side has ended the connection.
    async fn is_over(&mut self) -> bool {
        tokio::time::timeout(TIME_LIMIT, self.stream.read_buf(&mut self.said))
            .await
            .is_ok_and(|read| read.is_ok_and(|count| count == 0))
    }
}

/// Sends a request whose answer is the number.
async fn ask(wire: &Wire, number: usize) -> Result<Value, RedisError> {
    wire.ask(|bytes| request(bytes, number)).await
}

/// Sends the requests 1 and 2 as one pipeline.
async fn ask_both(wire: &Wire) -> Result<Vec<Value>, RedisError> {
    wire.ask_all(Of::Questions, 2, |bytes| (1..3).for_each(|number| request(bytes, number))).await
}

fn request(bytes: &mut Vec<u8>, number: usize) {
    bytes.extend_from_slice(&redis::cmd("ECHO").arg(number).get_packed_command());
}

fn text(text: &str) -> Value {
    Value::BulkString(text.as_bytes().to_vec())
}

fn echo(words: &[String]) -> String {
    format!("${}\r\n{}\r\n", words[1].len(), words[1])
}

#[tokio::test]
async fn answers_find_their_requests_though_clients_have_gone() {
    let (wire, mut server, _) = connected().await;
    let mut asking: Vec<_> = (0..10).map(|number| Box::pin(ask(&wire, number))).collect();
    for future in &mut asking {
        assert!(poll_immediate(future).await.is_none(), "it has been sent");
    }
    for number in [7, 3, 0] {
        drop(asking.remove(number));
    }
    let mut all = String::new();
    for number in 0..10 {
        let words = server.receive().await;
        assert_eq!(words, ["ECHO".to_owned(), number.to_string()], "as they came");
        all += &echo(&words);
    }
    // In two pieces, one of which ends within an answer, and with a push that no caller asked for.
    let (first, second) = all.split_at(all.len() / 2 + 1);
    server.say(">2\r\n+invalidate\r\n*0\r\n").await;
    server.say(first).await;
    tokio::task::yield_now().await;
    server.say(second).await;
    let answers: Vec<_> = join_all(asking).await.into_iter().map(|answer| answer.expect("answered")).collect();
    assert_eq!(answers, ["1", "2", "4", "5", "6", "8", "9"].map(text));
}

/// A worker of such a runtime runs the task that another task wakes before all others: the driver, which would write
/// each request by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn request_that_is_alone_is_written_at_once_and_many_go_together() {
    let (wire, mut server, _) = connected().await;
    let wire = Arc::new(wire);
    let mut alone = pin!(ask(&wire, 0));
    assert!(poll_immediate(alone.as_mut()).await.is_none());
    assert_eq!(wire.shared.state.lock().writes, 1, "nobody else was needed");
    let asked = Arc::clone(&wire);
    let others = tokio::spawn(async move {
        let ask = |number| {
            let wire = Arc::clone(&asked);
            tokio::spawn(async move { ask(&wire, number).await })
        };
        join_all((1..200).map(ask)).await
    });
    let mut answers = String::new();
    for _ in 0..200 {
        answers += &echo(&server.receive().await);
    }
    let writes = wire.shared.state.lock().writes;
    // 1, 1, 2, 4 and so on to 64, and two more of the driver: one before the others ask, one behind them.
    assert!(writes <= 10, "{writes} writes for 200 requests");
    server.say(&answers).await;
    assert_eq!(alone.await.expect("answered"), text("0"));
    assert!(others.await.expect("no panic").into_iter().all(|answer| answer.expect("no panic").is_ok()));
}

/// The wire writes in several pieces. With one piece for all, the server would be idle while callers ask, and callers
/// while it answers.
#[tokio::test]
async fn each_piece_is_as_large_as_all_before_it() {
    let (wire, mut server, _) = connected().await;
    let mut asking: Vec<_> = (0..64).map(|number| Box::pin(ask(&wire, number))).collect();
    for ask in &mut asking {
        assert!(poll_immediate(ask.as_mut()).await.is_none());
    }
    // 1, 1, 2, 4, 8, 16, 32: no request has waited for the driver.
    assert_eq!(wire.shared.state.lock().writes, 7);
    for number in 0..64 {
        assert_eq!(server.receive().await[1], number.to_string());
    }
}

#[tokio::test]
async fn pipeline_stays_in_one_piece() {
    let (wire, mut server, _) = connected().await;
    let asking = join(join(ask(&wire, 0), ask_both(&wire)), ask(&wire, 3));
    let answers = async {
        for number in 0..4 {
            assert_eq!(server.echo().await[1], number.to_string());
        }
    };
    let (((_, both), _), ()) = join(asking, answers).await;
    assert_eq!(both.expect("answered"), ["1", "2"].map(text));
}

/// The requests go out in one piece, because two pieces would wake the server twice.
#[tokio::test]
async fn pipeline_and_what_follows_it_go_out_together_and_are_answered_apart() {
    let (wire, mut server, _) = connected().await;
    let (all, mut last) = wire.ask_all_then(2, |bytes| (0..3).for_each(|number| request(bytes, number)));
    assert_eq!(wire.shared.state.lock().writes, 1);
    for _ in 0..2 {
        server.echo().await;
    }
    assert_eq!(all.await.expect("answered"), ["0", "1"].map(text));
    assert!(poll_immediate(&mut last).await.is_none(), "it was not answered yet");
    server.echo().await;
    assert_eq!(last.await.expect("answered"), text("2"));
    drop(server);
    let (all, last) = wire.ask_all_then(1, |bytes| (3..5).for_each(|number| request(bytes, number)));
    assert!(all.await.is_err() && last.await.is_err());
}

#[tokio::test]
async fn answers_to_a_pipeline_that_nobody_waits_for_are_nobody_elses() {
    let (wire, mut server, _) = connected().await;
    let mut both = Some(Box::pin(ask_both(&wire)));
    let mut behind = pin!(ask(&wire, 3));
    assert!(poll_immediate(both.as_mut().expect("it waits")).await.is_none());
    assert!(poll_immediate(behind.as_mut()).await.is_none());
    for _ in 1..4 {
        server.echo().await;
        tokio::task::yield_now().await;
        // The caller goes when it has one of two answers.
        drop(both.take());
    }
    assert_eq!(behind.await.expect("answered"), text("3"));
}

#[tokio::test]
async fn pipeline_that_is_answered_in_part_has_failed() {
    let (wire, mut server, _) = connected().await;
    let mut both = Box::pin(ask_both(&wire));
    assert!(poll_immediate(&mut both).await.is_none());
    server.echo().await;
    drop(server);
    assert!(both.await.is_err());
}

#[tokio::test]
async fn what_the_socket_does_not_take_goes_later() {
    let (wire, server, _) = connected().await;
    all_goes_later(wire, server).await;
}

#[cfg(feature = "tls")]
#[tokio::test]
async fn what_the_socket_does_not_take_of_what_is_encrypted_goes_later() {
    let (wire, server, _) = encrypted().await;
    tokio::time::timeout(TIME_LIMIT, all_goes_later(wire, server)).await.expect("nothing stays behind");
}

async fn all_goes_later(wire: Wire, mut server: Server) {
    let (long, answer) = ("x".repeat(8 << 20), "x".repeat(3 << 20));
    let command = |number: usize| redis::cmd("ECHO").arg(number).arg(&long).get_packed_command();
    let asking = join_all((0..3).map(|number| wire.ask(move |bytes| bytes.extend_from_slice(&command(number)))));
    let mut asking = pin!(asking);
    assert!(poll_immediate(asking.as_mut()).await.is_none());
    assert!(!wire.shared.state.lock().current.is_empty(), "the socket is full");
    let answers = async {
        for number in 0..3 {
            let words = server.receive().await;
            assert_eq!((words[1].as_str(), words[2].len()), (number.to_string().as_str(), 8 << 20));
            // The answer is longer than one read.
            server.say(&format!("${}\r\n{answer}\r\n", answer.len())).await;
        }
    };
    let (answers, ()) = join(asking, answers).await;
    assert!(answers.into_iter().all(|said| said.expect("answered") == text(&answer)));
    assert!(wire.shared.state.lock().current.capacity() <= MAX_KEPT_BYTES, "the buffer is given back");
}

/// Bytes left in the session would go out only with the next piece, and there may be none.
#[cfg(feature = "tls")]
#[tokio::test]
async fn what_counts_as_written_behind_tls_has_gone_out() {
    let (stream, mut server) = encrypted_streams().await;
    let (_reader, writer) = stream.into_split();
    let (piece, mut written) = ([b'x'; 16 << 10], 0);
    let full = loop {
        match writer.try_write(&piece) {
            Ok(count) => written += count,
            Err(error) => break error,
        }
    };
    assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
    let reading = async { server.read_exact(&mut vec![0; written]).await.map(drop) };
    tokio::time::timeout(TIME_LIMIT, reading).await.expect("all of it comes").expect("a live socket");
}

/// The asking task or the driver encrypts each request, and there is one state for all.
#[cfg(feature = "tls")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_behind_tls_find_their_requests_whoever_writes_them() {
    const CLIENTS: usize = 8;
    let (wire, mut server, _) = encrypted().await;
    let wire = Arc::new(wire);
    let answers = tokio::spawn(async move {
        for _ in 0..CLIENTS * 500 {
            server.echo().await;
        }
    });
    let clients = (0..CLIENTS).map(|client| {
        let wire = Arc::clone(&wire);
        tokio::spawn(async move {
            for number in (0..500).map(|number| number * CLIENTS + client) {
                assert_eq!(ask(&wire, number).await.expect("answered"), text(&number.to_string()));
            }
        })
    });
    let all = join_all(clients.chain([answers]));
    let ended = tokio::time::timeout(TIME_LIMIT, all).await.expect("nothing stays behind");
    assert!(ended.iter().all(Result::is_ok));
}

#[cfg(feature = "tls")]
#[tokio::test]
async fn closed_without_a_farewell_it_ends_as_without_tls() {
    let (wire, server, ends) = encrypted().await;
    let (answer, ()) = join(ask(&wire, 0), server.hang_up()).await;
    let error = answer.expect_err("the connection is gone");
    assert!(error.to_string().contains("the server has closed the connection"), "{error}");
    tokio::task::yield_now().await;
    assert!(ends.is_closed() && ends.losses() == 1);
}

#[tokio::test]
async fn closed_by_the_server_it_ends_for_all_who_wait_and_all_who_come() {
    let (wire, server, ends) = connected().await;
    let asking = async { (ask(&wire, 0).await, ends.is_closed()) };
    let ((answer, was_closed), ()) = join(asking, server.hang_up()).await;
    assert!(answer.expect_err("the connection is gone").is_io_error());
    assert!(was_closed, "whoever waits learns of it behind the flag");
    assert!(ask(&wire, 1).await.is_err());
    tokio::task::yield_now().await;
    assert_eq!(ends.losses(), 1);
}

#[tokio::test]
async fn what_nobody_can_read_ends_it() {
    for answer in ["hello\r\n", ":1\r\n:2\r\n"] {
        let (wire, mut server, ends) = connected().await;
        let answers = async {
            server.receive().await;
            server.say(answer).await;
        };
        drop(join(ask(&wire, 0), answers).await);
        assert!(server.is_over().await, "{answer}");
        assert!(ends.is_closed() && ask(&wire, 1).await.is_err());
    }
}

fn pushed(kind: &str, channel: &str, last: &str) -> String {
    format!(">3\r\n${}\r\n{kind}\r\n${}\r\n{channel}\r\n{last}", kind.len(), channel.len())
}

fn subscribe(bytes: &mut Vec<u8>, channel: &str) {
    bytes.extend_from_slice(&redis::cmd("SSUBSCRIBE").arg(channel).get_packed_command());
}

fn is_confirmation(answer: &Value) -> bool {
    matches!(answer, Value::Push { kind: redis::PushKind::SSubscribe, .. })
}

#[tokio::test]
async fn messages_are_pushed_in_order_and_answer_no_request() {
    let (wire, mut server, ends) = linked().await;
    let answers = async {
        server.receive().await;
        // The last message comes in two pieces, with two pushes of no known kind before it.
        let message = |text: &str| pushed("smessage", "a", &format!("$1\r\n{text}\r\n"));
        let all = [message("1"), "$1\r\n0\r\n".into(), ">1\r\n$5\r\nhello\r\n".into(), ">0\r\n".into(), message("2")];
        let all = all.concat();
        let (first, second) = all.split_at(all.len() - 3);
        server.say(first).await;
        tokio::task::yield_now().await;
        server.say(second).await;
        // Behind the message.
        server.receive().await;
        server.say("$1\r\n1\r\n").await;
    };
    let asking = async { (ask(&wire, 0).await, ask(&wire, 1).await) };
    let ((first, second), ()) = join(asking, answers).await;
    assert_eq!((first.expect("answered"), second.expect("answered")), (text("0"), text("1")));
    let message = |text: &str| format!("{:?}", Pushed::Message { channel: "a", message: text.as_bytes() });
    assert_eq!(ends.pushed(), [message("1"), message("2")]);
}

#[tokio::test]
async fn commands_that_subscribe_are_answered_by_what_is_pushed_or_refused() {
    let (wire, mut server, ends) = linked().await;
    let channels = ["a", "b", "c"];
    let asking =
        wire.ask_all(Of::Subscriptions, 3, |bytes| channels.iter().for_each(|channel| subscribe(bytes, channel)));
    let answers = async {
        for _ in channels {
            server.receive().await;
        }
        server.say(&pushed("ssubscribe", "a", ":1\r\n")).await;
        server.say(&pushed("smessage", "a", "$1\r\nx\r\n")).await;
        server.say("-MOVED 7 127.0.0.1:1\r\n").await;
        server.say(&pushed("ssubscribe", "c", ":2\r\n")).await;
    };
    let (answers, ()) = join(asking, answers).await;
    let answers = answers.expect("answered");
    assert!(is_confirmation(&answers[0]) && is_confirmation(&answers[2]), "{answers:?}");
    assert!(matches!(answers[1], Value::ServerError(_)), "{answers:?}");
    let pushed = [
        Pushed::Subscribed { channel: "a" },
        Pushed::Message { channel: "a", message: b"x" },
        Pushed::Subscribed { channel: "c" },
    ];
    assert_eq!(ends.pushed(), pushed.map(|pushed| format!("{pushed:?}")));
}

/// A slot leaves while the node is pinged: the ping still gets its own answer.
#[tokio::test]
async fn what_ends_unasked_answers_no_other_question() {
    let (wire, mut server, ends) = linked().await;
    server.say(&pushed("sunsubscribe", "a", ":0\r\n")).await;
    let answers = async {
        server.receive().await;
        server.say(&pushed("sunsubscribe", "b", ":0\r\n")).await;
        server.say("$1\r\n0\r\n").await;
    };
    let (answer, ()) = join(ask(&wire, 0), answers).await;
    assert_eq!(answer.expect("answered"), text("0"));
    let ended = |channel| format!("{:?}", Pushed::Unsubscribed { channel });
    assert_eq!(ends.pushed(), [ended("a"), ended("b")]);
    assert!(!ends.is_closed());
}

/// A handler that learns of a channel's end may subscribe again before the reader has gone on.
#[tokio::test]
async fn push_is_no_answer_to_a_request_that_is_sent_for_it() {
    type Asked = (Arc<WireShared>, oneshot::Receiver<Answers>);
    let (ends, asked) = (Ends::default(), Arc::new(Mutex::new(None::<Asked>)));
    let wire = Arc::new(Mutex::new(None::<Wire>));
    let (asks, by) = (Arc::clone(&asked), Arc::clone(&wire));
    let on_push = move |_: Pushed<'_>| {
        if let Some(wire) = &*by.lock() {
            let (pipeline, answers) = Requester::of_many(Of::Subscriptions, 1);
            wire.shared.send(|bytes| subscribe(bytes, "a"), [pipeline]).expect("it is open");
            asks.lock().get_or_insert((Arc::clone(&wire.shared), answers));
        }
    };
    let (dialed, mut server) = connected_by(ends.handler_with(Some(Arc::new(on_push)))).await;
    *wire.lock() = Some(dialed);
    server.say(&pushed("sunsubscribe", "a", ":0\r\n")).await;
    assert_eq!(server.receive().await, ["SSUBSCRIBE", "a"]);
    let (_, mut answers) = asked.lock().take().expect("it was heard");
    assert!(answers.try_recv().is_err(), "nothing was answered");
    *wire.lock() = None;
}

/// A slot leaves as its channel is given up: the server says so once unasked, and refuses.
#[tokio::test]
async fn answer_too_many_is_no_end_of_a_link() {
    let (wire, mut server, ends) = linked().await;
    let asking = async {
        let unsubscribe = |bytes: &mut Vec<u8>| {
            bytes.extend_from_slice(&redis::cmd("SUNSUBSCRIBE").arg("a").get_packed_command());
        };
        let ended = wire.ask_all(Of::Subscriptions, 1, unsubscribe).await.expect("answered");
        (ended, ask(&wire, 0).await.expect("answered"))
    };
    let answers = async {
        server.receive().await;
        server.say(&[&pushed("sunsubscribe", "a", ":0\r\n"), "-MOVED 7 127.0.0.1:1\r\n"].concat()).await;
        server.receive().await;
        server.say("$1\r\n0\r\n").await;
    };
    let ((ended, answer), ()) = join(asking, answers).await;
    assert!(matches!(ended[..], [Value::Push { kind: redis::PushKind::SUnsubscribe, .. }]), "{ended:?}");
    assert_eq!(answer, text("0"));
    assert!(!ends.is_closed());
}

#[tokio::test]
async fn dropped_it_closes_the_connection_and_is_no_loss() {
    let (wire, mut server, ends) = connected().await;
    drop(wire);
    assert!(server.is_over().await);
    assert_eq!((ends.is_closed(), ends.losses()), (true, 0));
}

#[test]
fn end_of_its_runtime_is_told_to_those_who_wait_elsewhere() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let (wire, _server, ends) = runtime.block_on(connected());
    let mut asking = pin!(ask(&wire, 0));
    assert!(asking.as_mut().now_or_never().is_none());
    drop(runtime);
    assert!(asking.now_or_never().is_some_and(|answer| answer.is_err()));
    assert!(ends.is_closed());
}

/// The server is broken or hostile: its answer has no end.
#[tokio::test]
async fn server_that_pushes_too_much_is_read_no_more() {
    let bulk = ("$17179869184\r\n".to_owned(), "x".repeat(1 << 20));
    let text = ("$4194000\r\n".to_owned(), "x".repeat(1 << 20));
    let list = ("*100000000\r\n".to_owned(), ":1\r\n".to_owned());
    let lists = (String::new(), format!("*1000\r\n{}", ":1\r\n".repeat(999)));
    let deep = (String::new(), "*1\r\n".to_owned());
    let line = ("+".to_owned(), "x".repeat(1000));
    for (first, then) in [bulk, text, list, lists, deep, line] {
        let (wire, mut server, ends) = connected().await;
        let says = async {
            server.receive().await;
            let mut said = first.clone().into_bytes();
            let mut sent = 0;
            // More than any limit. The client may hang up meanwhile.
            while sent < 64 << 20 && server.stream.write_all(&said).await.is_ok() {
                sent += said.len();
                said = then.clone().into_bytes();
            }
            sent
        };
        let asking = tokio::time::timeout(TIME_LIMIT, ask(&wire, 0));
        let (answer, sent) = join(asking, says).await;
        assert!(answer.expect("it has ended").is_err(), "{first}{}", &then[..1]);
        assert!(sent < 40 << 20, "{sent} bytes were taken");
        assert!(ends.is_closed());
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    println!("{}", status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or_default());
}

#[tokio::test]
async fn map_may_be_larger_than_other_answers() {
    // Larger than other answers may be, and no larger than a map may be.
    let answer = format!("*200000\r\n{}", ":1\r\n".repeat(200_000));
    for is_map in [true, false] {
        let (wire, mut server, ends) = connected().await;
        let says = async {
            server.receive().await;
            // The client may hang up meanwhile.
            server.stream.write_all(answer.as_bytes()).await.unwrap_or_default();
        };
        let _awaited = is_map.then(|| wire.await_map());
        let (answer, ()) = join(tokio::time::timeout(TIME_LIMIT, ask(&wire, 0)), says).await;
        assert_eq!((answer.expect("in time").is_ok(), ends.is_closed()), (is_map, !is_map));
    }
}
