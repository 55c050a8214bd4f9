//! Workers, each with a manager of its own: processes of this program, or runtimes in this process that can be shut
//! down as if they were processes.

use std::env;
use std::io::{self, Write};
use std::process::Stdio;
use std::sync::Arc;
use std::thread;

use redis_rwlock::{MemoryManager, RedisManager, RwLockManager};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::runtime::{self, Runtime};
use tokio::sync::{mpsc, watch};

use crate::event::{Event, Order};
use crate::store::{Servers, Store};
use crate::worker::Worker;
use crate::{LEASE, Result};

/// The line that tells a worker process to hang. To stop, its input ends, which also happens when the parent dies.
const HANG: &str = "hang";

/// What a worker says, by its number.
pub(crate) type News = mpsc::UnboundedSender<(usize, Event)>;

/// One worker. It ends when this is dropped.
pub(crate) struct Member {
    pub(crate) name: String,
    body: Body,
}

enum Body {
    Process {
        child: Child,
        /// None: told to stop.
        input: Option<ChildStdin>,
    },
    Runtime {
        /// None: killed.
        runtime: Option<Runtime>,
        orders: watch::Sender<Order>,
    },
}

fn name(number: usize) -> String {
    format!("w{}", number + 1)
}

/// Starts workers in this process.
pub(crate) fn runtimes(
    count: usize,
    locks: &MemoryManager,
    store: &Arc<dyn Store>,
    news: &News,
) -> Result<Vec<Member>> {
    let mut members = Vec::with_capacity(count);
    for number in 0..count {
        let name = name(number);
        let runtime = runtime::Builder::new_multi_thread().worker_threads(1).thread_name(&name).enable_all().build()?;
        let (sender, orders) = watch::channel(Order::Work);
        let news = news.clone();
        let worker = Worker {
            locks: Arc::new(locks.peer_builder().label(&name).lease(LEASE).build()?),
            store: Arc::clone(store),
            orders,
            // Nobody listens any more only when the run is over.
            tell: Box::new(move |event| news.send((number, event)).unwrap_or_default()),
            workers: count,
        };
        drop(runtime.spawn(worker.run()));
        members.push(Member { name, body: Body::Runtime { runtime: Some(runtime), orders: sender } });
    }
    Ok(members)
}

/// Starts workers as processes of this program.
pub(crate) fn processes(count: usize, servers: &Servers, data_key: &str, news: &News) -> Result<Vec<Member>> {
    let mut members = Vec::with_capacity(count);
    for number in 0..count {
        let name = name(number);
        let mut child = Command::new(env::current_exe()?)
            .args(["worker", &name, data_key, "--workers", &count.to_string()])
            .args(servers.to_args())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        if let Some(output) = child.stdout.take() {
            tokio::spawn(listen(number, output, news.clone()));
        }
        let input = child.stdin.take();
        members.push(Member { name, body: Body::Process { child, input } });
    }
    Ok(members)
}

/// Hears what a worker process says until its output ends.
async fn listen(number: usize, output: ChildStdout, news: News) {
    let mut lines = BufReader::new(output).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let event = line.parse().unwrap_or_else(|what| Event::Trouble { what });
        if news.send((number, event)).is_err() {
            return;
        }
    }
}

/// What a worker process does from its start to its end.
pub(crate) async fn be_process(name: &str, data_key: &str, servers: &Servers, workers: usize) -> Result<()> {
    let locks = RedisManager::builder(servers.topology()).label(name).lease(LEASE).connect().await?;
    let locks: Arc<dyn RwLockManager> = Arc::new(locks);
    let store = servers.store(data_key).await?;
    let (sender, orders) = watch::channel(Order::Work);
    // A thread of its own: reading from standard input cannot be interrupted, and this process must end all the same.
    thread::spawn(move || obey(&sender));
    let (events, mut heard) = mpsc::unbounded_channel();
    let tell = Box::new(move |event| events.send(event).unwrap_or_default());
    tokio::spawn(Worker { locks: Arc::clone(&locks), store, orders, tell, workers }.run());
    while let Some(event) = heard.recv().await {
        if writeln!(io::stdout(), "{event}").is_err() {
            break; // the parent is gone
        }
    }
    locks.close().await?;
    Ok(())
}

fn obey(orders: &watch::Sender<Order>) {
    for line in io::stdin().lines() {
        if line.is_ok_and(|line| line == HANG) {
            orders.send_replace(Order::Hang);
        }
    }
    orders.send_replace(Order::Stop);
}

impl Member {
    /// Tells it to update, and to stay in the middle of it.
    pub(crate) async fn hang(&mut self) -> io::Result<()> {
        match &mut self.body {
            Body::Process { input: Some(input), .. } => input.write_all(format!("{HANG}\n").as_bytes()).await,
            Body::Process { input: None, .. } => Ok(()),
            Body::Runtime { orders, .. } => {
                orders.send_replace(Order::Hang);
                Ok(())
            }
        }
    }

    /// Tells it to stop when it has done what it is at.
    pub(crate) fn stop(&mut self) {
        match &mut self.body {
            Body::Process { input, .. } => *input = None,
            Body::Runtime { orders, .. } => {
                orders.send_replace(Order::Stop);
            }
        }
    }

    /// Returns when it is gone.
    pub(crate) async fn ended(&mut self) -> io::Result<()> {
        match &mut self.body {
            Body::Process { child, .. } => child.wait().await.map(drop),
            // Its only task was the last to send news.
            Body::Runtime { .. } => Ok(()),
        }
    }

    /// Ends it at once, wherever it is. It can neither release what it holds nor renew it any more.
    pub(crate) fn kill(&mut self) -> io::Result<()> {
        match &mut self.body {
            Body::Process { child, .. } => child.start_kill(), // SIGKILL
            Body::Runtime { runtime, .. } => {
                if let Some(runtime) = runtime.take() {
                    runtime.shutdown_background();
                }
                Ok(())
            }
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // A child is killed as it is dropped. A runtime must not be dropped where another one runs, but may be told.
        if let Body::Runtime { runtime, .. } = &mut self.body
            && let Some(runtime) = runtime.take()
        {
            runtime.shutdown_background();
        }
    }
}
