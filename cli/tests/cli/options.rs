//! Names and values of options: their owners, and the words for wrong ones.

use std::fs;
use std::path::Path;
use std::process::Command;

use cluster_testenv::{Node, Server};

use crate::program::{
    Folder, Running, SERVER, at, connect, name_and_folder, new_name, output_of, program, said, start_node,
    three_primaries, without_node,
};

fn with(variables: &[(&str, &str)], args: &[&str]) -> Command {
    let mut command = program(args);
    command.envs(variables.iter().copied());
    command
}

#[test]
fn services_that_are_called_like_the_program_do_not_stop_it() {
    // Kubernetes writes such variables for the services `rwlock` and `rwlock-node`, and Docker for a link.
    let theirs = [
        ("RWLOCK_SERVICE_HOST", "10.0.0.1"),
        ("RWLOCK_SERVICE_PORT", "6379"),
        ("RWLOCK_SERVICE_PORT_REDIS", "6379"),
        ("RWLOCK_PORT", "tcp://10.0.0.1:6379"),
        ("RWLOCK_PORT_6379_TCP", "tcp://10.0.0.1:6379"),
        ("RWLOCK_PORT_6379_TCP_PROTO", "tcp"),
        ("RWLOCK_PORT_6379_TCP_PORT", "6379"),
        ("RWLOCK_PORT_6379_TCP_ADDR", "10.0.0.1"),
        ("RWLOCK_NODE_SERVICE_HOST", "10.0.0.1"),
        ("RWLOCK_NODE_PORT", "tcp://10.0.0.1:6379"),
        ("RWLOCK_NAME", "/web/rwlock"),
    ];
    let said = said(with(&theirs, &["run", &new_name(), "--", "true"]));
    assert!(said.code == Some(0) && said.err.is_empty(), "{said:?}");
}

#[test]
fn misspelt_variable_is_an_error_and_a_strange_one_a_line() {
    for (name, meant) in [("RWLOCK_LEASE_", "RWLOCK_LEASE"), ("RWLOCK_WAIT_TIMOUT", "RWLOCK_WAIT_TIMEOUT")] {
        let said = said(with(&[(name, "1s")], &["inspect", "x"]));
        assert!(said.code == Some(78) && said.err.contains(name) && said.err.contains(meant), "{said:?}");
    }
    let strange = said(with(&[("RWLOCK_COLOUR", "red")], &["inspect", &new_name()]));
    assert!(
        strange.code == Some(1) && strange.err.contains("RWLOCK_COLOUR") && strange.err.lines().count() == 1,
        "{strange:?}"
    );
}

