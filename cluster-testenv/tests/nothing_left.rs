//! Tests that no server and no file outlives its environment, however the environment ends.

use std::{
    env, fs,
    io::{BufRead, BufReader},
    net::SocketAddr,
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{self, Child, Command, ExitStatus, Stdio},
    sync::OnceLock,
    time::Duration,
};

use cluster_testenv::{Client, Cluster, Masters, Node, Sentinels, Server, TlsClients, wait_for};
use rustix::process::{Pid, Signal, kill_process};

/// Limit for the end of a server, usually within a second after the process that started it. The limit leaves room for
/// a busy machine.
const BOUND: Duration = Duration::from_secs(10);

/// Remains of a server that was not stopped: its process, and the folder in which it runs.
#[derive(Clone, Debug)]
struct Trace {
    pid: u32,
    dir: PathBuf,
}

impl Trace {
    fn of(addr: SocketAddr) -> Self {
        let mut client = Client::connect(addr).unwrap();
        let info = client.command(&["INFO", "server"]).unwrap();
        let info = info.text().unwrap();
        let pid = info.lines().find_map(|line| line.strip_prefix("process_id:")).unwrap();
        // A Sentinel does not report its folder, but every server has it as its working directory.
        let dir = fs::read_link(format!("/proc/{pid}/cwd")).unwrap();
        Self { pid: pid.parse().unwrap(), dir }
    }

    /// Returns true if the process has ended. A dead process that its parent has not reaped yet counts too: it runs no
    /// code and holds nothing.
    fn process_is_gone(&self) -> bool {
        let Ok(stat) = fs::read_to_string(format!("/proc/{}/stat", self.pid)) else {
            return true;
        };
        let state = stat.rsplit_once(") ").map(|(_, rest)| rest.chars().next());
        matches!(state, Some(Some('Z' | 'X')))
    }

    /// Returns true if the environment's folder is gone, and so is its name after the guardian's rename.
    fn files_are_gone(&self) -> bool {
        let environment = self.dir.parent().unwrap();
        !environment.exists() && !Path::new(&format!("{}.ended", environment.display())).exists()
    }

    fn is_gone(&self) -> bool {
        self.process_is_gone() && self.files_are_gone()
    }

    fn wait_until_gone(&self) {
        let what = format!("{self:?} going away");
        wait_for(what, BOUND, || self.is_gone().then_some(())).unwrap();
    }
}

#[test]
fn drop_ends_everything_before_it_returns() {
    let single = Node::builder(Server::Redis70).tls(TlsClients::Required).proxied().start().unwrap();
    let masters = Masters::start(Server::Redis62, 3).unwrap();
    let sentinels = Sentinels::start(Server::Redis82).unwrap();
    let cluster = Cluster::start(Server::Valkey91).unwrap();
    let all = [masters.nodes(), sentinels.nodes(), sentinels.sentinels(), cluster.nodes()];
    let mut traces: Vec<Trace> =
        all.into_iter().flatten().chain([&single]).map(|node| Trace::of(node.addr())).collect();
    assert!(traces.iter().all(|trace| !trace.process_is_gone() && !trace.files_are_gone()));
    let [paused, killed, restarted, ..] = cluster.nodes() else { panic!("a cluster has six nodes") };
    paused.pause();
    killed.kill();
    restarted.restart().unwrap();
    traces.push(Trace::of(restarted.addr()));
    let proxy = single.proxy().addr();
    drop((single, masters, sentinels, cluster));
    assert!(traces.iter().all(Trace::is_gone), "{traces:?}");
    assert!(Client::connect(proxy).is_err());
}

#[test]
fn failed_start_leaves_nothing() {
    // This name is not used by other tests, which create folders at the same time.
    let temp = env::temp_dir().join(format!("nothing-left-{}", process::id()));
    fs::create_dir(&temp).unwrap();
    let status = program(&["single"])
        .env("TMPDIR", &temp)
        .env("TESTENV_REDIS_7_0", "/bin/false")
        .stderr(Stdio::null())
        .status()
        .unwrap();
    assert!(!status.success());
    // This fails when the folder is not empty.
    fs::remove_dir(&temp).unwrap();
}

#[test]
fn signals_to_the_process_end_everything_without_a_destructor() {
    for (signal, environment, servers) in [
        (Signal::TERM, &["single"][..], 1),
        (Signal::INT, &["sentinel"], 3),
        (Signal::KILL, &["--server", "valkey-9.1", "cluster"], 6),
    ] {
        let mut program = Program::start(environment, servers);
        let paused = Pid::from_raw(program.traces[0].pid.try_into().unwrap()).unwrap();
        kill_process(paused, Signal::STOP).unwrap();
        assert_eq!(program.end_by(signal).signal(), Some(signal.as_raw()));
        program.traces.iter().for_each(Trace::wait_until_gone);
    }
}

/// Variable of the copy of this test binary that has to end with an environment in a static.
const AS_HELPER: &str = "CLUSTER_TESTENV_EXITS_WITH_A_STATIC";

#[test]
fn exit_of_the_process_ends_what_statics_hold() {
    if env::var_os(AS_HELPER).is_some() {
        exit_with_a_static();
    }
    let mut helper = Command::new(env::current_exe().unwrap());
    helper.args(["--exact", "exit_of_the_process_ends_what_statics_hold", "--nocapture"]).env(AS_HELPER, "1");
    let output = helper.output().unwrap();
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    let stdout = String::from_utf8(output.stdout).unwrap();
    let words = stdout.lines().find_map(|line| line.split_once("trace ")).expect("the helper prints its trace").1;
    let (pid, dir) = words.split_once(' ').unwrap();
    let trace = Trace { pid: pid.parse().unwrap(), dir: PathBuf::from(dir) };
    trace.wait_until_gone();
}

fn exit_with_a_static() -> ! {
    static NODE: OnceLock<Node> = OnceLock::new();
    let node = NODE.get_or_init(|| Node::start(Server::Redis70).unwrap());
    let trace = Trace::of(node.addr());
    println!("\ntrace {} {}", trace.pid, trace.dir.display());
    process::exit(7);
}

fn program(args: &[&str]) -> Command {
    // A shell that runs the tests in the background makes all their processes ignore SIGINT. `env` undoes that.
    let mut program = Command::new("env");
    program.args(["--default-signal=INT", env!("CARGO_BIN_EXE_cluster-testenv")]);
    program.args(args).stdin(Stdio::null());
    program
}

/// Program of this crate with its servers running.
struct Program {
    child: Child,
    traces: Vec<Trace>,
}

impl Program {
    /// Starts the program and reads `servers` URLs.
    fn start(args: &[&str], servers: usize) -> Self {
        let child = program(args).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        // From here on a failure of this test ends the program too.
        let mut program = Self { child, traces: Vec::new() };
        let mut urls = BufReader::new(program.child.stdout.take().unwrap()).lines();
        for _ in 0..servers {
            let url = urls.next().unwrap().unwrap();
            program.traces.push(Trace::of(url.strip_prefix("redis://").unwrap().parse().unwrap()));
        }
        program
    }

    /// Ends the program by a signal, and returns its exit status.
    fn end_by(&mut self, signal: Signal) -> ExitStatus {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
        wait_for("the program ending", BOUND, || self.child.try_wait().unwrap()).unwrap()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Both calls fail when the program has ended already, as it should have.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
