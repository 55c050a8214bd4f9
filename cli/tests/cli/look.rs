//! Tests the output about locks and about the program itself, and the sources of the servers' addresses.

use std::thread;
use std::time::Duration;

use crate::program::{
    Folder, SERVER, at, hold, hold_by, labelled, new_name, output_of, parsed, release, said, start_node, until, view,
    without_node,
};

#[test]
fn locks_are_shown_to_people_and_programs() {
    // A name may contain any character, but none may control the terminal.
    let (held, free) = (format!("{}\u{1b}[31m", new_name()), new_name());
    let shown = held.replace('\u{1b}', "\\u{1b}");
    let guard = hold(&held);
    let people = output_of(&["inspect", &held]);
    assert!(people.code == Some(0) && people.out.contains("write") && people.out.contains(&shown), "{people:?}");
    let json = view(&held);
    assert_eq!((json["name"].as_str(), json["holders"][0]["mode"].as_str()), (Some(&*held), Some("write")));
    let holder = &json["holders"][0];
    let times = ["age", "remaining"].map(|field| holder[field].as_str().unwrap_or_default());
    assert!(times.iter().all(|time| time.ends_with('s')), "as people write them: {holder}");
    output_of(&["inspect", &free]).assert_code(1);

    let list = output_of(&["list"]);
    let line = list.line(&format!("{shown} "));
    assert!(line.contains("write") && !list.out.contains('\u{1b}'), "{list:?}");
    let json = parsed(&output_of(&["list", "--json"]).out);
    assert!(json.as_array().expect("a list").iter().any(|lock| lock["name"] == *held));
    release(guard);
}

#[test]
fn detached_hold_is_shown_with_its_label_and_without_its_id() {
    let name = new_name();
    let guard = hold_by(&labelled(&SERVER, "web-1"), &name);
    let ticket = guard.detach(Duration::from_secs(300)).expect("detached");
    let id = serde_json::to_value(&ticket).expect("JSON")["id"].as_str().expect("a text").to_owned();
    let people = output_of(&["inspect", &name]);
    let line = people.line("detached");
    assert!(people.code == Some(0) && line.contains("web-1") && line.ends_with(" left"), "{people:?}");
    let list = output_of(&["list", "--held"]);
    let line = list.line(&format!("{name} "));
    assert!(line.contains(" detached ") && line.contains("web-1"), "{line}");
    let json = output_of(&["inspect", "--json", &name]);
    let view = parsed(&json.out);
    assert_eq!((&view["holders"][0]["detached"], &view["holders"][0]["label"]), (&true.into(), &"web-1".into()));
    let waits = output_of(&["run", "-w", "2.5", &name, "--", "true"]);
    waits.assert_err(75, "web-1 (detached, ");
    for told in [&people, &list, &json, &waits] {
        assert!(!told.out.contains(&id[..32]) && !told.err.contains(&id[..32]), "{told:?}");
    }
}

#[test]
fn ring_of_waits_is_shown_as_a_possible_deadlock() {
    let node = start_node();
    let deadlocks = |args: &[&str]| said(at(&node.url(), &[&["deadlocks"], args].concat()));
    deadlocks(&[]).assert_whole_out(0, "no deadlock\n");
    let names = ["first\u{1b}[31m", "second"];
    let managers = ["a\u{202e}", "b"].map(|label| labelled(&node, label));
    let guards = [0, 1].map(|n| managers[n].write(names[n]).wait().expect("granted"));
    let limit = Duration::from_secs(60);
    let tasks = [0, 1].map(|n| {
        let manager = managers[n].clone();
        thread::spawn(move || drop(manager.write(names[1 - n]).wait_timeout(limit).wait()))
    });
    until("both wait", || names.iter().all(|name| !managers[0].inspect(name).expect("inspected").waiters.is_empty()));
    let ring = deadlocks(&[]);
    assert!(ring.code == Some(1) && ring.out.starts_with("possible deadlock:\n"), "{ring:?}");
    assert_eq!(ring.out.lines().count(), 3, "{ring:?}");
    for part in ["\"a\\u{202e}\" waits to write \"second\" for ", "held by \"b\" (write, for ", "\"first\\u{1b}[31m\""]
    {
        assert!(ring.out.contains(part), "{part}: {}", ring.out);
    }
    assert!(!ring.out.contains(['\u{202e}', '\u{1b}']), "{}", ring.out);
    let json = parsed(&deadlocks(&["--json"]).out);
    let wait = &json[0]["waits"][0];
    assert!(wait["waiting_ms"].as_u64() >= Some(1_000) && wait["age_ms"].is_u64(), "{json}");
    assert!(names.contains(&wait["lock"].as_str().expect("a name")), "{json}");
    guards.into_iter().for_each(drop);
    tasks.into_iter().for_each(|task| task.join().expect("no panic"));
    deadlocks(&[]).assert_code(0);
}

