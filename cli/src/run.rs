//! Command `run`: starts a command while it holds a lock, and ends the command before the hold ends.
//!
//! A second process of this program, the [`watchdog`], leads the command's process group. It knows the deadline of the
//! hold, after which the server may grant the lock to others. If `run` is killed or stopped, the watchdog kills the
//! group in time. If the watchdog is killed or stopped, `run` replaces or continues it.

use std::io;
use std::pin::pin;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use redis_rwlock::{
    Acquire, AcquireAll, Denied, DurationText, Error, FencingToken, GroupGuard, Guard, Mode, NamedLock, ReadGuard,
    RwLockManager, WriteGuard,
};
use rustix::process::Signal;
use tokio::time::Instant;

use crate::args::RunOptions;
use crate::exit::{Code, Failure, full_text};
use crate::locks::Locks;
use crate::look;
use crate::output::Output;
use crate::settings::{self, Manager, Settings, span};
use crate::table::shown;

mod group;
mod orphans;
mod others;
mod signals;
mod stops;
mod terminal;
pub(crate) mod watchdog;

use group::Group;
use signals::Signals;

const DEFAULT_LEASE: Duration = Duration::from_secs(10);
const DEFAULT_MAX_CLOCK_SKEW: Duration = Duration::from_millis(100);
/// Time that a signal may take to arrive. Signals are sent this much before the deadline.
const REACH: Duration = Duration::from_millis(20);
/// Longest time between two deadlines that `run` sends to the watchdog.
const TELLING: Duration = Duration::from_millis(500);
/// Time of waiting after which the program names the holders to the user.
const PATIENCE: Duration = Duration::from_secs(2);
/// Limit for the release of the hold, and for the end of the manager. After this time the program exits, and the lease
/// ends the hold.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Reason for the end of a command at the deadline of the hold, if no server has reported a loss.
const UNCONFIRMED: &str = "the hold was not extended in time (no server confirmed it, or --max-hold is over)";

/// Guard of one lock, or of several.
#[derive(Debug)]
enum Hold {
    Read(ReadGuard),
    Write(WriteGuard),
    Group(GroupGuard),
}

impl Hold {
    /// Returns the token of each lock, in the order of the command line.
    fn fencing_tokens(&self) -> Vec<FencingToken> {
        match self {
            Self::Read(guard) => vec![guard.fencing_token()],
            Self::Write(guard) => vec![guard.fencing_token()],
            Self::Group(guard) => guard.locks().map(|lock| lock.fencing_token).collect(),
        }
    }

    /// Returns the time after which no process of the command may run if no server answers again.
    fn remaining(&self) -> Duration {
        let remaining = match self {
            Self::Read(guard) => guard.remaining(),
            Self::Write(guard) => guard.remaining(),
            Self::Group(guard) => guard.remaining(),
        };
        remaining.saturating_sub(REACH)
    }

    /// Waits until a server has confirmed the hold for its whole lease. A hold that was granted from the queue is
    /// shorter at first.
    async fn confirmed(&self) -> Result<(), Error> {
        match self {
            Self::Read(guard) => guard.confirmed().await,
            Self::Write(guard) => guard.confirmed().await,
            Self::Group(guard) => guard.confirmed().await,
        }
    }

    /// Waits for the loss of a hold, and describes it.
    async fn lost(&self) -> String {
        let reason = match self {
            Self::Read(guard) => guard.lost().await,
            Self::Write(guard) => guard.lost().await,
            Self::Group(guard) => {
                let loss = guard.lost().await;
                return format!("the hold of lock {} was lost: {}", shown(&loss.lock), loss.reason);
            }
        };
        format!("the hold was lost: {reason}")
    }

    async fn release(self) -> Result<(), Error> {
        match self {
            Self::Read(guard) => guard.release().await,
            Self::Write(guard) => guard.release().await,
            Self::Group(guard) => guard.release().await,
        }
    }

    /// Releases the lock so that others can get it at once, whatever `--at-least-on-success` asked for.
    async fn release_at_once(self) -> Result<(), Error> {
        match self {
            Self::Write(guard) => guard.release_at_once().await,
            // Only a write lock of its own rests.
            other => other.release().await,
        }
    }
}

/// Cause of the command's end.
#[derive(Debug)]
enum Ending {
    /// The command ended by itself, or by a signal that this program did not send.
    Own(Code),
    /// This program ended the command, for this reason.
    Ours(String),
}

