//! Tests `run` as users start it, with the lines of `docs/CLI.md` behind another holder.
//!
//! The places are a terminal, a pipe, the background, below `nohup`, process 1 and a slow server. The tests inspect the
//! lock when the program has ended.

use std::fs;
use std::io::{self, Write};
use std::process::Command;
use std::sync::LazyLock;
use std::time::Duration;

use cluster_testenv::Proxy;
use rustix::process::Signal;

use crate::program::{
    Folder, PROGRAM, Running, SERVER, connect, hold, name_and_folder, nothing_is_left, processes, release, send,
    until_one_waits,
};

/// Command of a line.
const JOB: &str = "sh -c 'echo inside >>jobs'";
/// Command that reports its start and then waits for a file.
const PATIENT_JOB: &str = r#"sh -c 'trap "echo heard >heard" USR1; echo $PPID >ready; until [ -e go ]; do sleep 0.02; done; echo inside >>jobs'"#;

/// Place where a line is started.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    /// Started by another program that reads its output, such as a test or a supervisor.
    Plain,
    Terminal,
    Pipe,
    Background,
    Nohup,
    /// First process of a container.
    ProcessOne,
    SlowServer,
}

impl Place {
    const ALL: [Self; 7] =
        [Self::Plain, Self::Terminal, Self::Pipe, Self::Background, Self::Nohup, Self::ProcessOne, Self::SlowServer];

    /// Returns the line as a user types it in this place. Its exit code is that of the line.
    fn line(self, line: &str) -> String {
        match self {
            Self::Plain | Self::Terminal | Self::SlowServer => line.to_owned(),
            Self::Pipe => format!("set -o pipefail; {{ {line}; }} | cat"),
            Self::Background => format!("{line} & wait $!"),
            Self::Nohup => line.replacen(PROGRAM, &format!("nohup {PROGRAM}"), 1),
            Self::ProcessOne => {
                line.replacen(PROGRAM, &format!("unshare --pid --fork --kill-child --mount-proc {PROGRAM}"), 1)
            }
        }
    }

    fn start(self, line: &str, folder: &Folder) -> Running {
        let line = self.line(line);
        let mut command = if self == Self::Terminal {
            // `script` makes a terminal.
            let mut script = Command::new("script");
            script.args(["-qec", &line, "/dev/null"]);
            script
        } else {
            // Only bash reports the exit code of the first program of a pipe.
            let mut shell = Command::new(if self == Self::Pipe { "bash" } else { "sh" });
            shell.args(["-c", &line]);
            shell
        };
        let url = if self == Self::SlowServer { SLOW.url() } else { SERVER.url() };
        command.env("RWLOCK_NODE", url).current_dir(folder.path("")).stdin(std::process::Stdio::null());
        Running::told_in(folder, command)
    }

    fn is_there(self) -> bool {
        self != Self::ProcessOne || *HAS_NAMESPACES
    }
}

static SLOW: LazyLock<Proxy> = LazyLock::new(|| {
    let slow = Proxy::before(SERVER.addr()).expect("it starts");
    slow.delay(Duration::from_millis(40));
    slow
});

/// True if the program can be process 1 on this machine, which a container without privileges does not allow.
static HAS_NAMESPACES: LazyLock<bool> = LazyLock::new(|| {
    let tried = Command::new("unshare").args(["--pid", "--fork", "--mount-proc", "true"]).output();
    let has = tried.is_ok_and(|tried| tried.status.success());
    if !has {
        // A test captures the output of a macro, but not this.
        writeln!(io::stderr(), "NOT CHECKED: redis-rwlock as process 1, since `unshare --pid` is not allowed")
            .expect("written");
    }
    has
});

/// Options of `run` that users give, and their result behind another holder.
#[derive(Clone, Debug)]
struct Line {
    /// Text with `NAME` for the lock and `JOB` for the command.
    text: String,
    /// True if the line does not wait when other processes have the lock.
    is_busy: bool,
}

