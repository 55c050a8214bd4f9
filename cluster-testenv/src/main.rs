//! Program that starts servers for experiments by hand.

use std::{any::Any, env, process::ExitCode, thread};

use cluster_testenv::{Cluster, Error, Masters, Node, Sentinels, Server, TlsClients};

const HELP: &str = "\
usage: cluster-testenv [--server SERVER] ENVIRONMENT

Starts servers on free ports of 127.0.0.1, prints their URLs, one a line, and waits for Ctrl-C.
Nothing is left when it ends, whatever ends it.

ENVIRONMENT
  single        one server
  masters N     N servers that know nothing of each other
  cluster       a cluster of three primaries with a replica each
  sentinel      a primary with two replicas, and three Sentinels; prints the URLs of the Sentinels
  tls           one server that speaks TLS and wants a client certificate
  tls-cluster   a cluster that does

What else there is to know, such as the name that the Sentinels give the primary or the folder with the certificates, is
printed to standard error.

SERVER
  redis-7.0 (if not given), redis-8.2, valkey-8.1 and valkey-9.1 (without TLS), redis-6.2 (without Sentinels and TLS)

OTHER
  -h, --help    prints this";

/// Environment that the command line asks for.
enum Environment {
    Single,
    Masters(usize),
    Cluster,
    Sentinel,
    Tls,
    TlsCluster,
}

/// Running servers, and the URLs and hints to print.
struct Started {
    /// Owner that keeps the servers running until it is dropped.
    _running: Box<dyn Any>,
    urls: Vec<String>,
    remark: Option<String>,
}

impl Started {
    fn new<R: Any>(running: R, urls: impl FnOnce(&R) -> Vec<String>) -> Self {
        Self { urls: urls(&running), _running: Box::new(running), remark: None }
    }

    fn with_remark(self, remark: String) -> Self {
        Self { remark: Some(remark), ..self }
    }
}

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
        Ok(started) => {
            println!("{}", started.urls.join("\n"));
            started.remark.iter().for_each(|remark| eprintln!("{remark}"));
            eprintln!("{server} runs until you press Ctrl-C");
            // The signal ends this process without a destructor. The guardian then stops the servers.
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
            "sentinel" => Environment::Sentinel,
            "tls" => Environment::Tls,
            "tls-cluster" => Environment::TlsCluster,
            other => return Err(format!("{other:?} is not known")),
        };
        if environment.replace(found).is_some() {
            return Err("one environment at a time".to_owned());
        }
    }
    environment.map(|environment| (server, environment)).ok_or_else(|| "no environment is given".to_owned())
}

fn start(server: Server, environment: &Environment) -> Result<Started, Error> {
    Ok(match *environment {
        Environment::Single => Started::new(Node::start(server)?, url_of),
        Environment::Masters(count) => Started::new(Masters::start(server, count)?, Masters::urls),
        Environment::Cluster => Started::new(Cluster::start(server)?, Cluster::urls),
        Environment::Sentinel => {
            let sentinels = Sentinels::start(server)?;
            let (name, primary) = (sentinels.primary_name(), sentinels.primary().url());
            let remark = format!("the primary is called {name}, now {primary}");
            Started::new(sentinels, Sentinels::urls).with_remark(remark)
        }
        Environment::Tls => {
            let node = Node::builder(server).tls(TlsClients::Required).start()?;
            let remark = certificates_of(&node);
            Started::new(node, url_of).with_remark(remark)
        }
        Environment::TlsCluster => {
            let cluster = Cluster::builder(server).tls(TlsClients::Required).start()?;
            let remark = certificates_of(&cluster.nodes()[0]);
            Started::new(cluster, Cluster::urls).with_remark(remark)
        }
    })
}

fn url_of(node: &Node) -> Vec<String> {
    vec![node.url()]
}

fn certificates_of(node: &Node) -> String {
    format!("ca.pem, client.pem and client.key are in {}", node.certificates_dir().display())
}