pub(crate) async fn run(options: &RunOptions, settings: &Settings, output: Output) -> Result<Code, Failure> {
    let (settings, grace) = settings_of(options, settings)?;
    let at_least = options.at_least.as_ref().or(options.at_least_on_success.as_ref());
    let at_least = at_least.map(|text| span(text)).transpose()?;
    if options.locks.only().is_none() && (at_least.is_some() || options.note.is_some()) {
        let reason = "--at-least, --at-least-on-success and --note are for one lock, and not for several";
        return Err(Failure::new(Code::USAGE, reason));
    }
    let mut signals = Signals::listen().map_err(Failure::system)?;
    let manager = settings.manager()?;
    let done = match take((options, at_least), &manager, &mut signals, output).await {
        Ok(Taken::Held(hold)) => {
            let done = with_lock(hold, (options, at_least), &manager, &mut signals, grace, output).await;
            done.map(Done::Ran)
        }
        Ok(Taken::Signal(signal)) => Ok(Done::Interrupted(signal)),
        Err(failure) => Err(failure),
    };
    // The manager is closed on every path. Otherwise the server could grant the lock to a place in the queue whose
    // process has ended, which blocks others for a while.
    let closed = tokio::time::timeout(LAST_WORDS, manager.close()).await;
    let is_busy = matches!(&done, Err(failure) if failure.code == Code::BUSY);
    let has_waited = is_busy || matches!(done, Ok(Done::Interrupted(_)));
    if has_waited && !matches!(closed, Ok(Ok(()))) {
        let locks = options.locks.title();
        let place = options.locks.by_number("the queue", "their queues");
        output.tell("unreleased", &format!("{locks}: no server confirmed that this process has left {place}"));
    }
    match done {
        Ok(Done::Ran(code)) => Ok(code),
        Ok(Done::Interrupted(signal)) => Ok(Code::of_signal(signal.as_raw())),
        Err(failure) if is_busy && options.quiet => Ok(failure.code),
        Err(failure) => Err(failure),
    }
}

/// End of `run`, if it did not fail.
#[derive(Debug)]
enum Done {
    /// The command was started, and `run` exits with this code.
    Ran(Code),
    /// A signal has ended the wait for the lock.
    Interrupted(Signal),
}

/// Runs the command, and releases the lock.
async fn with_lock(
    hold: Hold,
    (options, at_least): (&RunOptions, Option<Duration>),
    manager: &Manager,
    signals: &mut Signals,
    grace: Duration,
    output: Output,
) -> Result<Code, Failure> {
    let ending = under(&hold, options, signals, grace, output).await;
    // No process of the command is left now. If the server does not answer, the lease ends the hold.
    let has_failed = !matches!(ending, Ok(Ending::Own(Code::OK)));
    let released = if has_failed && options.at_least_on_success.is_some() {
        tokio::time::timeout(LAST_WORDS, hold.release_at_once()).await
    } else {
        tokio::time::timeout(LAST_WORDS, hold.release()).await
    };
    let locks = options.locks.title();
    match (ending?, released) {
        (Ending::Ours(why), _) => {
            let silent = look::silent_servers(manager).await;
            Err(Failure::new(Code::LOST, format!("{locks}: {why}; the command was ended{silent}")))
        }
        (Ending::Own(_), Ok(Err(error @ Error::Lost { .. }))) => Err(error.into()),
        (Ending::Own(code), Ok(Ok(()))) => Ok(code),
        (Ending::Own(code), unreleased) => {
            let why = match unreleased {
                Ok(Err(error)) => full_text(&error),
                _ => format!("no answer within {}", DurationText(LAST_WORDS)),
            };
            let ends = match at_least {
                Some(_) => "it stays taken for its lease and --at-least",
                None => options.locks.by_number("its lease ends the hold", "their leases end the holds"),
            };
            let were = options.locks.by_number("was", "were");
            output.tell("unreleased", &format!("{locks} {were} not released, so {ends}: {why}"));
            Ok(code)
        }
    }
}

