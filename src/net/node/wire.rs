//! Multiplexed connection for all scripts of a runtime. Requests are sent in the order of their callers, and answers
//! come back in that order.
//!
//! A caller appends its request to the next buffer. If this buffer has at least half of all unanswered requests, the
//! caller writes it at once. So a lone request does not wait. Otherwise the driver writes the buffer one turn of the
//! runtime later, with the requests that other callers append meanwhile.
//!
//! This rule keeps the number of writes small. The server works on one piece while callers fill the next one. With a
//! single piece for all requests, server and callers would wait for each other. No task holds the mutex while it
//! writes, or while it wakes another task.
//!
//! [`frames`] decodes a reply that is a single text, as most scripts send it. The parser of the `redis` crate decodes
//! all other replies.
//!
//! A push link has a wire of its own. The task that reads it passes each push to the [`PushHandler`] at once, in the
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

/// Futures of the answers to a pipeline, and of the answer to the request behind it.
pub(super) type AllAndLast<'a> =
    (BoxFuture<'a, Result<Vec<Value>, RedisError>>, BoxFuture<'a, Result<Value, RedisError>>);

/// Connection. It ends when this value is dropped, or with the runtime that dialled it.
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
    /// Process that owns the socket. A forked copy must not write: two processes on one socket would mix their answers.
    process: Process,
    state: Mutex<WireState>,
    driver: AtomicWaker,
    /// Number of callers that wait for the slot map of a cluster.
    maps: AtomicUsize,
}

/// Caller that waits for the slot map of a cluster. The wire counts it while this value exists.
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
    /// `None` after the end, so that the socket closes even if callers keep the connection.
    writer: Option<Arc<Writer>>,
    /// Bytes of the next write, and the number of callers whose requests they contain.
    next: Vec<u8>,
    unsent: usize,
    /// Bytes of the present write, and how many of them the socket has taken.
    current: Vec<u8>,
    written: usize,
    is_writing: bool,
    /// True if the driver was woken and will check for bytes to write.
    is_driver_called: bool,
    /// Callers that wait for answers, in the order of their requests. Some may have stopped waiting.
    waiting: VecDeque<Requester>,
    /// Reason why the connection ended. Nothing is sent or received after that.
    end: Option<RedisError>,
    #[cfg(all(test, feature = "_testing"))]
    writes: usize,
}

/// Answer, and roughly how much memory it takes.
struct Weighed {
    value: Value,
    weight: usize,
    /// Reservation for that memory if it is large, until the caller has taken the answer.
    reserved: Option<Reservation>,
}

/// Answers to a pipeline, and the memory that is reserved for them.
type Answers = (Vec<Value>, Vec<Reservation>);

/// Caller that waits for one answer, or for the answers to a pipeline.
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
    /// Subscription commands. The server replies to them only if it refuses; it confirms with pushes.
    Subscriptions,
}

/// Complete answer, and the caller that it belongs to.
enum Ready {
    One(oneshot::Sender<Weighed>, Weighed),
    All(Box<Pipeline>),
}

impl Ready {
    /// Sends the answer to its caller, which may have stopped waiting.
    fn hand_over(self) {
        match self {
            Self::One(sender, answer) => drop(sender.send(answer)),
            Self::All(pipeline) => drop(pipeline.sender.send((pipeline.answers, pipeline.reserved))),
        }
    }
}

impl WireState {
    /// Takes a push. It may be the confirmation that a caller waits for.
    fn take_pushed(&mut self, pushed: Weighed) -> io::Result<Option<Ready>> {
        match self.waiting.front() {
            Some(Requester::All(pipeline)) if pipeline.of == Of::Subscriptions => self.take_answer(pushed),
            _ => Ok(None),
        }
    }

    /// Assigns the next answer to the first caller that waits. Returns this caller if its answers are complete. Fails
    /// if no caller waits.
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

    /// Returns true if the waiting bytes should be written now, without waiting for more.
    fn is_worth_a_piece(&self) -> bool {
        !self.is_writing && self.current.is_empty() && self.unsent * 2 >= self.waiting.len()
    }

