//! Multiplexed connection for all scripts of a runtime: requests go out in the order in which they came, and their
//! answers come back in that order.
//!
//! A caller appends its request to the buffer that is written next. If the buffer then has half of all unanswered
//! requests, the caller writes it itself, so a lone request goes at once. Otherwise the driver writes a turn later, so
//! that the requests of other callers go along.
//!
//! Pieces that are each as large as all before them are few, and the server works on one while callers fill the next.
//! With one piece for all, server and callers would wait for each other. No task writes or wakes another with the mutex
//! held.
//!
//! [`frames`] reads a single text, which is the answer of most scripts; the library's parser reads all other answers.
//!
//! A push link has a wire of its own. The task that reads passes each push to the handler ([`Ears`]) at once, in the
//! order of arrival.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use futures_util::task::AtomicWaker;
use parking_lot::{Mutex, MutexGuard};
use redis::{RedisError, Value};
use tokio::io::ReadBuf;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

use self::frames::{Frame, Limit, MAX_BYTES, Scan, too_much};
use self::memory::Reservation;
use self::stream::{Reader, Writer};
use super::push_handler::PushHandler;
use crate::base::attempt::BoxFuture;
use crate::base::process::{self, Process};

#[cfg(feature = "tls")]
mod encrypted;
mod frames;
mod memory;
mod stream;
pub(super) use memory::AnswerMemory;
pub(super) use stream::Stream;

/// Size of one read, and smallest size of the read buffer, in bytes.
const READ_BYTES: usize = 16 << 10;
/// Largest buffer that is kept after a burst, in bytes.
const MAX_KEPT_BYTES: usize = 64 << 10;

/// Answers to a pipeline, and the answer to the request behind it.
pub(super) type AllAndLast<'a> =
    (BoxFuture<'a, Result<Vec<Value>, RedisError>>, BoxFuture<'a, Result<Value, RedisError>>);

/// Connection. It ends when this is dropped, and with the runtime that dialled it.
pub(in crate::net) struct Wire {
    shared: Arc<WireShared>,
    driver: AbortHandle,
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// State that callers and the driver share.
struct WireShared {
    /// Owner of the socket. A forked copy of the process must not write: two processes on one socket would mix their
    /// answers.
    process: Process,
    state: Mutex<WireState>,
    driver: AtomicWaker,
    /// Number of callers that wait for the map of a cluster.
    maps: AtomicUsize,
}

/// Caller that waits for the map of a cluster, counted while this exists.
struct AwaitedMap<'a>(&'a WireShared);

impl<'a> AwaitedMap<'a> {
    fn new(shared: &'a WireShared) -> Self {
        shared.maps.fetch_add(1, Ordering::AcqRel);
        Self(shared)
    }
}

impl Drop for AwaitedMap<'_> {
    fn drop(&mut self) {
        self.0.maps.fetch_sub(1, Ordering::AcqRel);
    }
}

#[derive(Default)]
struct WireState {
    /// `None` after the end: the socket closes then, however long callers keep the connection.
    writer: Option<Arc<Writer>>,
    /// Bytes to be written next, and the number of callers that wait for them.
    next: Vec<u8>,
    unsent: usize,
    /// Bytes that are being written, and how many of them are out.
    current: Vec<u8>,
    written: usize,
    is_writing: bool,
    /// True if the driver was woken and will look for something to write.
    is_driver_called: bool,
    /// Callers that wait for answers, in the order of the requests. Some have gone.
    waiting: VecDeque<Requester>,
    /// Reason of the end. Nothing goes out or comes in any more.
    end: Option<RedisError>,
    #[cfg(all(test, feature = "_testing"))]
    writes: usize,
}

/// Answer, and roughly how much memory it takes.
struct Weighed {
    value: Value,
    weight: usize,
    /// Reservation for that memory, if it is much, until the caller has taken the answer.
    reserved: Option<Reservation>,
}

/// Answers to a pipeline, and the memory that is reserved for them.
type Answers = (Vec<Value>, Vec<Reservation>);

/// Caller that waits for one answer, or for those to a pipeline.
enum Requester {
    One(oneshot::Sender<Weighed>),
    All(Box<Pipeline>),
}

