//! Tests the end and the signals of a command of `run`, and that no process of it outlives the lock.

use std::process::Command;
use std::time::Duration;

use cluster_testenv::{Node, Proxy, Server};
use redis_rwlock::blocking::RedisManager;
use rustix::process::Signal;

use crate::program::{
    Folder, PROGRAM, Running, SERVER, at, connect, hold, hold_by, is_free, labelled, name_and_folder, new_name,
    nothing_is_left, output_of, parsed, program, release, said, send, start_node, until, until_one_waits, wall_clock,
    without_node,
};

/// Returns a command that runs a shell script under a lock.
fn run<'a>(name: &'a str, script: &'a str) -> Command {
    program(&["run", name, "--", "sh", "-c", script])
}

fn in_folder(mut command: Command, folder: &Folder) -> Command {
    command.current_dir(folder.path(""));
    command
}

#[test]
fn exit_code_and_token_are_passed_through() {
    let name = new_name();
    // The nested program must accept the variables that `run` has set.
    let script = format!("echo $RWLOCK_NAME $RWLOCK_FENCING_TOKEN; {PROGRAM} inspect $RWLOCK_NAME; echo $?; exit 7");
    let said = said(run(&name, &script));
    said.assert_code(7);
    let mut lines = said.out.lines();
    let (told, token) = lines.next().expect("a line").split_once(' ').expect("two words");
    assert_eq!(told, name);
    assert!(token.parse::<u64>().is_ok_and(|token| token > 0), "{token}");
    assert!(said.out.contains("write") && said.out.ends_with("\n0\n"), "{}", said.out);
    assert!(is_free(&name));
}

/// All processes of the command inherit the environment, and their users can read it.
#[test]
fn command_gets_no_variable_with_a_password() {
    let server = Node::builder(Server::Redis70).password("s3cret").start().expect("the server starts");
    let with_password = server.url();
    let variables = [
        ("RWLOCK_NODE", &*with_password, false),
        ("RWLOCK_CLUSTER", "redis://a:1,redis://user:p@ss:w@b:2", false),
        ("RWLOCK_PROXY", "redis://:s3cret@a:1", false),
        ("RWLOCK_SENTINEL_URLS", "redis://user@a:1", true),
        ("RWLOCK_LEASE", "10s", true),
    ];
    let name = new_name();
    let environ = "tr '\\0' '\\n' </proc/$$/environ";
    let mut command = without_node(&["run", "--url", &with_password, &name, "--", "sh", "-c", environ]);
    command.envs(variables.iter().map(|(variable, value, _)| (variable, value)));
    let said = said(command);
    said.assert_code(0);
    assert!(!said.out.contains("s3cret") && !said.err.contains("s3cret"), "{said:?}");
    for (variable, _, is_passed_on) in variables {
        assert_eq!(said.out.contains(variable), is_passed_on, "{variable}: {said:?}");
        assert_eq!(said.err.contains(variable), !is_passed_on, "{variable}: {said:?}");
    }
}

/// All users of the machine can read command lines.
#[test]
fn no_command_line_has_a_password() {
    let server = Node::builder(Server::Redis70).password("s3cret").start().expect("the server starts");
    let (name, folder) = name_and_folder();
    let password = folder.write("password", "s3cret");
    let without = server.url().replace(":s3cret@", "");
    let script = "tr '\\0' ' ' </proc/$$/cmdline; tr '\\0' ' ' </proc/$PPID/cmdline";
    let by_variable = at(&server.url(), &["run", &name, "--", "sh", "-c", script]);
    let by_file =
        without_node(&["run", "--url", &without, "--password-file", &password, &name, "--", "sh", "-c", script]);
    for command in [by_variable, by_file] {
        let said = said(command);
        said.assert_out(0, PROGRAM);
        assert!(!said.out.contains("s3cret") && !said.err.contains("s3cret"), "{said:?}");
    }
}