    fn writer(&self) -> io::Result<Arc<Writer>> {
        self.writer.clone().ok_or_else(|| io::ErrorKind::BrokenPipe.into())
    }
}

impl Wire {
    /// Opens a wire on a stream, and sends one first question and `count` others.
    ///
    /// The questions are sent before anything is read. A server that admits no client reports that and closes the
    /// connection. Its report is then the answer to the first question.
    pub(super) fn open(
        stream: Stream,
        push_handler: PushHandler,
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
            push_handler,
        };
        let opening = Opening { shared: Arc::clone(&shared), first, others };
        (Self { shared, driver: process::spawn(driver.run()).abort_handle() }, opening)
    }

    /// Sends the request that `encode` appends, and waits for its answer. The request is sent at the first poll. If
    /// this future is dropped after that, no caller gets the answer.
    pub(super) async fn ask(&self, encode: impl FnOnce(&mut Vec<u8>)) -> Result<Value, RedisError> {
        let (sender, answer) = oneshot::channel();
        self.shared.send(encode, [Requester::One(sender)])?;
        answer.await.map(|answer| answer.value).map_err(|_| self.shared.why())
    }

    /// Asks for the slot map of a cluster, which may be larger than other answers.
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
            // Without requests, the pipeline would take the answer of another caller.
            return Ok(Vec::new());
        }
        let (pipeline, answers) = Requester::of_many(of, count);
        self.shared.send(encode, [pipeline])?;
        answers.await.map(|(answers, _)| answers).map_err(|_| self.shared.why())
    }

    /// Sends `count` requests and one last request in one piece, at once. The answers to the first `count` do not wait
    /// for the last answer.
    pub(super) fn ask_all_then(&self, count: usize, encode: impl FnOnce(&mut Vec<u8>)) -> AllAndLast<'_> {
        debug_assert!(count > 0, "the others' answer would be that of the last one");
        let ((pipeline, answers), (sender, last)) = (Requester::of_many(Of::Questions, count), oneshot::channel());
        // Without a connection, `send` drops the senders. Both futures then return the reason.
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
    /// Returns the answer to the first question. A server that admits no client sends no other answer.
    pub(super) async fn first(&mut self) -> Result<Value, RedisError> {
        (&mut self.first).await.map(|answer| answer.value).map_err(|_| self.shared.why())
    }

    /// Returns the answers to the other questions.
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
        requesters: [Requester; N],
    ) -> Result<(), RedisError> {
        if !self.process.is_current() {
            return Err(closed_error());
        }
        let mut state = self.state.lock();
        if let Some(end) = &state.end {
            return Err(end.clone());
        }
        encode(&mut state.next);
        state.waiting.extend(requesters);
        state.unsent += N;
        if state.is_worth_a_piece() {
            // The driver handles a full socket and a broken one.
            Self::write_once(&mut state).unwrap_or_default();
        }
        let calls = state.has_something_to_write() && !std::mem::replace(&mut state.is_driver_called, true);
        drop(state);
        if calls {
            self.driver.wake();
        }
        Ok(())
    }

    /// Writes as many bytes as the socket takes now. Unlocks the state during the write, so that callers can append.
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

    /// Ends the wire for all callers. Later calls do not change the reason.
    fn end(&self, reason: RedisError) {
        let mut state = self.state.lock();
        state.end.get_or_insert(reason);
        let (waiting, writer) = (std::mem::take(&mut state.waiting), state.writer.take());
        // A dropped sender wakes its caller, which must not happen under the mutex.
        drop(state);
        drop((waiting, writer));
    }

    /// Returns the size limit for the next answer. It is larger while a caller waits for a slot map.
    fn limit(&self) -> Limit {
        if self.maps.load(Ordering::Acquire) > 0 { Limit::Map } else { Limit::Answer }
    }

    fn why(&self) -> RedisError {
        self.state.lock().end.clone().unwrap_or_else(closed_error)
    }
}

fn closed_error() -> RedisError {
    io::Error::from(io::ErrorKind::BrokenPipe).into()
}

