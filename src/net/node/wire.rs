//! Multiplexed connection for all requests of a runtime. Requests are sent in the order in which callers append them.
//! The answers come back in the same order.
//!
//! A caller appends its request to a buffer. Then the caller decides whether to write this buffer to the socket at
//! once. It writes at once if at least half of all unanswered requests are in the buffer, so a lone request does not
//! wait. Otherwise the driver task writes the buffer one turn of the runtime later. Until then, other callers can
//! append more requests.
//!
//! This rule keeps the number of writes small. It also lets the server work on the requests of one write while callers
//! fill the buffer for the next write. If all requests were in a single write, server and callers would wait for each
//! other in turn. No task holds the mutex while it writes or wakes another task.
//!
//! Most scripts reply with a single text, which [`frames`] decodes. The parser of the `redis` crate decodes all other
//! replies.
//!
//! A push link also has a wire. The task that reads this wire passes each push to the [`PushHandler`] at once, in the
//! order of arrival.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::mem;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use futures_util::task::AtomicWaker;
use parking_lot::{Mutex, MutexGuard};
use redis::{RedisError, Value};
use tokio::io::ReadBuf;
use tokio::sync::oneshot::{self, error::RecvError};
use tokio::task::AbortHandle;

use self::frames::{Frame, MAX_BYTES, MAX_WEIGHT, Scan, garbage, too_much};
use self::memory::Reservation;
use self::stream::{Reader, Writer};
use super::push_handler::PushHandler;
use crate::base::attempt::BoxFuture;
use crate::base::cork::{after_step, is_corked};
use crate::base::process::{self, Process};
use crate::net::CountGuard;

#[cfg(feature = "tls")]
mod encrypted;
mod frames;
mod memory;
mod stream;
pub(super) use memory::AnswerMemory;
pub(super) use stream::Stream;

/// Number of bytes of one read, and smallest size of the read buffer.
const READ_BYTES: usize = 16 << 10;
/// Largest size at which an empty buffer is kept for later use, in bytes.
const MAX_KEPT_BYTES: usize = 64 << 10;

/// Two futures: for the answers to a pipeline, and for the answer to the request that was sent after the pipeline.
pub(super) type AllAndLast<'a> =
    (BoxFuture<'a, Result<Vec<Value>, RedisError>>, BoxFuture<'a, Result<Value, RedisError>>);

/// Multiplexed connection. It ends when this value is dropped, or when the runtime that dialled it ends.
pub(super) struct Wire {
    /// Part of the wire that sends requests and does not keep the wire open.
    pub(super) shared: Arc<WireShared>,
    driver: AbortHandle,
}

impl Deref for Wire {
    type Target = Arc<WireShared>;

    fn deref(&self) -> &Arc<WireShared> {
        &self.shared
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// State that the callers and the driver task share.
pub(super) struct WireShared {
    /// Process that opened the socket. A child process after `fork` must not write to the socket, because answers to
    /// both processes would be mixed.
    process: Process,
    state: Mutex<WireState>,
    driver: AtomicWaker,
    /// Number of callers that wait for the slot map of a cluster.
    maps: AtomicUsize,
}

#[derive(Default)]
struct WireState {
    /// Write half of the socket. `None` after the end of the connection, so that the socket closes even if callers
    /// still own this state.
    writer: Option<Arc<Writer>>,
    /// Bytes of the next write. `unsent` is the number of requests in these bytes.
    next: Vec<u8>,
    unsent: usize,
    /// Bytes of the present write. `written` is the number of these bytes that the socket has taken.
    current: Vec<u8>,
    written: usize,
    is_writing: bool,
    /// True if the requests are written after the present step of the task that sends them.
    is_write_due: bool,
    /// True if the driver was woken and has not checked for bytes to write since then.
    is_driver_called: bool,
    /// Callers whose answers have not arrived, in the order of their requests. Some of these callers may have stopped
    /// waiting.
    waiting: VecDeque<Requester>,
    /// Reason why the connection ended. Nothing is sent or received after the end.
    end: Option<RedisError>,
    #[cfg(all(test, feature = "_testing"))]
    writes: usize,
}

/// Answer, with the approximate memory that it takes.
struct Weighed {
    value: Value,
    weight: usize,
    /// Memory reservation for a large answer. It ends when the caller has taken the answer.
    reserved: Option<Reservation>,
}

/// Answers to a pipeline, with the memory reservations for them.
type Answers = (Vec<Value>, Vec<Reservation>);

/// Caller that waits for one answer, or for all answers to a pipeline.
enum Requester {
    One(oneshot::Sender<Weighed>),
    All(Box<Pipeline>),
}

struct Pipeline {
    /// Number of answers that the pipeline gets in total.
    count: usize,
    answers: Vec<Value>,
    /// Approximate memory of the answers that have arrived, in bytes.
    weight: usize,
    reserved: Vec<Reservation>,
    sender: oneshot::Sender<Answers>,
    of: Of,
}

/// Kind of the requests in a pipeline.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Of {
    Questions,
    /// Commands that subscribe or unsubscribe. The server confirms such a command with a push, and replies only if it
    /// refuses the command.
    Subscriptions,
}

/// Complete answer or answers, with the caller to which they belong.
enum Ready {
    One(oneshot::Sender<Weighed>, Weighed),
    All(Box<Pipeline>),
}

impl Ready {
    /// Sends the answer to its caller. The caller may have stopped waiting.
    fn hand_over(self) {
        match self {
            Self::One(sender, answer) => drop(sender.send(answer)),
            Self::All(pipeline) => drop(pipeline.sender.send((pipeline.answers, pipeline.reserved))),
        }
    }
}

impl WireState {
    /// Takes a push. If the first waiting caller sent subscription commands, the push is one of its answers. Otherwise
    /// the push is no answer.
    fn take_pushed(&mut self, pushed: Weighed) -> io::Result<Option<Ready>> {
        match self.waiting.front() {
            Some(Requester::All(pipeline)) if pipeline.of == Of::Subscriptions => self.take_answer(pushed),
            _ => Ok(None),
        }
    }

