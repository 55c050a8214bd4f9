//! Shows who holds the lock, kills one worker in the middle of an update, and ends the run.

use std::io;
use std::process;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis_rwlock::{FencingToken, HolderView, LockView, MemoryManager, Mode, RedisManager, RwLockManager};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use crate::config::{Config, Look};
use crate::event::Event;
use crate::report::{Report, span};
use crate::store::{Fields, MemoryStore, Servers, Store, StoreError};
use crate::team::{self, Member};
use crate::{LEASE, LOCK, Result};

/// Between two looks at the lock.
const PERIOD: Duration = Duration::from_millis(300);
/// How long the victim is shown in the middle of its update before it is killed.
const SHOWN_HANGING: Duration = Duration::from_millis(800);
/// How long the run may last beyond its time until somebody has taken over from the victim.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long workers may take to stop.
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// How far the death of the last worker has come.
enum Death {
    Ahead,
    Ordered,
    Hangs {
        since: Instant,
        version: u64,
        token: FencingToken,
    },
    Killed {
        at: Instant,
        version: u64,
        token: FencingToken,
    },
    /// Somebody finished its update.
    TakenOver {
        token: FencingToken,
    },
}

struct Parent {
    started: Instant,
    duration: Duration,
    /// Only to look at the lock.
    locks: Arc<dyn RwLockManager>,
    store: Arc<dyn Store>,
    team: Vec<Member>,
    news: mpsc::UnboundedReceiver<(usize, Event)>,
    death: Death,
    report: Report,
}

/// Runs the whole program. Whether the invariant held.
pub(crate) async fn run(servers: Option<Servers>, workers: usize, duration: Duration) -> Result<bool> {
    let (sender, news) = mpsc::unbounded_channel();
    let locks: Arc<dyn RwLockManager>;
    let store: Arc<dyn Store>;
    let team;
    let place;
    match &servers {
        None => {
            place = "runtimes of this process, locks in memory";
            let memory = MemoryManager::builder().label("parent").build()?;
            store = Arc::new(MemoryStore::default());
            team = team::runtimes(workers, &memory, &store, &sender)?;
            locks = Arc::new(memory);
        }
        Some(servers) => {
            place = match servers {
                Servers::Node(_) => "processes, locks on one server",
                Servers::Cluster(_) => "processes, locks on a cluster",
            };
            locks = Arc::new(RedisManager::builder(servers.topology()).label("parent").connect().await?);
            // New for each run, so that runs do not count each other's updates.
            let data_key = format!("config_service:{}-{:08x}", process::id(), fastrand::u32(..));
            store = servers.store(&data_key).await?;
            team = team::processes(workers, servers, &data_key, &sender)?;
        }
    }
    // From here on only workers have one: the news end when the last of them does.
    drop(sender);
    println!("{workers} workers, each with a manager of its own: {place}; lock {LOCK:?}, lease {LEASE:?}");
    let report = Report::new(team.iter().map(|member| member.name.clone()));
    let parent = Parent { started: Instant::now(), duration, locks, store, team, news, death: Death::Ahead, report };
    parent.show().await
}