/// Task that reads answers, and writes the bytes that callers have left in the buffers.
struct WireDriver {
    shared: Arc<WireShared>,
    inbox: Inbox,
    /// Answers that were read together.
    answers: Vec<Weighed>,
    ready: Vec<Ready>,
    /// True if other tasks had a turn since the driver was woken to write.
    has_let_others_go_along: bool,
    push_handler: PushHandler,
}

impl WireDriver {
    async fn run(mut self) {
        let error = poll_fn(|cx| match self.go_on(cx) {
            Ok(()) => Poll::Pending,
            Err(error) => Poll::Ready(error),
        });
        let error = error.await;
        self.end(error.into());
        self.push_handler.lose();
    }

    fn end(&self, reason: RedisError) {
        self.push_handler.close();
        self.shared.end(reason);
    }

    /// Reads and writes as far as possible now. Always reads: a server whose output no client reads may stop reading
    /// too.
    fn go_on(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        // Registered before the check of the buffers, so that a request which comes meanwhile still wakes this task.
        self.shared.driver.register(cx.waker());
        self.read(cx)?;
        if !self.has_something_to_write() {
            return Ok(());
        }
        if !std::mem::replace(&mut self.has_let_others_go_along, true) {
            // Other tasks that can run come first, since they may append requests.
            cx.waker().wake_by_ref();
            return Ok(());
        }
        self.has_let_others_go_along = false;
        match self.write(cx) {
            // The server has closed the connection. It may have sent the reason first, so the driver goes on reading
            // until the end.
            Err(error) if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => {
                self.shared.state.lock().forget_unsent();
                Ok(())
            }
            wrote => wrote,
        }
    }

    fn has_something_to_write(&self) -> bool {
        let mut state = self.shared.state.lock();
        // Another write may have taken the request that woke the driver.
        state.is_driver_called = state.has_something_to_write();
        state.is_driver_called
    }

    fn write(&self, cx: &mut Context<'_>) -> io::Result<()> {
        let mut state = self.shared.state.lock();
        state.is_driver_called = false;
        // A task that is writing now checks for more bytes afterwards, and wakes the driver again.
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
            let Self { inbox, shared, answers, ready, push_handler, .. } = self;
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
                        // Assigned before the handler runs. The handler may send a request, and this push must not
                        // become its answer.
                        Self::hand_out(shared, answers, ready, push_handler)?;
                        push_handler.on_push(pushed);
                    }
                    // Push of another kind.
                    Frame::Other => {}
                }
                Ok(())
            })?;
            Self::hand_out(shared, answers, ready, push_handler)?;
            // Callers get their answers after the handler has seen the pushes that came before.
            ready.drain(..).for_each(Ready::hand_over);
        }
        Ok(())
    }

    /// Assigns answers to callers. Fails if there are more answers than requests; then no caller gets an answer of this
    /// read. On a push link, surplus answers are ignored instead.
    fn hand_out(
        shared: &WireShared,
        answers: &mut Vec<Weighed>,
        ready: &mut Vec<Ready>,
        push_handler: &PushHandler,
    ) -> io::Result<()> {
        if answers.is_empty() {
            return Ok(());
        }
        let mut state = shared.state.lock();
        for answer in answers.drain(..) {
            // An unsubscription by the server looks like the answer to a caller that unsubscribes. The true answer is
            // then left over, and ignored here.
            if state.waiting.is_empty() && push_handler.is_subscribing() {
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
        self.end(closed_error());
    }
}

/// Bytes that were received and are not decoded yet.
struct Inbox {
    reader: Reader,
    bytes: Vec<u8>,
    filled: usize,
    /// Progress in measuring the answer that begins at the first byte.
    scan: Scan,
    /// Memory reservation for that answer.
    reservation: Reservation,
}

impl Inbox {
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.filled == self.bytes.len() {
            // A longer answer was refused at its head. So the longest allowed answer and one read are enough.
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
        self.reservation.change(self.scan.announced_bytes())?;
        // Moves nothing while an answer arrives in pieces: each piece would move all bytes that came before it.
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