/// Returns the settings with the options of `run`, and the grace.
fn settings_of(options: &RunOptions, settings: &Settings) -> Result<(Settings, Duration), Failure> {
    let mut settings = settings.clone();
    let given = [("LEASE", &options.lease), ("WAIT_TIMEOUT", &options.wait), ("MAX_HOLD", &options.max_hold)];
    for (name, value) in given {
        if let Some(value) = value {
            span(value)?;
            settings.set(name, value);
        }
    }
    // `max_hold` limits forgotten guards. This guard ends with the command, so no limit is needed.
    settings.set_if_missing("MAX_HOLD", "max");
    let lease = settings.span("LEASE", DEFAULT_LEASE).min(settings.longest_lease());
    let most = most_grace(lease, settings.span("MAX_CLOCK_SKEW", DEFAULT_MAX_CLOCK_SKEW));
    let max_hold = settings.span("MAX_HOLD", Duration::MAX);
    // The margins are a large part of a short lease. So the default grace leaves more time for the answer to a renewal.
    let grace = options.grace.as_deref().map_or(Ok((lease / 3).min(most * 3 / 4).min(max_hold / 3)), span)?;
    if grace >= max_hold {
        let reason = format!(
            "a grace of {} leaves no time for the command: --max-hold is {}",
            DurationText(grace),
            DurationText(max_hold)
        );
        return Err(Failure::new(Code::USAGE, reason));
    }
    if grace > most {
        let reason = format!(
            "a grace of {} is too long for a lease of {}: {} is the most, or renewals come too late",
            DurationText(grace),
            DurationText(lease),
            DurationText(most)
        );
        return Err(Failure::new(Code::USAGE, reason));
    }
    Ok((settings, grace))
}

/// Returns the longest grace. When a renewal is due, two thirds of the lease are left, less the margins. A sixth of the
/// lease is reserved for the answer to the renewal.
fn most_grace(lease: Duration, max_clock_skew: Duration) -> Duration {
    (lease / 2).saturating_sub(lease / 100).saturating_sub(max_clock_skew).saturating_sub(REACH)
}

/// End of the wait for the lock.
#[derive(Debug)]
enum Taken {
    Held(Hold),
    Signal(Signal),
}

async fn take(
    (options, at_least): (&RunOptions, Option<Duration>),
    manager: &Manager,
    signals: &mut Signals,
    output: Output,
) -> Result<Taken, Failure> {
    let mut acquiring = pin!(async {
        let hold = match options.locks.only() {
            Some(lock) => acquire_one(options, manager, lock, at_least).await?,
            None => acquire_all(options, manager.all(options.locks.all())).await?,
        };
        if let Ok(hold) = &hold {
            hold.confirmed().await?;
        }
        Ok::<_, Error>(hold)
    });
    let mut patience = pin!(tokio::time::sleep(PATIENCE));
    let mut is_told = false;
    loop {
        tokio::select! {
            hold = &mut acquiring => return match hold? {
                Ok(hold) => Ok(Taken::Held(hold)),
                Err((name, denied)) => {
                    Err(Failure::new(Code::BUSY, format!("lock {} is taken: {denied}", shown(&name))))
                }
            },
            signal = signals.next() => if signal != Signal::CHILD {
                return Ok(Taken::Signal(signal));
            },
            () = &mut patience, if !is_told && !options.quiet => {
                is_told = true;
                tokio::spawn(tell_for_whom(Arc::clone(manager), options.locks.clone(), output));
            }
        }
    }
}

/// Hold, or the name of the lock that others hold and the refusal.
type Acquired = Result<Hold, (String, Denied)>;

async fn acquire_one(
    options: &RunOptions,
    manager: &Manager,
    lock: &NamedLock,
    at_least: Option<Duration>,
) -> Result<Acquired, Error> {
    let name = lock.name();
    let taken = match lock.mode() {
        Mode::Read => acquire(options, manager.read(name)).await?.map(Hold::Read),
        Mode::Write => {
            let write = at_least.into_iter().fold(manager.write(name), Acquire::at_least);
            acquire(options, write).await?.map(Hold::Write)
        }
    };
    Ok(taken.map_err(|denied| (name.to_owned(), denied)))
}

async fn acquire<G: Guard>(options: &RunOptions, acquire: Acquire<G>) -> Result<Result<G, Denied>, Error> {
    let acquire = match &options.note {
        Some(note) => acquire.note(note),
        None => acquire,
    };
    if options.no_wait { acquire.try_or_denied().await } else { acquire.await.map(Ok) }
}

