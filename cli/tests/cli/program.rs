//! Starts the program, and keeps its results for assertions.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{self, Child, Command, ExitStatus, Stdio};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use cluster_testenv::{Cluster, Node, Reply, Server};
use redis_rwlock::blocking::{RedisManager, WriteGuard};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_redis-rwlock");
/// Limit of all waits in the cases, far longer than any of them needs.
const BOUND: Duration = Duration::from_secs(30);

/// Shared server for cases that do not disturb it.
pub static SERVER: LazyLock<Node> = LazyLock::new(start_node);

/// Returns a lock's name that no other case uses.
pub fn new_name() -> String {
    static NAMES: AtomicU64 = AtomicU64::new(0);
    format!("lock{}", NAMES.fetch_add(1, Ordering::Relaxed))
}

pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < BOUND, "{what} did not come true within {BOUND:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Returns a command of the program with the shared server.
pub fn program(args: &[&str]) -> Command {
    at(&SERVER.url(), args)
}

/// Returns a command of the program with this server.
pub fn at(url: &str, args: &[&str]) -> Command {
    let mut command = without_node(args);
    command.env("RWLOCK_NODE", url);
    command
}

/// Returns the program without a server in its environment.
pub fn without_node(args: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(args).stdin(Stdio::null());
    command
}

/// Connects a manager with this label.
pub fn labelled(node: &Node, label: &str) -> RedisManager {
    let builder = redis_rwlock::RedisManager::builder(node.url()).label(label);
    RedisManager::connect_with(builder).expect("connected")
}

/// Starts a server for one test.
pub fn start_node() -> Node {
    Node::start(Server::Redis70).expect("the server starts")
}

pub fn three_primaries() -> Cluster {
    Cluster::builder(Server::Redis70).primaries(3).replicas(0).start().expect("it starts")
}

/// Sends a command that the server carries out.
pub fn ask(node: &Node, command: &[&str]) -> Reply {
    node.command(command).and_then(Reply::into_result).expect("answered")
}

/// Takes a lock to write, by a manager of this process.
pub fn hold(name: &str) -> WriteGuard {
    hold_by(&connect(), name)
}

pub fn hold_by(manager: &RedisManager, name: &str) -> WriteGuard {
    manager.write(name).wait().expect("granted")
}

/// Releases a lock, which must have been held until now.
pub fn release(guard: WriteGuard) {
    guard.release().expect("ours to the end");
}

/// Connects a manager to the server that all tests share.
pub fn connect() -> RedisManager {
    RedisManager::connect(SERVER.url()).expect("connected")
}

pub fn is_free(name: &str) -> bool {
    connect().inspect(name).expect("inspected").is_free()
}

pub fn until_one_waits(name: &str) {
    let manager = connect();
    until("it waits", || manager.inspect(name).expect("inspected").waiters.len() == 1);
}

/// Asserts that no holder and no waiter is left.
pub fn nothing_is_left(name: &str, case: &str) {
    let view = connect().inspect(name).expect("inspected");
    assert!(view.is_free() && view.waiters.is_empty(), "{case}: {view:?}");
}