#[test]
fn readers_share_and_writers_do_not() {
    let name = new_name();
    let nested = |mode| format!("{PROGRAM} run --no-wait {mode} {name} -- true");
    let code = |mode: &str, script: &str| output_of(&["run", mode, &name, "--", "sh", "-c", script]).code;
    assert_eq!(code("--read", &nested("--read")), Some(0));
    assert_eq!(code("--read", &nested("--write")), Some(75));
    assert_eq!(code("--write", &nested("--read")), Some(75));
    said(run(&name, &format!("{PROGRAM} run --wait 100ms {name} -- true"))).assert_err(75, "waited");
}

#[test]
fn killed_command_and_one_that_is_not_there_are_told() {
    let name = new_name();
    said(run(&name, "kill -KILL $$")).assert_code(137);
    output_of(&["run", &name, "--", "/nowhere/at/all"]).assert_code(127);
    output_of(&["run", &name, "--", "/dev/null"]).assert_code(126);
    assert!(is_free(&name));
}

#[test]
fn wrong_command_lines_are_told_and_start_nothing() {
    for (args, code, part) in [
        (&["run", "x"][..], 2, "COMMAND"),
        (&["run", "--grace", "soon", "x", "--", "true"], 2, "is no duration"),
        (&["run", "--grace", "9s", "x", "--", "true"], 2, "too long"),
        (&["run", "--lease", "1ms", "--grace", "0ms", "x", "--", "true"], 78, "lease"),
        (&["run", "", "--", "true"], 78, "name"),
    ] {
        let said = output_of(args);
        assert!(said.code == Some(code) && said.err.contains(part), "{args:?}: {said:?}");
    }
}

/// Returns the command with no signal ignored. The tests may inherit ignored ones, such as SIGINT in a background job.
fn with_default_signals(command: &Command) -> Command {
    let mut env = Command::new("env");
    env.arg("--default-signal").arg(command.get_program()).args(command.get_args());
    env.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    env
}

fn signal_reaches_the_command(signal: Signal, word: &str) {
    let (name, folder) = name_and_folder();
    let script = format!("trap 'echo {word} >heard; exit 3' {word}; echo $$ >ready; while :; do sleep 0.02; done");
    let start = |script: &str| Running::start(in_folder(with_default_signals(&run(&name, script)), &folder));
    let running = start(&script);
    folder.line("ready");
    running.signal(signal);
    let said = running.said();
    assert_eq!((said.code, folder.read("heard")), (Some(3), format!("{word}\n")), "{said:?}");
    assert!(is_free(&name));

    // A command without a trap ends by the signal, and so do all processes that it has started.
    let script = "sleep 100 & echo $! >below; echo $$ >ready; wait";
    let running = start(script);
    folder.line("below");
    running.signal(signal);
    let said = running.said();
    // After SIGINT the program ends itself by SIGINT, and has no exit code.
    let code = (signal != Signal::INT).then_some(128 + signal.as_raw());
    assert_eq!(said.code, code, "{said:?}");
    folder.gone("below");
    assert!(is_free(&name));
}

#[test]
fn sigint_reaches_the_command() {
    signal_reaches_the_command(Signal::INT, "INT");
}

#[test]
fn sigterm_reaches_the_command() {
    signal_reaches_the_command(Signal::TERM, "TERM");
}

#[test]
fn sighup_reaches_the_command() {
    signal_reaches_the_command(Signal::HUP, "HUP");
}

#[test]
fn signal_ends_waiting_and_nothing_waits_any_more() {
    let manager = connect();
    for options in [&[][..], &["--at-least", "300"]] {
        let name = new_name();
        let guard = hold(&name);
        let running = Running::start(with_options(&SERVER.url(), options, &name));
        until_one_waits(&name);
        running.signal(Signal::TERM);
        running.said().assert_code(143);
        assert!(manager.inspect(&name).expect("inspected").waiters.is_empty());
        release(guard);
        assert!(is_free(&name), "no rest either");
    }
}