async fn acquire_all(options: &RunOptions, acquire: AcquireAll) -> Result<Acquired, Error> {
    let taken = if options.no_wait { acquire.try_or_denied().await? } else { Ok(acquire.await?) };
    Ok(taken.map(Hold::Group).map_err(|group| (group.lock.to_string(), group.denied)))
}

/// Names the holders to the user. Runs in a task of its own, since the acquisition must not wait for these requests.
async fn tell_for_whom(manager: Manager, locks: Locks, output: Output) {
    for name in locks.all().iter().map(NamedLock::name) {
        match manager.inspect(name).await {
            // An acquisition of several locks may hold some of them already.
            Ok(view) if view.holders.iter().any(|holder| !holder.is_ours) => {
                output.tell("waiting", &format!("waiting for lock {}, held by {}", shown(name), look::holders(&view)));
            }
            Ok(_) => {}
            Err(error) => return output.tell("waiting", &format!("waiting: {}", full_text(&error))),
        }
    }
}

/// Runs the command, and ends all processes that the command leaves in its group.
async fn under(
    hold: &Hold,
    options: &RunOptions,
    signals: &mut Signals,
    grace: Duration,
    output: Output,
) -> Result<Ending, Failure> {
    let mut group = Group::start(signals).await.map_err(Failure::system)?;
    group.tell_deadline(hold);
    let secret = settings::variables_with_password();
    if !secret.is_empty() {
        let names = secret.join(", ");
        output.tell("environment", &format!("the command does not get {names}, because the password would be visible"));
    }
    let started = group.run(options, &secret, hold, signals);
    let ending = match started {
        Ok(()) => guard(&mut group, hold, &options.locks, signals, grace, output).await.map_err(Failure::system),
        Err(failure) => Err(failure),
    };
    group.clear(hold, grace).await;
    ending
}

/// Watches over the command until it ends.
async fn guard(
    group: &mut Group,
    hold: &Hold,
    locks: &Locks,
    signals: &mut Signals,
    grace: Duration,
    output: Output,
) -> io::Result<Ending> {
    loop {
        let left = group.tell_deadline(hold);
        let Some(calm) = left.checked_sub(grace).filter(|calm| !calm.is_zero()) else {
            return stop(group, hold, locks, signals, left, output).await;
        };
        group.attend_to_stops(locks, output);
        tokio::select! {
            biased;
            loss = hold.lost() => return end(group, loss).await,
            event = group.event(signals) => if let Some(status) = group.on_event(event, hold, signals, output).await? {
                // The watchdog may have killed the group while this process was stopped.
                let is_ours = group.has_killed(status);
                return Ok(if is_ours { Ending::Ours(UNCONFIRMED.to_owned()) } else { Ending::Own(code_of(status)) });
            },
            // The watchdog needs the next deadline in time, even with a short lease.
            () = tokio::time::sleep(calm.min(left / 2).min(TELLING)) => {}
        }
    }
}

/// Sends SIGTERM to the command because the deadline of the hold is near, and kills the command at the deadline. A late
/// answer of a server changes nothing, since the command has received SIGTERM already.
async fn stop(
    group: &mut Group,
    hold: &Hold,
    locks: &Locks,
    signals: &mut Signals,
    left: Duration,
    output: Output,
) -> io::Result<Ending> {
    let until = Instant::now() + left;
    group.signal(Signal::TERM);
    // A stopped command can clean up only after it continues.
    group.signal(Signal::CONT);
    output.tell(
        "stopping",
        &format!(
            "{}: {UNCONFIRMED}; the command gets SIGTERM now, and SIGKILL in {}",
            locks.title(),
            DurationText(left)
        ),
    );
    loop {
        tokio::select! {
            biased;
            loss = hold.lost() => return end(group, loss).await,
            () = tokio::time::sleep_until(until) => return end(group, UNCONFIRMED.to_owned()).await,
            event = group.event(signals) => if group.on_event(event, hold, signals, output).await?.is_some() {
                return Ok(Ending::Ours(UNCONFIRMED.to_owned()));
            },
        }
    }
}

async fn end(group: &mut Group, why: String) -> io::Result<Ending> {
    group.kill().await;
    group.ended().await?;
    Ok(Ending::Ours(why))
}

fn code_of(status: ExitStatus) -> Code {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(code), _) => Code::of_command(code),
        (None, signal) => signal.map_or(Code::SYSTEM, Code::of_signal),
    }
}
