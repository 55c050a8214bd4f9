//! In a real terminal: what `top` shows and gives back, and a command of `run` that has the terminal.

use std::process::Command;

use redis_rwlock::blocking::RedisManager;

use crate::program::{Folder, PROGRAM, SERVER, new_name, until};

/// A terminal with a shell in it, that is gone with the case.
struct Terminal {
    socket: String,
}

impl Terminal {
    fn open() -> Self {
        let terminal = Self { socket: format!("cli-{}-{}", std::process::id(), new_name()) };
        // No file of the user's says how it behaves.
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

    fn types(&self, line: &str) {
        self.tmux(&["send-keys", "-l", line]);
        self.presses("Enter");
    }

    fn presses(&self, key: &str) {
        self.tmux(&["send-keys", key]);
    }

    fn screen(&self) -> String {
        self.tmux(&["capture-pane", "-p"])
    }

    fn shows(&self, part: &str) {
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
    let manager = RedisManager::connect(SERVER.url()).expect("connected");
    for end in ["q", "C-c"] {
        terminal.types(&format!("clear; redis-rwlock top {name}; echo ended with $?"));
        terminal.shows("1 locks, 0 held");
        let guard = manager.write(&name).wait().expect("granted");
        terminal.shows("1 locks, 1 held");
        assert!(terminal.screen().lines().any(|line| line.starts_with(&name) && line.contains("write")));
        guard.release().expect("ours to the end");
        terminal.shows("1 locks, 0 held");
        terminal.presses(end);
        terminal.shows("ended with 0");
        assert!(!terminal.screen().contains("locks, 0 held"), "the screen is as before");
        // It shows what is typed again, line by line.
        terminal.types("echo $(stty -a | tr ' ' '\\n' | grep -cx -e icanon -e echo -e isig) modes");
        terminal.shows("3 modes");
    }
}

#[test]
fn command_has_the_terminal_and_the_shell_has_it_afterwards() {
    let (name, terminal, folder) = (new_name(), Terminal::open(), Folder::new());
    let run = |script: &str| {
        terminal.types(&format!(
            "clear; cd {}; redis-rwlock run {name} -- sh -c '{script}'; echo ended with $?",
            folder.path("").display()
        ));
    };
    run("echo one; read line; echo heard $line");
    terminal.shows("one\n");
    terminal.types("hello");
    terminal.shows("heard hello");
    terminal.shows("ended with 0");

    run("echo two; while :; do sleep 0.05; done");
    terminal.shows("two\n");
    // Nobody could let it go on.
    terminal.presses("C-z");
    terminal.presses("C-c");
    terminal.shows("ended with 130");

    // Also when it is killed since the lock is gone.
    run("trap \"\" INT; echo three; while :; do sleep 0.05; done");
    terminal.shows("three\n");
    let manager = RedisManager::connect(SERVER.url()).expect("connected");
    manager.force_release(&name).expect("forced");
    terminal.shows("ended with 76");
    terminal.types("clear; echo still $((40 + 2))");
    terminal.shows("still 42");
}