struct Pipeline {
    /// Number of answers to come.
    count: usize,
    answers: Vec<Value>,
    /// Memory of the answers.
    weight: usize,
    reserved: Vec<Reservation>,
    sender: oneshot::Sender<Answers>,
    of: Of,
}

/// Content of a pipeline.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Of {
    Questions,
    /// The server answers refusals, and pushes all else.
    Subscriptions,
}

/// Complete answer, and the caller that it belongs to.
enum Ready {
    One(oneshot::Sender<Weighed>, Weighed),
    All(Box<Pipeline>),
}

impl Ready {
    /// Passes the answer on. The caller may have gone.
    fn hand_over(self) {
        match self {
            Self::One(sender, answer) => drop(sender.send(answer)),
            Self::All(pipeline) => drop(pipeline.sender.send((pipeline.answers, pipeline.reserved))),
        }
    }
}

impl WireState {
    /// Takes a push, which may be a confirmation that a caller waits for.
    fn take_pushed(&mut self, pushed: Weighed) -> io::Result<Option<Ready>> {
        match self.waiting.front() {
            Some(Requester::All(pipeline)) if pipeline.of == Of::Subscriptions => self.take_answer(pushed),
            _ => Ok(None),
        }
    }

    /// Takes the next answer, which belongs to the first caller that waits. Returns that caller if its answers are
    /// complete. `Err` if no caller waits.
    fn take_answer(&mut self, answer: Weighed) -> io::Result<Option<Ready>> {
        match self.waiting.pop_front() {
            Some(Requester::One(sender)) => Ok(Some(Ready::One(sender, answer))),
            Some(Requester::All(mut pipeline)) => {
                pipeline.answers.push(answer.value);
                pipeline.weight += answer.weight;
                pipeline.reserved.extend(answer.reserved);
                let most = Limit::Answer.weight();
                if pipeline.weight > most {
                    return Err(too_much("the memory of several answers", most));
                }
                if pipeline.answers.len() == pipeline.count {
                    return Ok(Some(Ready::All(pipeline)));
                }
                self.waiting.push_front(Requester::All(pipeline));
                Ok(None)
            }
            None => Err(io::Error::new(io::ErrorKind::InvalidData, "an answer to nothing")),
        }
    }

    fn has_something_to_write(&self) -> bool {
        !self.current.is_empty() || !self.next.is_empty()
    }

    fn forget_unsent(&mut self) {
        (self.current, self.next, self.written, self.unsent) = (Vec::new(), Vec::new(), 0, 0);
    }

    /// Returns true if the next bytes should not wait for more.
    fn is_worth_a_piece(&self) -> bool {
        !self.is_writing && self.current.is_empty() && self.unsent * 2 >= self.waiting.len()
    }

    fn writer(&self) -> io::Result<Arc<Writer>> {
        self.writer.clone().ok_or_else(|| io::ErrorKind::BrokenPipe.into())
    }
}

impl Wire {
    /// Opens a wire on a stream, and sends the first `count` questions and one before them.
    ///
    /// The questions are under way before anything is read: a server that admits no client says so and closes the
    /// connection. Its words are then the answer to the first question.
    pub(super) fn open(
        stream: Stream,
        ears: PushHandler,
        memory: &Arc<AnswerMemory>,
        count: usize,
        encode: impl FnOnce(&mut Vec<u8>),
    ) -> (Self, Opening) {
        let (reader, writer) = stream.into_split();
        let state = WireState { writer: Some(Arc::new(writer)), ..WireState::default() };
        let (process, state) = (Process::current(), Mutex::new(state));
        let shared = Arc::new(WireShared { process, state, driver: AtomicWaker::new(), maps: AtomicUsize::new(0) });
        let reservation = Reservation::none(Arc::clone(memory));
        let (sender, first) = oneshot::channel();
        let (pipeline, others) = Requester::of_many(Of::Questions, count);
        // The driver handles a fault of the stream.
        drop(shared.send(encode, [Requester::One(sender), pipeline]));
        let driver = WireDriver {
            shared: Arc::clone(&shared),
            inbox: Inbox { reader, bytes: vec![0; READ_BYTES], filled: 0, scan: Scan::default(), reservation },
            answers: Vec::new(),
            ready: Vec::new(),
            has_let_others_go_along: false,
            ears,
        };
        let opening = Opening { shared: Arc::clone(&shared), first, others };
        (Self { shared, driver: process::spawn(driver.run()).abort_handle() }, opening)
    }

