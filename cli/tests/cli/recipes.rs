//! Tests that run the commands of `docs/RECIPES.md`, those of `flock` beside ours.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use cluster_testenv::Node;

use crate::program::{Folder, PROGRAM, Said, said, start_node};

/// Returns the commands in the tables and blocks of the document that begin with this word.
fn commands(first: &str) -> Vec<&'static str> {
    let text = include_str!("../../../docs/RECIPES.md");
    let lines = text.lines().map(|line| line.trim_start_matches("| "));
    let cells = lines.flat_map(|line| line.split(" | ").map(|cell| cell.trim_end_matches(" |").trim_matches('`')));
    let found: Vec<_> = cells.filter(|cell| cell.split(' ').next() == Some(first) && cell.contains(".sh")).collect();
    assert!(found.len() >= 6, "{found:?}");
    found
}

/// Returns a folder with the scripts that the commands run. Each script writes its name.
fn folder() -> Folder {
    let folder = Folder::new();
    for script in ["report.sh", "mail.sh", "transfer.sh"] {
        let path = folder.path(script);
        fs::write(&path, format!("#!/bin/sh\necho {script}\n")).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("ours");
    }
    folder
}

/// Runs a command as a user types it.
fn typed(command: &str, node: &Node, folder: &Folder) -> Said {
    let mut path = Path::new(PROGRAM).parent().expect("a folder").as_os_str().to_owned();
    path.push(":");
    path.push(std::env::var_os("PATH").expect("a path"));
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).current_dir(folder.path("")).env("PATH", path).env("RWLOCK_NODE", node.url());
    said(shell)
}

/// Returns the output of the scripts that a command names, in its order.
fn expected(command: &str) -> String {
    let words = command.split([' ', '\'']).filter_map(|word| word.strip_prefix("./"));
    words.map(|script| script.to_owned() + "\n").collect()
}

#[test]
fn commands_of_the_recipes_run() {
    let (node, folder) = (start_node(), folder());
    for command in commands("redis-rwlock").into_iter().chain(commands("flock")) {
        let done = typed(command, &node, &folder);
        assert_eq!((done.code, &*done.out), (Some(0), &*expected(command)), "{command}: {done:?}");
    }
}

#[test]
fn commands_that_do_not_wait_are_refused_while_another_one_holds_the_lock() {
    let (node, folder) = (start_node(), folder());
    for (first, holder, code) in
        [("redis-rwlock", "redis-rwlock run report -- sh -c", 75), ("flock", "flock report.lock -c", 1)]
    {
        let impatient: Vec<_> = commands(first).into_iter().filter(|command| command.contains(" -n")).collect();
        let [impatient] = &*impatient else { panic!("{impatient:?}") };
        typed(&format!("{holder} '{impatient}'"), &node, &folder).assert_whole_out(code, "");
    }
}