impl Parent {
    async fn show(mut self) -> Result<bool> {
        let mut ticks = interval(PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while !self.is_over() {
            tokio::select! {
                news = self.news.recv() => match news {
                    Some((number, event)) => self.hear(number, event),
                    None => break, // all workers have died, which the report tells
                },
                _ = ticks.tick() => {
                    self.show_lock().await;
                    self.go_on_with_death().await?;
                }
            }
        }
        self.say("the workers stop");
        self.stop_workers().await;
        self.check().await
    }

    fn is_over(&self) -> bool {
        let limit = match self.death {
            Death::TakenOver { .. } => self.duration,
            _ => self.duration + PATIENCE,
        };
        self.started.elapsed() >= limit
    }

    fn say(&self, what: &str) {
        println!("{:5.1} s  {what}", self.started.elapsed().as_secs_f64());
    }

    /// Who holds the lock, as the server sees it, beside what somebody sees who reads the configuration without it.
    async fn show_lock(&mut self) {
        match (self.locks.inspect(LOCK).await, self.store.peek().await) {
            (Ok(lock), Ok(fields)) => {
                self.report.saw_token_of_resource(&fields);
                self.say(&format!("{LOCK}: {:<54} | {}", holders(&lock), seen_from_outside(&fields)));
            }
            (Err(error), _) => self.say(&format!("{LOCK}: not to be seen: {error}")),
            (_, Err(error)) => self.say(&format!("{LOCK}: configuration not to be seen: {error}")),
        }
    }

    fn hear(&mut self, number: usize, event: Event) {
        self.report.hear(number, &event);
        let Some(name) = self.team.get(number).map(|member| member.name.clone()) else {
            return;
        };
        match event {
            Event::Read { .. } | Event::Began { .. } | Event::Updated { .. } | Event::Stopped => {}
            Event::Hangs { version, token } => {
                self.say(&format!("{name} is in the middle of its update to v{version}, and hangs there"));
                self.death = Death::Hangs { since: Instant::now(), version, token };
            }
            Event::FoundHalf { version, .. } => self.say(&format!("{name} reads, and finds v{version} half done")),
            Event::Finished { version, .. } => self.hear_of_finished(&name, version),
            Event::Lost { reason } => self.say(&format!("{name} lost its hold: {reason}")),
            Event::Overlap { token } => self.say(&format!("{name} WAS NOT ALONE with its token {token}")),
            Event::Inconsistent { what } => self.say(&format!("{name} SAW {what}")),
            Event::Trouble { what } => self.say(&format!("{name} has trouble: {what}")),
        }
    }

    fn hear_of_finished(&mut self, name: &str, version: u64) {
        match self.death {
            Death::Killed { at, version: left, token } if left == version => {
                let (waited, victim) = (span(at.elapsed()), self.victim_name());
                self.say(&format!(
                    "{name} took over {waited} after the death of {victim}, and finished its v{version}"
                ));
                self.death = Death::TakenOver { token };
            }
            _ => self.say(&format!("{name} finished v{version}, which its writer had left half done")),
        }
    }

    fn victim_name(&self) -> &str {
        self.team.last().map_or("nobody", |member| member.name.as_str())
    }

    async fn go_on_with_death(&mut self) -> Result<()> {
        let Some(victim) = self.team.last_mut() else {
            return Ok(());
        };
        match self.death {
            Death::Ahead if self.started.elapsed() >= self.duration / 5 => {
                victim.hang().await?;
                self.death = Death::Ordered;
            }
            Death::Hangs { since, version, token } if since.elapsed() >= SHOWN_HANGING => {
                victim.kill()?;
                self.death = Death::Killed { at: Instant::now(), version, token };
                self.report.killed(self.team.len() - 1);
                self.say(&format!("killed {} while it writes v{version}", self.victim_name()));
            }
            _ => {}
        }
        Ok(())
    }

    /// Returns when all have stopped, or had time enough.
    async fn stop_workers(&mut self) {
        for member in &mut self.team {
            member.stop();
        }
        let all_stop = async {
            while let Some((number, event)) = self.news.recv().await {
                self.hear(number, event);
            }
            for member in &mut self.team {
                member.ended().await?;
            }
            io::Result::Ok(())
        };
        if !matches!(timeout(STOP_LIMIT, all_stop).await, Ok(Ok(()))) {
            self.say("not all workers stopped in time");
        }
    }

    /// Compares what the workers say with what is stored.
    async fn check(mut self) -> Result<bool> {
        let victims_token = match self.death {
            Death::Killed { token, .. } | Death::TakenOver { token } => Some(token),
            _ => None,
        };
        let late_write_was_refused = match victims_token {
            // What the victim would do if it were not dead but had only been asleep.
            Some(token) => matches!(self.store.set(token, "upstream", "late").await, Err(StoreError::StaleToken)),
            None => false,
        };
        let fields = last_look(&*self.store).await?;
        self.report.saw_token_of_resource(&fields);
        println!("\n{}", self.report.table());
        let taken_over = matches!(self.death, Death::TakenOver { .. });
        Ok(self.report.judge(&Config::look(&fields), taken_over, late_write_was_refused))
    }
}

/// What is stored in the end; a server that is just being restarted gets a second chance.
async fn last_look(store: &dyn Store) -> Result<Fields> {
    for _ in 0..10 {
        match store.peek().await {
            Ok(fields) => return Ok(fields),
            Err(_) => sleep(PERIOD).await,
        }
    }
    store.peek().await.map_err(|error| format!("the configuration cannot be read: {error}").into())
}

fn holders(lock: &LockView) -> String {
    if lock.is_free() {
        return "free".to_owned();
    }
    let one = |HolderView { label, age, remaining, .. }: &HolderView| {
        format!("{label} (age {}, {} left)", span(*age), span(*remaining))
    };
    // Several hold it only if all of them read.
    let mode = lock.holders.first().map_or(Mode::Read, |holder| holder.mode);
    format!("{mode} by {}", lock.holders.iter().map(one).collect::<Vec<_>>().join(", "))
}

fn seen_from_outside(fields: &Fields) -> String {
    let token = fields.get(crate::store::TOKEN).map_or("-", String::as_str);
    match Config::look(fields) {
        Look::Whole(config) => format!("v{} token {token}", config.version),
        Look::HalfDone(draft) => format!("v{} HALF DONE, token {token}", draft.version),
        Look::Corrupt => format!("CORRUPT, token {token}"),
    }
}