    /// Sends one request, which `encode` appends, and waits for its answer. Sends at the first poll; if this future is
    /// dropped later, no caller gets the answer.
    pub(super) async fn ask(&self, encode: impl FnOnce(&mut Vec<u8>)) -> Result<Value, RedisError> {
        let (sender, answer) = oneshot::channel();
        self.shared.send(encode, [Requester::One(sender)])?;
        answer.await.map(|answer| answer.value).map_err(|_| self.shared.why())
    }

    /// Asks for the map of a cluster, which may be larger than other answers.
    pub(super) async fn ask_for_map(&self, encode: impl FnOnce(&mut Vec<u8>)) -> Result<Value, RedisError> {
        let _awaited = AwaitedMap::new(&self.shared);
        self.ask(encode).await
    }

    /// Sends `count` requests in one piece.
    pub(super) async fn ask_all(
        &self,
        of: Of,
        count: usize,
        encode: impl FnOnce(&mut Vec<u8>),
    ) -> Result<Vec<Value>, RedisError> {
        if count == 0 {
            // An empty pipeline would take the answer of another caller.
            return Ok(Vec::new());
        }
        let (pipeline, answers) = Requester::of_many(of, count);
        self.shared.send(encode, [pipeline])?;
        answers.await.map(|(answers, _)| answers).map_err(|_| self.shared.why())
    }

    /// Sends `count` requests and one more in one piece, at once. The answers to the others do not wait for the last
    /// one.
    pub(super) fn ask_all_then(&self, count: usize, encode: impl FnOnce(&mut Vec<u8>)) -> AllAndLast<'_> {
        debug_assert!(count > 0, "the others' answer would be that of the last one");
        let ((pipeline, answers), (sender, last)) = (Requester::of_many(Of::Questions, count), oneshot::channel());
        // Without a connection `send` drops the senders, and both futures report why.
        drop(self.shared.send(encode, [pipeline, Requester::One(sender)]));
        let answers = async { answers.await.map(|(answers, _)| answers).map_err(|_| self.shared.why()) };
        let last = async { last.await.map(|answer| answer.value).map_err(|_| self.shared.why()) };
        (Box::pin(answers), Box::pin(last))
    }
}

/// First questions on a wire.
pub(super) struct Opening {
    shared: Arc<WireShared>,
    first: oneshot::Receiver<Weighed>,
    others: oneshot::Receiver<Answers>,
}

impl Opening {
    /// Returns the answer to the first question, which may be all that a server says.
    pub(super) async fn first(&mut self) -> Result<Value, RedisError> {
        (&mut self.first).await.map(|answer| answer.value).map_err(|_| self.shared.why())
    }

    /// Returns the answers to the questions behind it.
    pub(super) async fn others(self) -> Result<Vec<Value>, RedisError> {
        self.others.await.map(|(answers, _)| answers).map_err(|_| self.shared.why())
    }
}

impl Requester {
    fn of_many(of: Of, count: usize) -> (Self, oneshot::Receiver<Answers>) {
        let (sender, receiver) = oneshot::channel();
        let (answers, reserved) = (Vec::with_capacity(count), Vec::new());
        (Self::All(Box::new(Pipeline { count, answers, weight: 0, reserved, sender, of })), receiver)
    }
}

impl WireShared {
    fn send<const N: usize>(
        &self,
        encode: impl FnOnce(&mut Vec<u8>),
        askers: [Requester; N],
    ) -> Result<(), RedisError> {
        if !self.process.is_current() {
            return Err(closed());
        }
        let mut state = self.state.lock();
        if let Some(end) = &state.end {
            return Err(end.clone());
        }
        encode(&mut state.next);
        state.waiting.extend(askers);
        state.unsent += N;
        if state.is_worth_a_piece() {
            // The driver handles a full socket, and a broken one.
            Self::write_once(&mut state).unwrap_or_default();
        }
        let calls = state.has_something_to_write() && !std::mem::replace(&mut state.is_driver_called, true);
        drop(state);
        if calls {
            self.driver.wake();
        }
        Ok(())
    }