#[test]
fn force_asks_before_it_acts() {
    let name = new_name();
    let guard = hold(&name);
    output_of(&["force-release", &name]).assert_err(2, "--yes");
    guard.release().expect("nothing was done");
}

#[test]
fn command_line_counts_more_than_the_environment_and_that_more_than_a_file() {
    let (name, folder, url) = (new_name(), Folder::new(), SERVER.url());
    let config = |name: &str, url: &str| {
        folder.write(name, &format!(r#"{{"topology": {{"node": "{url}"}}, "lease": "15s", "tls": null}}"#))
    };
    let nowhere = "redis://:s3cret@127.0.0.1:1";
    let (good, wrong) = (config("good.json", &url), config("wrong.json", nowhere));
    said(without_node(&["inspect", &name, "--config", &good])).assert_code(1);
    output_of(&["inspect", &name, "--config", &wrong]).assert_code(1);
    said(at(nowhere, &["inspect", &name, "--url", &url])).assert_code(1);

    let mut down = at(nowhere, &["inspect", &name, "--json"]);
    down.env("RWLOCK_UNREACHABLE_AFTER", "100ms");
    let down = said(down);
    let error = parsed(&down.err);
    assert_eq!((down.code, error["exit_code"].as_i64()), (Some(69), Some(69)));
    assert!(!down.err.contains("s3cret"), "{down:?}");

    said(without_node(&["inspect", &name])).assert_err(78, "RWLOCK_NODE");
}

#[test]
fn wrong_values_are_told_without_passwords() {
    let folder = Folder::new();
    let broken = folder.write("broken.json", r#"{"topology": {"node": "redis://:s3cret@h"#);
    let misspelt = folder.write("misspelt.json", r#"{"topology": {"node": "redis://:s3cret@h"}, "leese": "1s"}"#);
    for args in [
        &["--config", &broken][..],
        &["--config", &misspelt],
        &["--url", "redis://:s3cret@h:port"],
        &["--sentinel", "redis://:s3cret@h"],
    ] {
        let said = output_of(&[args, &["inspect", "x"]].concat());
        assert!(matches!(said.code, Some(2 | 78)) && !said.err.contains("s3cret"), "{said:?}");
    }
}

#[test]
fn completions_manual_pages_and_help_are_written() {
    let codes = ["69", "75", "76", "lock was lost", "trying again later"];
    let of_run = [&codes[..], &["--grace"]].concat();
    for (args, parts) in [
        (&["completions", "bash"][..], &["force-release"][..]),
        (&["completions", "zsh"], &["force-release"]),
        (&["completions", "fish"], &["force-release"]),
        (&["man"], &codes),
        (&["--help"], &codes),
        (&["man", "run"], &of_run),
        (&["run", "--help"], &of_run),
        (&["help", "run"], &of_run),
    ] {
        let said = output_of(args);
        let text = said.out.replace('\\', "");
        let is_whole = parts.iter().all(|part| text.contains(part)) && !text.contains("watch-over");
        assert!(said.code == Some(0) && is_whole, "{args:?}: {said:?}");
    }
}