#[test]
fn password_file_is_for_all_commands() {
    let server = Node::builder(Server::Redis70).password("s3cret").start().expect("the server starts");
    let url = format!("redis://{}", server.addr());
    let (name, folder) = name_and_folder();
    let (password, wrong) = (folder.write("password", "s3cret\n"), folder.write("wrong", "other\n"));
    let empty = folder.write("empty", "\n");
    let config =
        folder.write("c.json", &format!(r#"{{"topology": {{"node": "{url}"}}, "password_file": "{password}"}}"#));
    let commands = [
        (&["run", &name, "--", "true"][..], 0),
        (&["inspect", &name], 1),
        (&["list"], 0),
        (&["force-release", &name, "--yes"], 1),
        (&["doctor"], 0),
    ];
    for (command, code) in commands {
        let by_option = at(&url, &[&["--password-file", &password], command].concat());
        let mut by_variable = at(&url, command);
        by_variable.env("RWLOCK_PASSWORD_FILE", &password);
        let by_config = without_node(&[&["--config", &config], command].concat());
        for command in [by_option, by_variable, by_config] {
            let said = said(command);
            assert!(said.code == Some(code) && !said.err.contains("s3cret"), "{said:?}");
        }
    }
    let doctor = said(at(&url, &["--password-file", &wrong, "doctor"]));
    doctor.assert_out(1, "the password in the file");
    let missing = folder.path("missing").to_str().expect("text").to_owned();
    let two = url.replace("redis://", "redis://:s3cret@");
    for (url, path, part) in [(&url, &missing, "missing"), (&url, &empty, "is empty"), (&two, &password, "the URL")] {
        for command in [&["run", &name, "--", "true"][..], &["inspect", &name], &["doctor"]] {
            let said = said(at(url, &[&["--password-file", path], command].concat()));
            let is_named = said.err.contains("--password-file: ") && said.err.contains(part);
            assert!(said.code == Some(78) && is_named && !said.err.contains("s3cret"), "{said:?}");
        }
    }
}

#[test]
fn wrong_values_are_called_as_they_were_given() {
    let (folder, url) = (Folder::new(), SERVER.url());
    let file =
        |name: &str, fields: &str| folder.write(name, &format!(r#"{{"topology": {{"node": "{url}"}}, {fields}}}"#));
    let lease = file("lease.json", r#""lease": "1ms""#);
    let text = file("text.json", r#""lease": "soon""#);
    let unknown = file("unknown.json", r#""colour": "red""#);
    let misspelt = file("misspelt.json", r#""timestamp_clients": {"reed": "1s"}"#);
    let nested = file("nested.json", r#""durability": {"replicas": 0, "timeout": "1ms"}"#);
    let inspect = ["inspect", "x"];
    let by_file = |file: &str| without_node(&[&["--config", file][..], &inspect].concat());
    for (command, parts) in [
        (by_file(&lease), vec!["lease in ", "lease.json"]),
        (by_file(&text), vec!["lease in ", "text.json", "soon"]),
        (by_file(&unknown), vec!["unknown.json", "colour"]),
        (by_file(&misspelt), vec!["misspelt.json", "timestamp_clients.reed", "timestamp_clients.read"]),
        (by_file(&nested), vec!["durability.replicas in ", "nested.json"]),
        (with(&[("RWLOCK_LEASE", "1ms")], &inspect), vec!["RWLOCK_LEASE: "]),
        (with(&[("RWLOCK_LEASE", "soon")], &inspect), vec!["RWLOCK_LEASE: "]),
        (with(&[("RWLOCK_TLS_CA", "/nowhere.pem")], &inspect), vec!["RWLOCK_TLS_CA: ", "/nowhere.pem"]),
        (program(&["run", "--lease", "1ms", "--grace", "0", "x", "--", "true"]), vec!["--lease: "]),
        (program(&["--label", "two words", "inspect", "x"]), vec!["--label: "]),
        (program(&["--url", "http://nowhere", "inspect", "x"]), vec!["--url: "]),
        (at("http://nowhere", &inspect), vec!["RWLOCK_NODE: "]),
    ] {
        let said = said(command);
        let begins = said.err.lines().next().unwrap_or_default();
        assert!(said.code == Some(78) && parts.iter().all(|part| begins.contains(part)), "{parts:?}: {said:?}");
        for other in ["RWLOCK_", "--"] {
            let is_given = parts.iter().any(|part| part.contains(other));
            assert!(is_given || !begins.contains(other), "nobody has used {other}: {said:?}");
        }
    }
}

#[test]
fn advice_is_in_words_of_the_command_line() {
    let cluster = three_primaries();
    let said_at = |variable: &str, url: &str| {
        let mut command = without_node(&["inspect", "x"]);
        command.env(variable, url);
        said(command)
    };
    said_at("RWLOCK_NODE", &cluster.urls()[0]).assert_err(77, "--cluster or RWLOCK_CLUSTER");
    said_at("RWLOCK_CLUSTER", &SERVER.url()).assert_err(77, "--url or RWLOCK_NODE");
}

/// Tests that the program replaces each name that the library uses for programmers.
#[test]
fn every_name_of_the_library_has_a_word_for_users() {
    let table = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/exit.rs")).expect("there");
    let (_, table) = table.split_once("const WORDS").expect("the table");
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("../src")];
    let mut found = 0;
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("there") {
            let path = entry.expect("there").path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = fs::read_to_string(&path).expect("text");
            let code = text.split("#[cfg(test)]").next().unwrap_or_default();
            let code = code.split("#[cfg(all(test, ").next().unwrap_or_default();
            for line in code.lines().filter(|line| line.contains('"') && !line.trim_start().starts_with("//")) {
                // Only names in messages count, not those of doc attributes.
                for name in line.split('`').skip(1).step_by(2).filter(|_| !line.contains("doc = ")) {
                    let is_of_rust = name.contains("::") && !name.contains(":/") || name == "Tls";
                    if is_of_rust {
                        found += 1;
                        assert!(
                            table.contains(&format!("`{name}`")),
                            "{}: {name} has no word for users",
                            path.display()
                        );
                    }
                }
            }
        }
    }
    assert!(found > 5, "{found}: the messages are elsewhere");
}

#[test]
fn options_of_flock_are_known() {
    let name = new_name();
    let manager = connect();
    let reader = manager.read(&name).wait().expect("granted");
    let run = |options: &[&str]| output_of(&[&["run"][..], options, &[&name, "--", "echo", "ran"]].concat());
    run(&["-s", "-n"]).assert_whole_out(0, "ran\n");
    run(&["--shared", "-n"]).assert_code(0);
    for options in
        [&["-n"][..], &["-x", "-n"], &["-w", "0"], &["-w", "0.2"], &["-w", ".2"], &["--wait", "0.2"], &["-w", "200ms"]]
    {
        let refused = run(options);
        assert!(
            refused.code == Some(75) && refused.out.is_empty() && refused.err.contains(&name),
            "{options:?}: {refused:?}"
        );
        assert!(!refused.err.contains("wait_timeout"), "that name is for programmers: {refused:?}");
    }
    for options in [&["-n", "-q"][..], &["-nq"], &["-w", "0.2", "--quiet"], &["-qw", "2.5"]] {
        let refused = run(options);
        assert_eq!((refused.code, &*refused.out, &*refused.err), (Some(75), "", ""), "{options:?}: {refused:?}");
    }
    reader.release().expect("ours to the end");
    for options in [&["-w", "5"][..], &["--wait", "5", "--lease", "9", "--grace", "2.5", "--max-hold", "60"]] {
        assert_eq!(run(options).code, Some(0), "{options:?}");
    }
    run(&["-w", "5 s"]).assert_err(2, "is no duration");
}

#[test]
fn silent_server_and_the_lock_are_named() {
    let node = start_node();
    let (url, address, name) = (node.url(), format!("127.0.0.1:{}", node.port()), new_name());
    node.pause();
    for args in [&["run", "-n", &name, "--", "true"][..], &["run", &name, "--", "true"], &["inspect", &name]] {
        let mut command = at(&url, args);
        command.env("RWLOCK_UNREACHABLE_AFTER", "300ms").env("RWLOCK_RESPONSE_TIMEOUT", "100ms");
        let said = said(command);
        assert!(said.code == Some(69) && said.err.contains(&address) && said.err.contains(&name), "{args:?}: {said:?}");
    }
}

#[test]
fn server_whose_silence_ends_a_command_is_named_with_the_lock() {
    for hurt in [Node::pause, Node::kill] {
        let (node, name, folder) = (start_node(), new_name(), Folder::new());
        let args = ["run", "--lease", "2", "--grace", "0.3", &name, "--", "sh", "-c", "echo in >in; sleep 60"];
        let mut command = at(&node.url(), &args);
        command.current_dir(folder.path(""));
        let running = Running::start(command);
        folder.line("in");
        hurt(&node);
        let said = running.said();
        let last = said.err.lines().next_back().unwrap_or_default();
        let parts = [name.clone(), format!("127.0.0.1:{} does not answer", node.port()), "confirmed".to_owned()];
        assert!(said.code == Some(76) && parts.iter().all(|part| last.contains(part)), "{said:?}");
    }
}