    /// Assigns the next answer to the first caller that waits. Returns this caller if all its answers have arrived.
    /// Fails if no caller waits.
    fn take_answer(&mut self, answer: Weighed) -> io::Result<Option<Ready>> {
        match self.waiting.pop_front() {
            Some(Requester::One(sender)) => Ok(Some(Ready::One(sender, answer))),
            Some(Requester::All(mut pipeline)) => {
                pipeline.answers.push(answer.value);
                pipeline.weight += answer.weight;
                pipeline.reserved.extend(answer.reserved);
                if pipeline.weight > MAX_WEIGHT {
                    return Err(too_much("the memory of several answers", MAX_WEIGHT));
                }
                if pipeline.answers.len() == pipeline.count {
                    return Ok(Some(Ready::All(pipeline)));
                }
                self.waiting.push_front(Requester::All(pipeline));
                Ok(None)
            }
            None => Err(garbage("an answer to nothing")),
        }
    }

    fn has_something_to_write(&self) -> bool {
        !self.current.is_empty() || !self.next.is_empty()
    }

    fn forget_unsent(&mut self) {
        (self.current, self.next, self.written, self.unsent) = (Vec::new(), Vec::new(), 0, 0);
    }

    /// Returns true if the appended requests should be written now, instead of one turn of the runtime later.
    fn is_worth_a_piece(&self) -> bool {
        !self.is_writing && self.current.is_empty() && self.unsent * 2 >= self.waiting.len()
    }

    fn writer(&self) -> io::Result<Arc<Writer>> {
        self.writer.clone().ok_or_else(|| io::ErrorKind::BrokenPipe.into())
    }
}

impl Wire {
    /// Opens a wire on a stream. Sends one first question and `count` further questions, which `encode` appends. Also
    /// returns a future for the answer to the first question, and one for the other answers.
    ///
    /// The questions are sent before anything is read. A server that accepts no more clients sends an error and closes
    /// the connection. This error is then the answer to the first question, and the only answer.
    pub(super) fn open(
        stream: Stream,
        push_handler: PushHandler,
        memory: Arc<AnswerMemory>,
        count: usize,
        encode: impl FnOnce(&mut Vec<u8>),
    ) -> (Self, impl Future<Output = Result<Value, RedisError>>, impl Future<Output = Result<Vec<Value>, RedisError>>)
    {
        let (reader, writer) = stream.into_split();
        let state = WireState { writer: Some(Arc::new(writer)), ..WireState::default() };
        let (process, state) = (Process::current(), Mutex::new(state));
        let shared = Arc::new(WireShared { process, state, driver: AtomicWaker::new(), maps: AtomicUsize::new(0) });
        let (sender, first) = oneshot::channel();
        let (pipeline, others) = Requester::of_many(Of::Questions, count);
        // The result is ignored, because the driver task handles errors of the stream.
        drop(shared.send(encode, [Requester::One(sender), pipeline]));
        let (scan, reservation) = (Scan::default(), Reservation::none(memory));
        let mut inbox = Inbox { reader, bytes: vec![0; READ_BYTES], filled: 0, scan, reservation };
        inbox.scan.has_listed_pushes = push_handler.is_subscribing();
        let driver = WireDriver {
            shared: Arc::clone(&shared),
            inbox,
            answers: Vec::new(),
            ready: Vec::new(),
            has_let_others_go_along: false,
            push_handler,
        };
        let (asking, asking_others) = (Arc::clone(&shared), Arc::clone(&shared));
        let wire = Self { shared, driver: process::spawn(driver.run()).abort_handle() };
        (wire, async move { asking.one(first.await) }, async move { asking_others.all(others.await) })
    }

