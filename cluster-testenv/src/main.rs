//! Starts servers for a person to play with.

use std::{any::Any, env, process::ExitCode, thread};

use cluster_testenv::{Cluster, Error, Masters, Node, Server};

const HELP: &str = "\
usage: cluster-testenv [--server SERVER] ENVIRONMENT

Starts servers on free ports of 127.0.0.1, prints their URLs, one a line, and waits for Ctrl-C.
Nothing is left when it ends, whatever ends it.

ENVIRONMENT
  single      one server
  masters N   N servers that know nothing of each other
  cluster     a cluster of three primaries with a replica each

SERVER
  redis-7.0 (if not given), valkey-9.1, redis-6.2";

/// What a person can ask for.
enum Environment {
    Single,
    Masters(usize),
    Cluster,
}

/// What keeps the servers running until it is dropped.
type Running = Box<dyn Any>;

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    if args.iter().any(|arg| arg == "--help" || arg == "-h") {
        println!("{HELP}");
        return ExitCode::SUCCESS;
    }
    let (server, environment) = match parse(&args) {
        Ok(parsed) => parsed,
        Err(complaint) => {
            eprintln!("{complaint}\n\n{HELP}");
            return ExitCode::from(2);
        }
    };
    match start(server, &environment) {
        Ok((_running, urls)) => {
            println!("{}", urls.join("\n"));
            eprintln!("{server} runs until you press Ctrl-C");
            // The signal ends this process without a destructor; the guardian stops the servers.
            loop {
                thread::park();
            }
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn parse(args: &[String]) -> Result<(Server, Environment), String> {
    let mut server = Server::Redis70;
    let mut environment = None;
    let mut args = args.iter().map(String::as_str);
    while let Some(arg) = args.next() {
        let found = match arg {
            "--server" => {
                server = args.next().ok_or("--server needs a name")?.parse()?;
                continue;
            }
            "single" => Environment::Single,
            "masters" => {
                let count = args.next().and_then(|count| count.parse().ok()).filter(|count| *count > 0);
                Environment::Masters(count.ok_or("masters needs a number")?)
            }
            "cluster" => Environment::Cluster,
            other => return Err(format!("{other:?} is not known")),
        };
        if environment.replace(found).is_some() {
            return Err("one environment at a time".to_owned());
        }
    }
    environment.map(|environment| (server, environment)).ok_or_else(|| "no environment is given".to_owned())
}

fn start(server: Server, environment: &Environment) -> Result<(Running, Vec<String>), Error> {
    Ok(match *environment {
        Environment::Single => {
            let node = Node::start(server)?;
            let urls = vec![node.url()];
            (Box::new(node), urls)
        }
        Environment::Masters(count) => {
            let masters = Masters::start(server, count)?;
            let urls = masters.urls();
            (Box::new(masters), urls)
        }
        Environment::Cluster => {
            let cluster = Cluster::start(server)?;
            let urls = cluster.urls();
            (Box::new(cluster), urls)
        }
    })
}