    /// Writes as much as the socket takes at once. Unlocks meanwhile, so that callers can append.
    fn write_once(state: &mut MutexGuard<'_, WireState>) -> io::Result<()> {
        let writer = state.writer()?;
        if state.current.is_empty() {
            let state = &mut **state;
            std::mem::swap(&mut state.current, &mut state.next);
            state.unsent = 0;
        }
        let (mut bytes, written) = (std::mem::take(&mut state.current), state.written);
        state.is_writing = true;
        let wrote = MutexGuard::unlocked(state, || writer.try_write(&bytes[written..]));
        state.is_writing = false;
        #[cfg(all(test, feature = "_testing"))]
        {
            state.writes += 1;
        }
        state.written += *wrote.as_ref().unwrap_or(&0);
        if state.written == bytes.len() {
            state.written = 0;
            bytes.clear();
            bytes.shrink_to(MAX_KEPT_BYTES);
        }
        state.current = bytes;
        wrote.map(drop)
    }

    /// Ends the wire for all callers. The first reason counts.
    fn end(&self, reason: RedisError) {
        let mut state = self.state.lock();
        state.end.get_or_insert(reason);
        let (waiting, writer) = (std::mem::take(&mut state.waiting), state.writer.take());
        // Dropped senders wake their callers: never under the mutex.
        drop(state);
        drop((waiting, writer));
    }

    /// Returns the limit for an answer that comes now.
    fn limit(&self) -> Limit {
        if self.maps.load(Ordering::Acquire) > 0 { Limit::Map } else { Limit::Answer }
    }

    fn why(&self) -> RedisError {
        self.state.lock().end.clone().unwrap_or_else(closed)
    }
}

fn closed() -> RedisError {
    io::Error::from(io::ErrorKind::BrokenPipe).into()
}

/// Reads answers, and writes what callers left to it.
struct WireDriver {
    shared: Arc<WireShared>,
    inbox: Inbox,
    /// Answers that were read together.
    answers: Vec<Weighed>,
    ready: Vec<Ready>,
    /// True if the driver has given other tasks a turn since it was woken to write.
    has_let_others_go_along: bool,
    ears: PushHandler,
}

impl WireDriver {
    async fn run(mut self) {
        let error = poll_fn(|cx| match self.go_on(cx) {
            Ok(()) => Poll::Pending,
            Err(error) => Poll::Ready(error),
        });
        let error = error.await;
        self.end(error.into());
        self.ears.lose();
    }

    fn end(&self, reason: RedisError) {
        self.ears.close();
        self.shared.end(reason);
    }

    /// Does what can be done now. Reads in any case: a server whose output no client reads may stop reading too.
    fn go_on(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        // Registered before the look at the buffers: a request that comes meanwhile still wakes this task.
        self.shared.driver.register(cx.waker());
        self.read(cx)?;
        if !self.has_something_to_write() {
            return Ok(());
        }
        if !std::mem::replace(&mut self.has_let_others_go_along, true) {
            // Tasks that can run now come first, and may append requests.
            cx.waker().wake_by_ref();
            return Ok(());
        }
        self.has_let_others_go_along = false;
        match self.write(cx) {
            // The server has closed the connection, and may have said why: that is still to be read, and then its end.
            Err(error) if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => {
                self.shared.state.lock().forget_unsent();
                Ok(())
            }
            wrote => wrote,
        }
    }

    fn has_something_to_write(&self) -> bool {
        let mut state = self.shared.state.lock();
        // A request that woke the driver may have gone out with others.
        state.is_driver_called = state.has_something_to_write();
        state.is_driver_called
    }