    /// Sends `count` requests, which `encode` appends, with one write.
    pub(super) async fn ask_all(
        &self,
        of: Of,
        count: usize,
        encode: impl FnOnce(&mut Vec<u8>),
    ) -> Result<Vec<Value>, RedisError> {
        if count == 0 {
            // A pipeline without requests would take the answer of another caller.
            return Ok(Vec::new());
        }
        let (pipeline, answers) = Requester::of_many(of, count);
        self.send(encode, [pipeline])?;
        self.all(answers.await)
    }

    /// Sends `count` requests and one last request with one write, before this function returns. The first future
    /// resolves without waiting for the answer to the last request.
    pub(super) fn ask_all_then(&self, count: usize, encode: impl FnOnce(&mut Vec<u8>)) -> AllAndLast<'_> {
        debug_assert!(count > 0, "the others' answer would be that of the last one");
        let ((pipeline, answers), (sender, last)) = (Requester::of_many(Of::Questions, count), oneshot::channel());
        // If the connection has ended, `send` drops the senders. Then both futures return the reason of the end.
        drop(self.send(encode, [pipeline, Requester::One(sender)]));
        (Box::pin(async { self.all(answers.await) }), Box::pin(async { self.one(last.await) }))
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
    /// Raises the size limit of answers until the guard is dropped. The caller waits for the slot map of a cluster,
    /// which may be larger than other answers.
    pub(super) fn await_map(&self) -> CountGuard<'_> {
        CountGuard::new(&self.maps, 1)
    }

    /// Sends the request that `encode` appends, and waits for its answer. The request is sent when the future is polled
    /// for the first time. If the future is dropped after that, no caller gets the answer.
    pub(super) async fn ask(self: &Arc<Self>, encode: impl FnOnce(&mut Vec<u8>)) -> Result<Value, RedisError> {
        let (sender, answer) = oneshot::channel();
        self.send(encode, [Requester::One(sender)])?;
        self.one(answer.await)
    }

    /// Returns the answer to one request. If none came, returns the reason of the end of the wire.
    fn one(&self, answer: Result<Weighed, RecvError>) -> Result<Value, RedisError> {
        answer.map(|answer| answer.value).map_err(|_| self.why())
    }

    /// Returns all answers to a pipeline, as [`one`](Self::one) does for one answer.
    fn all(&self, answers: Result<Answers, RecvError>) -> Result<Vec<Value>, RedisError> {
        answers.map(|(answers, _)| answers).map_err(|_| self.why())
    }

    fn send<const N: usize>(
        self: &Arc<Self>,
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
        if !is_corked() {
            self.write(state);
        } else if !mem::replace(&mut state.is_write_due, true) {
            drop(state);
            let shared = Arc::clone(self);
            after_step(move || shared.write(shared.state.lock()));
        }
        Ok(())
    }

    /// Writes the appended requests, or lets the driver write them one turn of the runtime later.
    fn write(&self, mut state: MutexGuard<'_, WireState>) {
        state.is_write_due = false;
        if state.is_worth_a_piece() {
            // The result is ignored, because the driver handles a full socket and a broken socket.
            Self::write_once(&mut state).unwrap_or_default();
        }
        let calls = state.has_something_to_write() && !mem::replace(&mut state.is_driver_called, true);
        drop(state);
        if calls {
            self.driver.wake();
        }
    }

    /// Writes as many bytes as the socket takes now. Unlocks the state during the write, so that callers can append
    /// requests.
    fn write_once(state: &mut MutexGuard<'_, WireState>) -> io::Result<()> {
        let writer = state.writer()?;
        if state.current.is_empty() {
            let state = &mut **state;
            mem::swap(&mut state.current, &mut state.next);
            state.unsent = 0;
        }
        let (mut bytes, written) = (mem::take(&mut state.current), state.written);
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

    /// Ends the wire for all callers. If the wire has ended before, the earlier reason stays.
    fn end(&self, reason: RedisError) {
        let mut state = self.state.lock();
        state.end.get_or_insert(reason);
        let (waiting, writer) = (mem::take(&mut state.waiting), state.writer.take());
        // A dropped sender wakes its caller, so the mutex is released first.
        drop(state);
        drop((waiting, writer));
    }

    fn why(&self) -> RedisError {
        self.state.lock().end.clone().unwrap_or_else(closed_error)
    }
}

fn closed_error() -> RedisError {
    io::Error::from(io::ErrorKind::BrokenPipe).into()
}

/// Task that reads answers. It also writes the requests that callers have appended without writing them.
struct WireDriver {
    shared: Arc<WireShared>,
    inbox: Inbox,
    /// Answers from the present read that have not been assigned to callers yet.
    answers: Vec<Weighed>,
    ready: Vec<Ready>,
    /// True if other tasks have had a turn of the runtime since requests were left in the buffer.
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

