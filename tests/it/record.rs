//! Events and spans of the crate by `tracing`, as text.

use std::fmt::{Debug, Write};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use redis_rwlock::{RedisManager, Topology};
use tokio::runtime::Handle;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::{DefaultGuard, NoSubscriber};
use tracing::{Dispatch, Event, Level, Metadata, Subscriber};

/// Record of all events of this thread while it lives, and of all spans if it wants all levels. A test whose runtime
/// has one thread sees everything.
pub struct Recorder {
    lines: Arc<Mutex<Vec<String>>>,
    _guard: DefaultGuard,
}

impl Recorder {
    pub fn start() -> Self {
        Self::at(Level::TRACE)
    }

    /// Records the events up to this level.
    pub fn at(level: Level) -> Self {
        Self::of("redis_rwlock", level)
    }

    /// Records the events of all crates.
    pub fn of_all_crates() -> Self {
        Self::of("", Level::TRACE)
    }

    fn of(target: &'static str, level: Level) -> Self {
        let lines = Arc::<Mutex<Vec<String>>>::default();
        asks_all_subscribers();
        let guard = tracing::subscriber::set_default(Lines { target, level, lines: Arc::clone(&lines) });
        Self { lines, _guard: guard }
    }

    pub fn lines(&self) -> Vec<String> {
        self.lines.lock().clone()
    }

    /// Number of the lines that contain a text.
    pub fn count(&self, text: &str) -> usize {
        self.lines.lock().iter().filter(|line| line.contains(text)).count()
    }
}

/// A manager all of whose tasks report to the recorder of this thread.
pub fn manager_here(topology: impl Into<Topology>) -> RedisManager {
    let builder = RedisManager::builder(topology).response_timeout(Duration::from_secs(2));
    builder.background_on(Handle::current()).build().expect("valid")
}

/// Makes `tracing` ask all subscribers about each event. It asks once, and remembers the answer. While there is one
/// subscriber, it asks the one of the thread that comes to the event first. That thread may belong to another test,
/// which has none. Two more subscribers, which want nothing and live as long as the process, make it ask all.
pub fn asks_all_subscribers() {
    static OTHERS: OnceLock<[Dispatch; 2]> = OnceLock::new();
    OTHERS.get_or_init(|| [(); 2].map(|()| Dispatch::new(NoSubscriber::new())));
}

struct Lines {
    /// Begin of the targets that are recorded.
    target: &'static str,
    level: Level,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with(self.target) && *metadata.level() <= self.level
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let mut line = Line(format!("span {}", attributes.metadata().name()));
        attributes.record(&mut line);
        self.lines.lock().push(line.0);
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, values: &Record<'_>) {
        let mut line = Line(String::new());
        values.record(&mut line);
        self.lines.lock().push(line.0);
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(format!("{} {}", event.metadata().level(), event.metadata().target()));
        event.record(&mut line);
        self.lines.lock().push(line.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

struct Line(String);

/// Writes fields as the usual formats do: the message as it is, texts in quotes.
impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let text = format!("{value:?}");
        assert!(!text.contains(char::is_control), "{} of a line breaks it: {text:?}", field.name());
        match field.name() {
            "message" => write!(self.0, ": {text}"),
            name => write!(self.0, " {name}={text}"),
        }
        .expect("a text takes everything");
    }
}