/// Returns all lines of docs/CLI.md, and options of `help run`.
fn lines() -> Vec<Line> {
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/CLI.md")).expect("it is there");
    let of_page = page.split("```").skip(1).step_by(2).flat_map(str::lines);
    let of_page = of_page.filter_map(|line| Some(&line[line.find("redis-rwlock run ")?..]));
    let of_page = of_page.map(|line| {
        let (options, job) = line.trim_start_matches("redis-rwlock run ").split_once(" -- ").expect("a command");
        let options = options.rsplit_once(' ').map_or("", |(options, _)| options);
        let rest = job.split_once(' ').map_or("", |(_, rest)| rest);
        (options.to_owned(), rest.to_owned())
    });
    let mut lines: Vec<(String, String)> = of_page.collect();
    assert!(lines.len() == 5, "docs/CLI.md has other lines than these: {lines:?}");
    let of_help = ["--read", "-w 60", "-n", "--no-wait --read", "-w 0.1", "--lease 3 --grace 1 -w 60", "--max-hold 60"];
    lines.extend(of_help.map(|options| (options.to_owned(), String::new())));
    let line = |(options, rest): (String, String)| Line {
        text: format!("{PROGRAM} run {options} NAME -- JOB {rest}"),
        is_busy: options.split(' ').any(|word| matches!(word, "-n" | "-nq" | "--no-wait" | "0.1")),
    };
    lines.into_iter().map(line).collect()
}

impl Line {
    /// Inserts the names of locks that no other case uses, and a command.
    fn with(&self, name: &str, job: &str) -> String {
        self.text.replace("account:", &format!("{name}-account:")).replace("NAME", name).replace("JOB", job)
    }

    /// Returns the exit code at a busy lock. The line of cron treats another machine's job as a success.
    fn busy_code(&self) -> i32 {
        if self.text.contains("-eq 75") { 0 } else { 75 }
    }
}

/// Starts each line behind another holder. Inspects the lock when the lines that do not wait have ended. Then releases
/// the holder, and inspects the lock again when all have ended.
fn every_line_works_behind_a_holder(place: Place) {
    if !place.is_there() {
        return;
    }
    let manager = connect();
    let started = lines().into_iter().map(|line| {
        let (name, folder) = name_and_folder();
        let guard = hold(&name);
        let running = place.start(&line.with(&name, JOB), &folder);
        (line, name, folder, guard, running)
    });
    for (line, name, folder, guard, running) in started.collect::<Vec<_>>() {
        let case = format!("{place:?}: {}", line.text);
        if line.is_busy {
            let said = running.said();
            assert_eq!(said.code, Some(line.busy_code()), "{case}: {said:?} {}", folder.read("err"));
            let view = manager.inspect(&name).expect("inspected");
            assert!(view.waiters.is_empty() && view.holders.len() == 1, "{case}: {view:?}");
            release(guard);
        } else {
            until_one_waits(&name);
            release(guard);
            let said = running.said();
            assert_eq!(said.code, Some(0), "{case}: {said:?} {}", folder.read("err"));
        }
        assert_eq!(folder.read("jobs").lines().count(), usize::from(!line.is_busy), "{case}");
        nothing_is_left(&name, &case);
    }
}

/// Ends each line by the signal of a supervisor, while its command runs and while it waits.
fn every_line_ends_by_a_signal(place: Place) {
    if !place.is_there() {
        return;
    }
    let manager = connect();
    for line in lines().into_iter().filter(|line| !line.is_busy) {
        let (name, folder) = name_and_folder();
        let running = place.start(&line.with(&name, PATIENT_JOB), &folder);
        folder.line("ready");
        manager.inspect(&name).expect("inspected").holders.first().expect("one is inside");
        let pid = pid_of(&name);
        send(Signal::TERM, pid);
        let case = format!("{place:?}: {}", line.text);
        let said = running.said();
        assert_eq!(said.code, Some(128 + Signal::TERM.as_raw()), "{case}: {said:?} {}", folder.read("err"));
        nothing_is_left(&name, &case);
    }
}