/// Returns the ids of all processes.
pub fn processes() -> impl Iterator<Item = i32> {
    fs::read_dir("/proc").expect("Linux").flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Output and exit code of a program that has ended.
#[derive(Debug)]
pub struct Said {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Said {
    /// Returns the line of the output that begins with this.
    pub fn line(&self, start: &str) -> &str {
        self.out.lines().find(|line| line.starts_with(start)).unwrap_or_else(|| panic!("{start}: {self:?}"))
    }

    /// Asserts the exit code.
    #[track_caller]
    pub fn assert_code(&self, code: i32) {
        assert_eq!(self.code, Some(code), "{self:?}");
    }

    /// Asserts the exit code, and a part of the output.
    #[track_caller]
    pub fn assert_out(&self, code: i32, part: &str) {
        assert!(self.code == Some(code) && self.out.contains(part), "{part}: {self:?}");
    }

    /// Asserts the exit code, and a part of the messages.
    #[track_caller]
    pub fn assert_err(&self, code: i32, part: &str) {
        assert!(self.code == Some(code) && self.err.contains(part), "{part}: {self:?}");
    }

    /// Asserts the exit code, and the whole output.
    #[track_caller]
    pub fn assert_whole_out(&self, code: i32, out: &str) {
        assert_eq!((self.code, &*self.out), (Some(code), out), "{self:?}");
    }
}

pub fn said(mut command: Command) -> Said {
    let output = command.output().expect("it starts");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    Said { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

pub fn output_of(args: &[&str]) -> Said {
    said(program(args))
}

/// Returns the view of a lock that the program prints for other programs.
pub fn view(name: &str) -> Value {
    parsed(&output_of(&["inspect", "--json", name]).out)
}

pub fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text:?}"))
}

pub fn send(signal: Signal, pid: i32) {
    kill_process(Pid::from_raw(pid).expect("a process id"), signal).expect("it is ours");
}

/// Running program, which is killed when the case ends early.
pub struct Running(Child);

impl Running {
    pub fn start(mut command: Command) -> Self {
        Self(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts"))
    }

    /// Starts a program whose messages go to the file `err` of a folder, so that the case can read them while it runs.
    pub fn told_in(folder: &Folder, mut command: Command) -> Self {
        let err = File::create(folder.path("err")).expect("created");
        Self(command.stdout(Stdio::piped()).stderr(err).spawn().expect("it starts"))
    }

    pub fn signal(&self, signal: Signal) {
        send(signal, i32::try_from(self.0.id()).expect("a process id"));
    }

    /// Returns the processes that watch over its command.
    pub fn watchdogs(&self) -> Vec<i32> {
        let parent = self.0.id().to_string();
        let is_one = |pid: &i32| {
            let file = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
            let is_child =
                file("stat").rsplit_once(") ").is_some_and(|(_, rest)| rest.split(' ').nth(1) == Some(&parent));
            is_child && file("cmdline").contains("watch-over-group")
        };
        processes().filter(is_one).collect()
    }

    /// Waits for the program's end.
    pub fn said(mut self) -> Said {
        let mut status: Option<ExitStatus> = None;
        until("the end of the program", || {
            status = self.0.try_wait().expect("it is ours");
            status.is_some()
        });
        let (mut out, mut err) = (String::new(), String::new());
        self.0.stdout.take().expect("piped").read_to_string(&mut out).expect("text");
        if let Some(mut piped) = self.0.stderr.take() {
            piped.read_to_string(&mut err).expect("text");
        }
        Said { code: status.and_then(|status| status.code()), out, err }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Folder for the output of commands, which is removed with the case.
pub struct Folder(PathBuf);

/// Returns the name of a lock, and a folder, for one case.
pub fn name_and_folder() -> (String, Folder) {
    (new_name(), Folder::new())
}

impl Folder {
    pub fn new() -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("cli-{}-{}", process::id(), new_name()));
        fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Writes a file, and returns its path.
    pub fn write(&self, name: &str, text: &str) -> String {
        fs::write(self.path(name), text).expect("written");
        self.path(name).to_str().expect("text").to_owned()
    }

    pub fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// Waits until a command has written a whole line.
    pub fn line(&self, name: &str) -> String {
        until(name, || self.read(name).contains('\n'));
        self.read(name).lines().next().expect("a line").to_owned()
    }

    /// Waits until a program that writes its errors here has told this.
    pub fn until_told(&self, part: &str) {
        until(part, || self.read("err").contains(part));
    }

    /// Waits until the process has gone whose id a command has written.
    pub fn gone(&self, name: &str) {
        let stat = format!("/proc/{}/stat", self.line(name));
        // A process that was not reaped yet is a zombie.
        until(name, || fs::read_to_string(&stat).map_or(true, |stat| stat.contains(") Z ") || stat.contains(") X ")));
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

/// Returns the time in the format of `date +%s%N`.
pub fn wall_clock() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_nanos()
}