#[test]
fn sigint_ends_the_program_by_sigint_so_that_a_loop_of_a_shell_ends() {
    let (name, folder) = name_and_folder();
    let manager = connect();
    let guard = hold(&name);
    let waits = Running::start(with_default_signals(&run(&name, "true")));
    until_one_waits(&name);
    waits.signal(Signal::INT);
    let said = waits.said();
    assert!(said.code.is_none() && said.err.is_empty(), "it has no exit code: {said:?}");
    assert!(manager.inspect(&name).expect("inspected").waiters.is_empty());
    release(guard);
    let runs =
        Running::start(in_folder(with_default_signals(&run(&name, "echo there >started; exec sleep 100")), &folder));
    folder.line("started");
    runs.signal(Signal::INT);
    assert_eq!(runs.said().code, None, "the command was ended by SIGINT");
    assert!(manager.inspect(&name).expect("inspected").holders.is_empty());
}

#[test]
fn signal_that_ends_a_wait_tells_that_no_server_has_confirmed_it() {
    let node = Node::start(Server::Redis70).expect("the server starts");
    let manager = RedisManager::connect(node.url()).expect("connected");
    let _guard = hold_by(&manager, "cfg");
    let waits = Running::start(at(&node.url(), &["run", "cfg", "--", "true"]));
    until("it waits", || manager.inspect("cfg").expect("inspected").waiters.len() == 1);
    node.pause();
    waits.signal(Signal::TERM);
    waits.said().assert_err(143, "no server confirmed");
}

#[test]
fn what_the_command_leaves_behind_is_ended_before_the_lock_is_free() {
    let (name, folder) = name_and_folder();
    let polite = "sh -c 'trap \"echo bye >heard; exit\" TERM; echo $$ >below; while :; do sleep 0.02; done' &";
    let script = format!("{polite} while [ ! -s below ]; do sleep 0.01; done; exit 5");
    said(in_folder(run(&name, &script), &folder)).assert_code(5);
    assert_eq!(folder.read("heard"), "bye\n", "it had time to tidy up");
    folder.gone("below");

    let folder = Folder::new();
    let stubborn = "sh -c 'trap \"\" TERM; echo $$ >below; while [ -e below ]; do sleep 0.02; done' >/dev/null 2>&1 &";
    let script = format!("{stubborn} while [ ! -s below ]; do sleep 0.01; done");
    let args = ["run", "--grace", "200ms", &name, "--", "sh", "-c", &script];
    said(in_folder(program(&args), &folder)).assert_code(0);
    folder.gone("below");
}

/// Script that ignores SIGTERM, as does its child, and both write the time repeatedly. If no process kills them, they
/// end when the case removes its folder.
const STUBBORN: &str = "trap '' TERM
echo $$ >pid
stamp() { while [ -e pid ]; do date +%s%N >>$1; sleep 0.01; done; }
stamp below & echo $! >below.pid
stamp stamps";

/// Lease for cases that wait for its end. A quarter of it is margin for a busy machine.
const SHORT: &str = "2s";
const SHORT_NS: u128 = 2_000_000_000;
/// Lease for cases where the tested event happens long before its end.
const LONG: &str = "6s";
const LONG_NS: u128 = 3 * SHORT_NS;

fn stubborn(node: &Node, name: &str, lease: &str, folder: &Folder) -> Running {
    let args = ["run", "--json", "--lease", lease, "--grace", "300ms", name, "--", "sh", "-c", STUBBORN];
    let mut command = at(&node.url(), &args);
    command.env("RWLOCK_MAX_CLOCK_SKEW", "500ms");
    let running = Running::told_in(folder, in_folder(command, folder));
    for written in ["stamps", "below", "pid", "below.pid"] {
        folder.line(written);
    }
    running
}

/// Asserts that no process ran after `end`, which is the earliest time at which another process can have the lock.
fn nothing_ran_after(folder: &Folder, end: u128) {
    folder.gone("pid");
    folder.gone("below.pid");
    for stamps in ["stamps", "below"] {
        let stamps = folder.read(stamps);
        let last: u128 = stamps.lines().next_back().and_then(|stamp| stamp.parse().ok()).expect("a stamp");
        assert!(last < end, "{} ms too long", (last - end) / 1_000_000);
    }
}