    fn write(&self, cx: &mut Context<'_>) -> io::Result<()> {
        let mut state = self.shared.state.lock();
        state.is_driver_called = false;
        // The task that writes looks for more afterwards, and wakes the driver again.
        while state.has_something_to_write() && !state.is_writing {
            match WireShared::write_once(&mut state) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if state.writer()?.poll_writable(cx)?.is_pending() {
                        return Ok(());
                    }
                }
                wrote => wrote?,
            }
        }
        Ok(())
    }

    fn read(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        while self.inbox.poll_fill(cx)?.is_ready() {
            let Self { inbox, shared, answers, ready, ears, .. } = self;
            inbox.scan.limit = shared.limit();
            let (mut together, most) = (0, inbox.scan.limit.weight());
            inbox.each_frame(|frame, weight, reserved| {
                together += weight;
                if together > most {
                    return Err(too_much("the memory of answers that came together", most));
                }
                match frame {
                    Frame::Answer(value) => answers.push(Weighed { value, weight, reserved }),
                    Frame::Pushed(pushed, value) => {
                        answers.extend(value.map(|value| Weighed { value, weight, reserved }));
                        // The handler may send a request at once. This push must not count as its answer.
                        Self::hand_out(shared, answers, ready, ears)?;
                        ears.hear(pushed);
                    }
                    // Pushes of other kinds.
                    Frame::Other => {}
                }
                Ok(())
            })?;
            Self::hand_out(shared, answers, ready, ears)?;
            // Behind the pushes that came before it.
            ready.drain(..).for_each(Ready::hand_over);
        }
        Ok(())
    }

    /// Assigns answers to callers. If there are more answers than requests, none of those read together counts, except
    /// on a push link.
    fn hand_out(
        shared: &WireShared,
        answers: &mut Vec<Weighed>,
        ready: &mut Vec<Ready>,
        ears: &PushHandler,
    ) -> io::Result<()> {
        if answers.is_empty() {
            return Ok(());
        }
        let mut state = shared.state.lock();
        for answer in answers.drain(..) {
            // An unsubscription by the server looks like the answer to a caller that unsubscribes; the true answer is
            // then one too many.
            if state.waiting.is_empty() && ears.on_push() {
                continue;
            }
            let is_pushed = matches!(answer.value, Value::Push { .. });
            ready.extend(if is_pushed { state.take_pushed(answer) } else { state.take_answer(answer) }?);
        }
        Ok(())
    }
}

impl Drop for WireDriver {
    /// Ends the wire. Runs also when the runtime ends, or when the last owner drops the connection.
    fn drop(&mut self) {
        self.end(closed());
    }
}

/// Bytes that have come and were not read yet.
struct Inbox {
    reader: Reader,
    bytes: Vec<u8>,
    filled: usize,
    /// State of measuring the answer that begins at the first of these bytes.
    scan: Scan,
    /// Memory for that answer.
    reservation: Reservation,
}

impl Inbox {
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.filled == self.bytes.len() {
            // The head of a longer answer was refused. Behind the longest allowed answer lies less than one read.
            let longest = MAX_BYTES + READ_BYTES;
            if self.filled >= longest {
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, "an answer that is too long")));
            }
            self.bytes.resize((self.filled * 2).min(longest), 0);
        }
        let mut free = ReadBuf::new(&mut self.bytes[self.filled..]);
        ready!(Pin::new(&mut *self.reader).poll_read(cx, &mut free))?;
        let count = free.filled().len();
        self.filled += count;
        let end = || io::Error::new(io::ErrorKind::UnexpectedEof, "the server has closed the connection");
        Poll::Ready(if count == 0 { Err(end()) } else { Ok(()) })
    }

    fn each_frame(
        &mut self,
        mut take: impl FnMut(Frame<'_>, usize, Option<Reservation>) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut begin = 0;
        while let Some((frame, length)) = self.scan.first(&self.bytes[begin..self.filled])? {
            begin += length;
            take(frame, self.scan.weight(), self.reservation.hand_over())?;
        }
        self.reservation.change(self.scan.announced())?;
        // Moves nothing while an answer comes piece by piece: that would cost its length for each piece.
        if begin > 0 {
            self.bytes.copy_within(begin..self.filled, 0);
            self.filled -= begin;
        }
        if self.filled == 0 && self.bytes.len() > MAX_KEPT_BYTES {
            self.bytes.truncate(READ_BYTES);
            self.bytes.shrink_to_fit();
        }
        Ok(())
    }
}

#[cfg(all(test, feature = "_testing"))]
#[path = "../../../testing/unit/net/node/wire/tests.rs"]
mod tests;
