//! Worker processes, which the parent process starts, stops and kills.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::sync::MutexGuard;
use std::time::Instant;

use rustix::process::{Pid, kill_process};

use super::*;
use crate::history::History;
use crate::worker::ORDER;

/// Limit for the end of a worker, which first finishes its work and releases its holds.
const STOPPING: Duration = Duration::from_secs(20);
/// Limit for the start of a worker. A quorum grants nothing for a lease after its start, and a fault may delay the
/// connection.
const STARTING: Duration = Duration::from_secs(30);

/// Process that has ended.
#[derive(Clone, Debug)]
struct Past {
    worker: usize,
    journal: PathBuf,
    ended: Moment,
}

/// Running process.
#[derive(Debug)]
struct Member {
    child: Child,
    journal: PathBuf,
}

#[derive(Debug)]
struct State {
    /// Processes by worker. `None` for a killed worker without a successor.
    members: Vec<Option<Member>>,
    past: Vec<Past>,
    started: u64,
    /// Workers that were stopped by SIGSTOP, each with the begin and the end of the stop.
    stops: Vec<(usize, Moment, Moment)>,
}

/// All workers.
#[derive(Debug)]
pub(crate) struct Crew {
    order: Order,
    dir: PathBuf,
    state: Mutex<State>,
}

/// History of one process, and its worker number.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) worker: usize,
    pub(crate) history: History,
    pub(crate) ended: Moment,
}

impl Crew {
    /// Starts the workers, which write their journals into `dir`.
    pub(crate) fn start(count: usize, order: Order, dir: &Path) -> Result<Self> {
        let members = (0..count).map(|_| None).collect();
        let state = Mutex::new(State { members, past: Vec::new(), started: 0, stops: Vec::new() });
        let crew = Self { order, dir: dir.to_owned(), state };
        crew.replace()?;
        Ok(crew)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn len(&self) -> usize {
        self.state().members.len()
    }

    /// Starts a successor for each killed worker, and waits until all workers are at work. The calling thread must live
    /// as long as the run, because the kernel ends a worker with the thread that started it.
    pub(crate) fn replace(&self) -> Result<()> {
        let mut state = self.state();
        for worker in 0..state.members.len() {
            let has_ended = |member: &mut Member| !matches!(member.child.try_wait(), Ok(None));
            if state.members[worker].as_mut().is_some_and(has_ended) {
                return Err(format!("worker {worker} has ended by itself").into());
            }
            if state.members[worker].is_none() {
                let number = state.started;
                state.started += 1;
                state.members[worker] = Some(self.spawn(number)?);
            }
        }
        let journals: Vec<_> = state.members.iter().flatten().map(|member| member.journal.clone()).collect();
        drop(state);
        for journal in journals {
            let text = || fs::read_to_string(&journal).unwrap_or_default();
            let is_ready = || text().lines().any(|line| line.starts_with("I "));
            wait_for("a worker that is at work", STARTING, || is_ready().then_some(()))?;
        }
        Ok(())
    }

    fn spawn(&self, number: u64) -> Result<Member> {
        let journal = self.dir.join(format!("worker-{number}"));
        let order =
            Order { seed: self.order.seed.wrapping_add(number), journal: journal.clone(), ..self.order.clone() };
        let mut command = Command::new(env::current_exe()?);
        let child = command.env(ORDER, order.to_words()).stdin(Stdio::piped()).stdout(Stdio::null()).spawn()?;
        Ok(Member { child, journal })
    }

    /// Kills a worker at any point of its work.
    pub(crate) fn kill(&self, worker: usize) -> Result<()> {
        let mut state = self.state();
        let Some(mut member) = state.members[worker].take() else { return Ok(()) };
        // The clock is read before the kill, since the process certainly ran until that moment.
        let ended = now();
        member.child.kill()?;
        member.child.wait()?;
        state.past.push(Past { worker, journal: member.journal, ended });
        Ok(())
    }

    /// Stops a worker with SIGSTOP for the given time.
    pub(crate) fn stop_for(&self, worker: usize, how_long: Duration) -> Result<()> {
        let signal = |signal| match &self.state().members[worker] {
            Some(member) => kill_process(Pid::from_child(&member.child), signal),
            None => Ok(()),
        };
        let from = now();
        signal(Signal::STOP)?;
        std::thread::sleep(how_long);
        signal(Signal::CONT)?;
        self.state().stops.push((worker, from, now()));
        Ok(())
    }

    /// Stops all workers, and returns the histories of all processes.
    pub(crate) fn finish(&self) -> Result<Vec<Told>> {
        let mut state = self.state();
        let state = &mut *state;
        for member in state.members.iter_mut().flatten() {
            drop(member.child.stdin.take());
        }
        let deadline = Instant::now() + STOPPING;
        for (worker, member) in state.members.iter_mut().enumerate() {
            let Some(mut member) = member.take() else { continue };
            while member.child.try_wait()?.is_none() {
                if Instant::now() > deadline {
                    eprintln!("worker {worker} did not stop in time");
                    member.child.kill()?;
                    member.child.wait()?;
                    break;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            state.past.push(Past { worker, journal: member.journal, ended: now() });
        }
        let mut told = Vec::new();
        for past in &state.past {
            let mut history = History::read(&past.journal, past.ended)?;
            let stops = state.stops.iter().filter(|(worker, ..)| *worker == past.worker);
            history.stalls.extend(stops.map(|(_, from, to)| (*from, *to)));
            told.push(Told { worker: past.worker, history, ended: past.ended });
        }
        Ok(told)
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        for member in self.state().members.iter_mut().flatten() {
            // This fails only when the process has ended already.
            drop(member.child.kill());
            drop(member.child.wait());
        }
    }
}