/// Returns the process of `run` that has this lock. The id is the one in this machine's namespace, not in the process's
/// own.
fn pid_of(name: &str) -> i32 {
    let is_it = |pid: &i32| {
        let words = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words: Vec<&str> = words.split('\0').collect();
        words.first() == Some(&PROGRAM) && words.contains(&name)
    };
    processes().find(is_it).expect("it runs")
}

#[test]
fn every_line_works_behind_a_holder_as_a_plain_process() {
    every_line_works_behind_a_holder(Place::Plain);
}

#[test]
fn every_line_works_behind_a_holder_in_a_terminal() {
    every_line_works_behind_a_holder(Place::Terminal);
}

#[test]
fn every_line_works_behind_a_holder_in_a_pipe() {
    every_line_works_behind_a_holder(Place::Pipe);
}

#[test]
fn every_line_works_behind_a_holder_in_the_background() {
    every_line_works_behind_a_holder(Place::Background);
}

#[test]
fn every_line_works_behind_a_holder_below_nohup() {
    every_line_works_behind_a_holder(Place::Nohup);
}

#[test]
fn every_line_works_behind_a_holder_as_process_1() {
    every_line_works_behind_a_holder(Place::ProcessOne);
}

#[test]
fn every_line_works_behind_a_holder_at_a_slow_server() {
    every_line_works_behind_a_holder(Place::SlowServer);
}

#[test]
fn every_line_ends_by_a_signal_in_every_place() {
    Place::ALL.into_iter().for_each(every_line_ends_by_a_signal);
}

/// Signals that each place ignores, and its line.
fn deaf_places() -> [(Place, Signal); 3] {
    [(Place::Nohup, Signal::HUP), (Place::Background, Signal::INT), (Place::Background, Signal::QUIT)]
}

#[test]
fn signal_that_was_ignored_at_the_start_ends_no_command() {
    for (place, signal) in deaf_places() {
        let (name, folder) = name_and_folder();
        let running = place.start(&format!("{PROGRAM} run {name} -- {PATIENT_JOB}"), &folder);
        let pid: i32 = folder.line("ready").parse().expect("a process id");
        send(signal, pid);
        // Signals that are not ignored arrive. `run` forwards this one after the other one.
        send(Signal::USR1, pid);
        folder.line("heard");
        folder.write("go", "");
        let said = running.said();
        assert_eq!(said.code, Some(0), "{place:?}: {said:?} {}", folder.read("err"));
        assert_eq!(folder.read("jobs"), "inside\n", "{place:?}");
        nothing_is_left(&name, &format!("{place:?}"));
    }
}

#[test]
fn signal_that_was_ignored_at_the_start_ends_no_wait() {
    for (place, signal) in deaf_places() {
        let (name, folder) = name_and_folder();
        let guard = hold(&name);
        let running = place.start(&format!("{PROGRAM} run {name} -- {JOB}"), &folder);
        until_one_waits(&name);
        send(signal, pid_of(&name));
        release(guard);
        let said = running.said();
        assert_eq!(said.code, Some(0), "{place:?}: {said:?} {}", folder.read("err"));
        nothing_is_left(&name, &format!("{place:?}"));
    }
}

#[test]
fn process_1_takes_ended_orphans_away() {
    if !Place::ProcessOne.is_there() {
        return;
    }
    let (name, folder) = name_and_folder();
    // Each shell leaves a process behind, which becomes a child of process 1 and ends.
    let orphans = "for i in 1 2 3 4 5 6 7 8 9 10; do sh -c 'sleep 0.01 & echo made >>made'; done";
    let are_there = "grep -qs '^Name:.sleep' /proc/[0-9]*/status";
    let job = format!("{orphans}; while {are_there}; do sleep 0.02; done; echo inside >>jobs");
    folder.write("job", &job);
    let running = Place::ProcessOne.start(&format!("exec {PROGRAM} run {name} -- sh job"), &folder);
    let said = running.said();
    assert_eq!(said.code, Some(0), "{said:?} {}", folder.read("err"));
    assert_eq!((folder.read("made").lines().count(), &*folder.read("jobs")), (10, "inside\n"));
    nothing_is_left(&name, "as process 1");
}
