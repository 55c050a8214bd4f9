//! Tests that no server and no file outlives its environment, however the environment ends.

use std::{
    env, fs,
    io::{BufRead, BufReader},
    net::SocketAddr,
    os::unix::process::ExitStatusExt,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    process::{self, Child, Command, ExitStatus, Stdio},
    sync::OnceLock,
    time::Duration,
};

use cluster_testenv::{Client, Cluster, Masters, Node, Reply, Sentinels, Server, TlsClients, wait_for};
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

    fn all(nodes: &[Node]) -> Vec<Self> {
        nodes.iter().map(|node| Self::of(node.addr())).collect()
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
    for server in Server::ALL {
        let node = Node::start(server).unwrap();
        let masters = Masters::start(server, 3).unwrap();
        let mut traces = Trace::all(masters.nodes());
        traces.push(Trace::of(node.addr()));
        assert!(traces.iter().all(|trace| !trace.process_is_gone() && !trace.files_are_gone()));
        drop((node, masters));
        assert!(traces.iter().all(Trace::is_gone), "{traces:?}");
    }
}

#[test]
fn drop_ends_paused_killed_and_restarted_nodes() {
    let cluster = Cluster::start(Server::Redis70).unwrap();
    let mut traces = Trace::all(cluster.nodes());
    cluster.nodes()[0].pause();
    cluster.nodes()[1].kill();
    cluster.nodes()[2].restart().unwrap();
    traces.push(Trace::of(cluster.nodes()[2].addr()));
    drop(cluster);
    assert!(traces.iter().all(Trace::is_gone), "{traces:?}");
}

#[test]
fn panic_ends_everything() {
    let mut traces = Vec::new();
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let masters = Masters::start(Server::Valkey91, 3).unwrap();
        traces = Trace::all(masters.nodes());
        panic!("on purpose");
    }));
    assert!(panicked.is_err());
    assert_eq!(traces.len(), 3);
    assert!(traces.iter().all(Trace::is_gone), "{traces:?}");
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
    for signal in [Signal::KILL, Signal::TERM, Signal::INT] {
        for (environment, servers) in [(&["single"][..], 1), (&["masters", "3"], 3)] {
            let mut program = Program::start(environment, servers);
            assert_eq!(program.end_by(signal).signal(), Some(signal.as_raw()));
            program.traces.iter().for_each(Trace::wait_until_gone);
        }
    }
}

#[test]
fn kill_of_the_process_ends_a_whole_cluster_and_a_paused_server() {
    let mut program = Program::start(&["--server", "valkey-9.1", "cluster"], 6);
    let paused = Pid::from_raw(program.traces[0].pid.try_into().unwrap()).unwrap();
    kill_process(paused, Signal::STOP).unwrap();
    program.end_by(Signal::KILL);
    program.traces.iter().for_each(Trace::wait_until_gone);
}

#[test]
fn kill_of_the_process_ends_sentinels_and_what_they_watch() {
    let mut program = Program::start(&["--server", "valkey-9.1", "sentinel"], 3);
    let mut sentinel = Client::connect(program.addrs[0]).unwrap();
    let mut ports_of = |what| {
        let answer = sentinel.command(&["SENTINEL", what, "mymaster"]).unwrap();
        let field = |pairs: &[Reply], name: &str| {
            let pair = pairs.chunks(2).find(|pair| pair[0].text().unwrap() == name).unwrap();
            pair[1].text().unwrap().into_owned()
        };
        let port_of = |server: &Reply| field(server.array().unwrap(), "port");
        let servers = if what == "MASTER" { vec![answer] } else { answer.array().unwrap().to_vec() };
        servers.iter().map(port_of).collect::<Vec<_>>()
    };
    let ports = [ports_of("MASTER"), ports_of("REPLICAS")].concat();
    assert_eq!(ports.len(), 3);
    program.traces.extend(ports.iter().map(|port| Trace::of(format!("127.0.0.1:{port}").parse().unwrap())));
    program.end_by(Signal::KILL);
    program.traces.iter().for_each(Trace::wait_until_gone);
}

#[test]
fn drop_ends_proxies_sentinels_and_servers_with_tls() {
    let sentinels = Sentinels::start(Server::Redis70).unwrap();
    let tls = Node::builder(Server::Redis70).tls(TlsClients::Required).proxied().start().unwrap();
    let mut traces = [Trace::all(sentinels.nodes()), Trace::all(sentinels.sentinels())].concat();
    traces.push(Trace::of(tls.addr()));
    let proxy = tls.proxy().addr();
    drop((sentinels, tls));
    assert!(traces.iter().all(Trace::is_gone), "{traces:?}");
    assert!(Client::connect(proxy).is_err());
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
    addrs: Vec<SocketAddr>,
    traces: Vec<Trace>,
}

impl Program {
    /// Starts the program and reads `servers` URLs.
    fn start(args: &[&str], servers: usize) -> Self {
        let child = program(args).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        // From here on a failure of this test ends the program too.
        let mut program = Self { child, addrs: Vec::new(), traces: Vec::new() };
        let mut urls = BufReader::new(program.child.stdout.take().unwrap()).lines();
        for _ in 0..servers {
            let url = urls.next().unwrap().unwrap();
            let addr = url.strip_prefix("redis://").unwrap().parse().unwrap();
            program.addrs.push(addr);
            program.traces.push(Trace::of(addr));
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
