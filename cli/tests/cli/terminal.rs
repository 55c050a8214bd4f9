//! Tests in a real terminal: the screen of `top` and its restoration, and a command of `run` that uses the terminal.

use std::fs;
use std::process::Command;

use crate::program::{Folder, PROGRAM, SERVER, connect, hold, is_free, new_name, until};

/// Terminal with a shell in it, which ends with the case.
pub(crate) struct Terminal {
    socket: String,
}

impl Terminal {
    pub(crate) fn open() -> Self {
        let terminal = Self { socket: format!("cli-{}-{}", std::process::id(), new_name()) };
        // No configuration file of the user may change its behaviour.
        terminal.tmux(&[
            "-f",
            "/dev/null",
            "new-session",
            "-d",
            "-x",
            "100",
            "-y",
            "20",
            "env",
            "PS1=prompt:",
            "sh",
            "-i",
        ]);
        terminal.shows("prompt:");
        terminal.types(&format!("export RWLOCK_NODE={} PATH={}:$PATH", SERVER.url(), folder_of_program()));
        terminal
    }

    fn tmux(&self, args: &[&str]) -> String {
        let output = Command::new("tmux").args(["-L", &self.socket]).args(args).output();
        let output = output.expect("tmux is installed: apt-get install tmux");
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    pub(crate) fn types(&self, line: &str) {
        self.tmux(&["send-keys", "-l", line]);
        self.presses("Enter");
    }

    fn enters(&self, folder: &Folder) {
        self.types(&format!("clear; cd {}", folder.path("").display()));
    }

    pub(crate) fn presses(&self, key: &str) {
        self.tmux(&["send-keys", key]);
    }

    pub(crate) fn screen(&self) -> String {
        self.tmux(&["capture-pane", "-p"])
    }

    pub(crate) fn shows(&self, part: &str) {
        until(part, || self.screen().contains(part));
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        drop(Command::new("tmux").args(["-L", &self.socket, "kill-server"]).output());
    }
}

fn folder_of_program() -> &'static str {
    PROGRAM.rsplit_once('/').expect("a path").0
}

#[test]
fn top_shows_locks_as_they_change_and_gives_the_terminal_back() {
    let (name, terminal) = (new_name(), Terminal::open());
    for end in ["q", "C-c"] {
        terminal.types(&format!("clear; redis-rwlock top {name}; echo ended with $?"));
        terminal.shows("1 locks, 0 held");
        let guard = hold(&name);
        terminal.shows("1 locks, 1 held");
        assert!(terminal.screen().lines().any(|line| line.starts_with(&name) && line.contains("write")));
        guard.release().expect("ours to the end");
        terminal.shows("1 locks, 0 held");
        terminal.presses(end);
        terminal.shows("ended with 0");
        assert!(!terminal.screen().contains("locks, 0 held"), "the screen is as before");
        // The terminal echoes and works line by line again.
        terminal.types("echo $(stty -a | tr ' ' '\\n' | grep -cx -e icanon -e echo -e isig) modes");
        terminal.shows("3 modes");
    }
}

#[test]
fn command_has_the_terminal_and_the_shell_has_it_afterwards() {
    let (name, terminal, folder) = (new_name(), Terminal::open(), Folder::new());
    terminal.enters(&folder);
    let run = |script: &str| {
        terminal.types(&format!("clear; redis-rwlock run {name} -- sh -c '{script}'; echo ended with $?"));
    };
    run("echo one; read line; echo heard $line");
    terminal.shows("one\n");
    terminal.types("hello");
    terminal.shows("heard hello");
    terminal.shows("ended with 0");

    run("echo two; while :; do sleep 0.05; done");
    terminal.shows("two\n");
    // Ctrl-Z must not stop the command, because no process could continue it.
    terminal.presses("C-z");
    terminal.presses("C-c");
    // The shell leaves the rest of its line out, because the program was ended by SIGINT.
    until("the prompt", || terminal.screen().trim_end().ends_with("prompt:"));
    assert!(!terminal.screen().contains("\nended with"), "{}", terminal.screen());
    terminal.types("echo ended with $?");
    terminal.shows("\nended with 130");

    // The shell also gets the terminal back when the command is killed because the lock is lost.
    run("trap \"\" INT; echo three; while :; do sleep 0.05; done");
    terminal.shows("three\n");
    let manager = connect();
    manager.force_release(&name).expect("forced");
    terminal.shows("ended with 76");
    terminal.types("clear; echo still $((40 + 2))");
    terminal.shows("still 42");
}