fn nothing_outlives_the_lock_when(hurt: impl FnOnce(&Node)) {
    let (node, name, folder) = (start_node(), new_name(), Folder::new());
    let running = stubborn(&node, &name, SHORT, &folder);
    hurt(&node);
    // The last renewal with an answer was sent before this moment.
    let end = wall_clock() + SHORT_NS;
    running.said().assert_code(76);
    nothing_ran_after(&folder, end);
    assert!(folder.read("err").contains(r#""event":"stopping""#), "{}", folder.read("err"));
}

#[test]
fn nothing_outlives_the_lock_when_the_server_is_silent() {
    nothing_outlives_the_lock_when(Node::pause);
}

#[test]
fn nothing_outlives_the_lock_when_the_server_is_killed() {
    nothing_outlives_the_lock_when(Node::kill);
}

#[test]
fn nothing_outlives_the_lock_when_the_program_stands_still() {
    let (name, folder) = name_and_folder();
    let running = stubborn(&SERVER, &name, SHORT, &folder);
    running.signal(Signal::STOP);
    let end = wall_clock() + SHORT_NS;
    nothing_ran_after(&folder, end);
    running.signal(Signal::CONT);
    running.said().assert_code(76);
}

#[test]
fn nothing_outlives_the_program_when_it_is_killed() {
    let (name, folder) = name_and_folder();
    let running = stubborn(&SERVER, &name, LONG, &folder);
    running.signal(Signal::KILL);
    // All processes end long before the lease does.
    nothing_ran_after(&folder, wall_clock() + LONG_NS / 2);
    drop(running);
}

/// Sends a signal to the watchdog, waits for the message about that, and then sends one to the program. No process may
/// outlive the lock.
fn nothing_outlives_the_lock_behind_a_hurt_watchdog(hurt: Signal, told: &str) {
    for then in [Signal::STOP, Signal::KILL] {
        let (name, folder) = name_and_folder();
        let running = stubborn(&SERVER, &name, SHORT, &folder);
        let [first] = running.watchdogs()[..] else { panic!("there is one watchdog") };
        send(hurt, first);
        folder.until_told(told);
        running.signal(then);
        let end = wall_clock() + SHORT_NS;
        nothing_ran_after(&folder, end);
        if then == Signal::STOP {
            running.signal(Signal::CONT);
            running.said().assert_code(76);
        }
    }
}

#[test]
fn killed_watchdog_is_told_and_replaced() {
    nothing_outlives_the_lock_behind_a_hurt_watchdog(Signal::KILL, "was killed: another one watches");
}

#[test]
fn stopped_watchdog_is_told_and_goes_on() {
    nothing_outlives_the_lock_behind_a_hurt_watchdog(Signal::STOP, "was stopped, and goes on");
}

#[test]
fn command_goes_on_when_its_watchdog_is_killed_again_and_again() {
    let (name, folder) = name_and_folder();
    let script = "echo >ready; until [ -e go ]; do sleep 0.02; done; exit 3";
    let running = Running::told_in(&folder, in_folder(run(&name, script), &folder));
    folder.line("ready");
    for round in 1..=3 {
        let mut watchdogs = Vec::new();
        until("there is one", || {
            watchdogs = running.watchdogs();
            watchdogs.len() == 1
        });
        send(Signal::KILL, watchdogs[0]);
        until("it is told", || folder.read("err").matches("another one watches").count() == round);
    }
    folder.write("go", "");
    running.said().assert_code(3);
    assert!(is_free(&name));
}

#[test]
fn stop_of_the_command_is_told_and_its_end_too() {
    let (name, folder) = name_and_folder();
    let script = "echo $$ >pid; until [ -e go ]; do sleep 0.02; done; exit 3";
    let running = Running::told_in(&folder, in_folder(run(&name, script), &folder));
    let pid: i32 = folder.line("pid").parse().expect("a process id");
    for signal in [Signal::STOP, Signal::TSTP] {
        send(signal, pid);
        let word = if signal == Signal::STOP { "SIGSTOP" } else { "SIGTSTP" };
        let told = format!("lock {name} is kept, but the command is stopped by {word}: SIGCONT lets it go on");
        folder.until_told(&told);
        assert!(!is_free(&name));
        let before = folder.read("err").matches("the command goes on").count();
        send(Signal::CONT, pid);
        until("its end is told", || folder.read("err").matches("the command goes on").count() == before + 1);
    }
    folder.write("go", "");
    running.said().assert_code(3);
    assert!(is_free(&name));
}

#[test]
fn command_has_the_grace_to_tidy_up_even_if_it_is_stopped() {
    for is_stopped in [false, true] {
        let (node, name, folder) = (start_node(), new_name(), Folder::new());
        let script = "trap 'echo bye >heard; exit 0' TERM; echo $$ >pid; while :; do sleep 0.02; done";
        let args = ["run", "--lease", SHORT, "--grace", "800ms", &name, "--", "sh", "-c", script];
        let running = Running::told_in(&folder, in_folder(at(&node.url(), &args), &folder));
        let pid: i32 = folder.line("pid").parse().expect("a process id");
        if is_stopped {
            send(Signal::STOP, pid);
            folder.until_told("stopped by SIGSTOP");
        }
        node.pause();
        // The command did not finish its work, so its own exit code does not count.
        assert_eq!((running.said().code, &*folder.read("heard")), (Some(76), "bye\n"));
    }
}

#[test]
fn lock_that_is_taken_away_ends_the_command_at_once() {
    let (name, folder) = name_and_folder();
    let running = stubborn(&SERVER, &name, LONG, &folder);
    output_of(&["--json", "force-release", "--yes", &name]).assert_out(0, r#""mode":"write""#);
    running.said().assert_code(76);
    assert!(folder.read("err").contains("by force"), "{}", folder.read("err"));
    folder.gone("pid");
    folder.gone("below.pid");
    output_of(&["force-release", "--yes", &name]).assert_code(1);
}

#[test]
fn longest_time_of_a_hold_ends_the_command() {
    let name = new_name();
    let limited =
        program(&["run", "--lease", "1s", "--grace", "200ms", "--max-hold", "1s", &name, "--", "sleep", "100"]);
    Running::start(limited).said().assert_code(76);
}

#[test]
fn command_that_is_shorter_than_max_hold_ends_by_itself_with_the_default_grace() {
    let with = |options: &[&str]| said(program(&[&["run"], options, &[&new_name(), "--", "sleep", "0.2"]].concat()));
    let done = with(&["--max-hold", "2"]);
    assert!(done.code == Some(0) && done.err.is_empty(), "{done:?}");
    with(&["--max-hold", "2", "--grace", "2"]).assert_err(2, "no time for the command");
}

/// Options that users give: none, those of docs/CLI.md, and leases with the default grace and with a third.
const LINES: [&[&str]; 14] = [
    &[],
    &["--read"],
    &["--wait", "20s"],
    &["--max-hold", "60s"],
    // Options of the systemd unit.
    &["--lease", "15s", "--grace", "4s"],
    &["--lease", "2s"],
    &["--lease", "60s"],
    &["--lease", "3s", "--grace", "1s"],
    &["--lease", "5s", "--grace", "1666ms"],
    &["--lease", "8s", "--grace", "2666ms"],
    &["--lease", "10s", "--grace", "3333ms"],
    &["--lease", "20s", "--grace", "6666ms"],
    &["--lease", "30s", "--grace", "10s"],
    &["--lease", "60s", "--grace", "20s"],
];

/// Returns the program with these options of `run`, for a command that writes a word.
fn with_options(url: &str, options: &[&str], name: &str) -> Command {
    at(url, &[&["run"], options, &[name, "--", "sh", "-c", "echo done"]].concat())
}

/// Runs each line at a free lock, and at one that it has to wait for. Inspects the lock when the line has ended.
fn each_line_runs_to_its_end(url: &str) {
    let waits = LINES.map(|options| {
        let name = new_name();
        let said = said(with_options(url, options, &name));
        assert_eq!((said.code, &*said.out), (Some(0), "done\n"), "{options:?} at a free lock: {said:?}");
        nothing_is_left(&name, &format!("{options:?}"));
        let guard = hold(&name);
        (options, Running::start(with_options(url, options, &name)), guard, name)
    });
    for (options, running, guard, name) in waits {
        until_one_waits(&name);
        release(guard);
        let said = running.said();
        assert_eq!((said.code, &*said.out), (Some(0), "done\n"), "{options:?} behind a holder: {said:?}");
        nothing_is_left(&name, &format!("{options:?} behind a holder"));
    }
}

#[test]
fn command_runs_to_its_end_at_a_free_lock_and_behind_a_holder() {
    each_line_runs_to_its_end(&SERVER.url());
}

#[test]
fn command_runs_to_its_end_when_the_server_is_slow() {
    let slow = Proxy::before(SERVER.addr()).expect("it starts");
    slow.delay(Duration::from_millis(40));
    each_line_runs_to_its_end(&slow.url());
}

#[test]
fn refused_run_names_the_holder() {
    let name = new_name();
    // This character would turn the rest of the line around.
    let manager = labelled(&SERVER, "web\u{202e}12");
    let guard = hold_by(&manager, &name);
    for options in [&["-n"][..], &["-w", "0.1"], &["--read", "-n"], &["-n", "--json"]] {
        let said = said(with_options(&SERVER.url(), options, &name));
        assert_eq!((said.code, &*said.out), (Some(75), ""), "{options:?}: {said:?}");
        assert!(said.err.contains("u{202e}12") && !said.err.contains('\u{202e}'), "{options:?}: {said:?}");
        assert!(said.err.contains("(write, for ") && said.err.contains(" left)"), "{options:?}: {said:?}");
    }
    release(guard);
}

#[test]
fn note_is_shown_while_the_command_runs() {
    let name = new_name();
    let note = "deploy 4711\u{1b}[31m\u{202e} with more words than a row of a table has room for";
    let script = format!("{PROGRAM} inspect {name}; {PROGRAM} list --held; {PROGRAM} inspect --json {name}");
    let shows = output_of(&["run", "--note", note, &name, "--", "sh", "-c", &script]);
    shows.assert_code(0);
    let shown = "deploy 4711\\u{1b}[31m\\u{202e} with more words than a row of a table has room for";
    assert!(shows.out.lines().any(|line| line.starts_with("note of ") && line.ends_with(shown)), "{}", shows.out);
    let row = shows.line(&format!("{name}  write"));
    assert!(row.contains("deploy 4711\\u{1b}[31m\\u{202e} with") && row.ends_with('…'), "{row}");
    assert!(!shows.out.contains(['\u{1b}', '\u{202e}']), "{}", shows.out);
    let view = parsed(shows.out.lines().last().expect("JSON"));
    assert_eq!(view["holders"][0]["note"].as_str(), Some(note));
    assert!(is_free(&name));
    let long = "x".repeat(4097);
    output_of(&["run", "--note", &long, &name, "--", "true"]).assert_err(78, "4096 are allowed");
}

#[test]
fn default_grace_fits_a_short_lease() {
    let name = new_name();
    let guard = hold(&name);
    for lease in ["250ms", "600ms", "1s"] {
        // The machine may be too slow for such a lease, which does not matter here. The case only checks that the
        // program accepts the options and asks for the lock.
        let said = said(with_options(&SERVER.url(), &["--lease", lease, "--no-wait"], &name));
        assert_eq!(said.code, Some(75), "{lease}: {said:?}");
    }
    release(guard);
    // A grace from the user has to fit.
    output_of(&["run", "--lease", "600ms", "--grace", "200ms", &name, "--", "true"]).assert_err(2, "174ms is the most");
}

#[test]
fn who_gives_up_leaves_nothing() {
    let manager = connect();
    let mut waits = Vec::new();
    for round in 0..10 {
        for options in [&["--wait", "300ms"][..], &["--read", "--wait", "300ms"], &["--no-wait"], &["--wait", "0s"]] {
            let name = new_name();
            let guard = hold(&name);
            let running = Running::start(with_options(&SERVER.url(), options, &name));
            waits.push((format!("{options:?}, {round}"), running, guard, name));
        }
    }
    for (case, running, guard, name) in waits {
        let said = running.said();
        assert_eq!((said.code, &*said.out), (Some(75), ""), "{case}: {said:?}");
        // Inspects at once, because the place in the queue would later expire by itself.
        let view = manager.inspect(&name).expect("inspected");
        assert!(view.waiters.is_empty() && view.holders.len() == 1, "{case}: {view:?}");
        release(guard);
        assert!(is_free(&name), "{case}");
    }
}