    /// Reads and writes as much as is possible now. Reads even if there are bytes to write, because a server may stop
    /// reading while its client does not read.
    fn go_on(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        // The waker is registered before the check of the buffers. So a request that is appended after the check wakes
        // this task again.
        self.shared.driver.register(cx.waker());
        self.read(cx)?;
        if !self.has_something_to_write() {
            return Ok(());
        }
        if !mem::replace(&mut self.has_let_others_go_along, true) {
            // Other tasks run first, because they may append further requests for the same write.
            cx.waker().wake_by_ref();
            return Ok(());
        }
        self.has_let_others_go_along = false;
        match self.write(cx) {
            // The server has closed the connection. It may have sent the reason before that, so the driver goes on
            // reading until the end of the stream.
            Err(error) if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => {
                self.shared.state.lock().forget_unsent();
                Ok(())
            }
            wrote => wrote,
        }
    }

    fn has_something_to_write(&self) -> bool {
        let mut state = self.shared.state.lock();
        // A caller may have written the request for which this driver was woken.
        state.is_driver_called = state.has_something_to_write();
        state.is_driver_called
    }

    fn write(&self, cx: &mut Context<'_>) -> io::Result<()> {
        let mut state = self.shared.state.lock();
        state.is_driver_called = false;
        // If a caller is writing now, the loop ends. That caller checks for more bytes after its write, and wakes the
        // driver again.
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
            inbox.scan.is_map_awaited = shared.maps.load(Ordering::Acquire) > 0;
            let (mut together, most) = (0, inbox.scan.max_weight());
            inbox.each_frame(|frame, weight, reserved| {
                together += weight;
                if together > most {
                    return Err(too_much("the memory of answers that came together", most));
                }
                match frame {
                    Frame::Answer(value) => answers.push(Weighed { value, weight, reserved }),
                    Frame::Pushed(pushed, value) => {
                        answers.extend(value.map(|value| Weighed { value, weight, reserved }));
                        // The answers before this push are assigned to their callers first. The handler may send a
                        // request, and this push must not count as the answer to that request.
                        Self::hand_out(shared, answers, ready, push_handler)?;
                        push_handler.on_push(pushed);
                    }
                    // Push that is not about a channel.
                    Frame::Other => {}
                }
                Ok(())
            })?;
            Self::hand_out(shared, answers, ready, push_handler)?;
            // Callers get their answers last, after the handler has seen all pushes of this read. So no caller acts on
            // an answer before the handler has seen an earlier push.
            ready.drain(..).for_each(Ready::hand_over);
        }
        Ok(())
    }

    /// Assigns answers to the callers that wait. Fails if there are more answers than requests, and then no caller gets
    /// an answer from this read. On a push link, surplus answers are ignored.
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
            // If the server ends a subscription itself, its push looks like the answer to a caller that unsubscribes.
            // The true answer is then a surplus answer, which is ignored here.
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
    /// Ends the wire. This also happens when the runtime ends, or when the last owner drops the connection.
    fn drop(&mut self) {
        self.end(closed_error());
    }
}

/// Buffer for bytes that were received and not decoded yet.
struct Inbox {
    reader: Reader,
    bytes: Vec<u8>,
    filled: usize,
    /// Progress of the measurement of the answer that begins at the first byte.
    scan: Scan,
    /// Memory reservation for the answer that begins at the first byte.
    reservation: Reservation,
}

impl Inbox {
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.filled == self.bytes.len() {
            // A longer answer is refused as soon as its length is known. So the buffer needs space for the longest
            // allowed answer and one read.
            let longest = MAX_BYTES + READ_BYTES;
            if self.filled >= longest {
                return Poll::Ready(Err(garbage("an answer that is too long")));
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
            take(frame, self.scan.weight, self.reservation.hand_over())?;
        }
        self.reservation.change(self.scan.announced)?;
        // Decoded bytes are removed only if a whole answer was decoded. While one long answer arrives in pieces, no
        // bytes are moved, because each piece would move all earlier pieces again.
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