/// Command that needs the terminal, though none of its streams leads there.
const READER: &str = "sh -c 'echo >ready; read line </dev/tty; echo heard $line'";

/// Asserts that the command reads the typed word and writes it.
fn word_arrives(terminal: &Terminal, folder: &Folder) {
    terminal.types("hello");
    assert_eq!(folder.line("out"), "heard hello");
    // The shell continues when the whole line has ended.
    let end = new_name();
    terminal.types(&format!("clear; echo $((40 + 2)) {end}"));
    terminal.shows(&format!("42 {end}"));
}

#[test]
fn command_reads_from_the_terminal_wherever_its_streams_lead() {
    let (name, terminal, folder) = (new_name(), Terminal::open(), Folder::new());
    terminal.enters(&folder);
    for streams in [">out", "</dev/null >out", ">out 2>&1", "| cat >out", "</dev/null 2>&1 | cat | cat >out"] {
        // Removed here, not by the shell: the file of the round before must not be taken for the one of this round.
        ["ready", "out"].iter().for_each(|file| drop(fs::remove_file(folder.path(file))));
        terminal.types(&format!("redis-rwlock run {name} -- {READER} {streams}"));
        folder.line("ready");
        word_arrives(&terminal, &folder);
        assert!(is_free(&name), "{streams}");
    }
}

#[test]
fn modes_of_the_terminal_are_for_the_command_in_a_pipe_to_change() {
    let (name, terminal, folder) = (new_name(), Terminal::open(), Folder::new());
    terminal.enters(&folder);
    // The command turns the echo off, as for a password. Another signal (SIGTTOU) stops it for this.
    let asks = "sh -c 'stty -echo </dev/tty; read line </dev/tty; stty echo </dev/tty; echo heard $line'";
    terminal.types(&format!("redis-rwlock run {name} -- {asks} | cat >out"));
    word_arrives(&terminal, &folder);
    assert!(is_free(&name));
}

#[test]
fn command_in_the_background_that_needs_the_terminal_is_told_and_gets_it_with_fg() {
    let (name, terminal, folder) = (new_name(), Terminal::open(), Folder::new());
    terminal.enters(&folder);
    terminal.types(&format!("redis-rwlock run {name} -- {READER} >out &"));
    terminal.shows("is kept, but the command is stopped by SIGTTIN");
    assert!(!is_free(&name));
    terminal.types("fg");
    word_arrives(&terminal, &folder);
    assert!(is_free(&name));
}

#[test]
fn key_that_stops_stops_nothing_of_a_pipe() {
    let (name, terminal, folder) = (new_name(), Terminal::open(), Folder::new());
    let script = "sh -c 'echo >ready; until [ -e go ]; do sleep 0.02; done; echo done'";
    // dash assumes that `cat` stays stopped once it has seen the stop, and shows 148 at the end.
    terminal.enters(&folder);
    terminal.types("exec bash --norc");
    terminal.types(&format!("redis-rwlock run {name} -- {script} | cat; echo ended with $?"));
    folder.line("ready");
    terminal.presses("C-z");
    terminal.shows("^Z");
    folder.write("go", "");
    // Otherwise the shell would see it as stopped, and end with 148.
    terminal.shows("ended with 0");
    assert!(terminal.screen().contains("done\n"), "{}", terminal.screen());
    assert!(is_free(&name));
}
