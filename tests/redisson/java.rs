//! Clients of Redisson, as processes of their own.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use tokio::sync::{Mutex, mpsc};

/// Time limit for anything that a client of Redisson does in a case.
pub(crate) const BOUND: Duration = Duration::from_secs(60);

/// Versions of Redisson that the cases run with: the oldest with today's layout, and a newer one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Version {
    V3,
    V4,
}

impl Version {
    fn number(self) -> &'static str {
        match self {
            Self::V3 => "3.24.1",
            Self::V4 => "4.7.0",
        }
    }

    /// Returns the class path of the program, which is built when a case asks for it first.
    fn class_path(self) -> &'static str {
        static V3: LazyLock<String> = LazyLock::new(|| build(Version::V3.number()));
        static V4: LazyLock<String> = LazyLock::new(|| build(Version::V4.number()));
        match self {
            Self::V3 => &V3,
            Self::V4 => &V4,
        }
    }
}

fn build(version: &str) -> String {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let target = root.join("target/redisson").join(version);
    let options = [format!("-Dredisson.version={version}"), format!("-Dbeside.target={}", target.display())];
    let mut maven = Command::new("mvn");
    maven.args(["-q", "-B"]).args(options).arg("package").current_dir(root.join("tests/redisson/java"));
    let built = maven.stdin(Stdio::null()).output().expect("these cases need `mvn` and a JDK");
    let said = String::from_utf8_lossy(&built.stdout);
    assert!(built.status.success(), "Maven built no client with Redisson {version}: {said}");
    format!("{}:{}", target.join("beside-0.jar").display(), target.join("lib/*").display())
}

/// Servers, as a client of Redisson is told of them.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) topology: String,
    pub(crate) urls: Vec<String>,
}

/// A client of Redisson: a process with one connection pool, whose threads have names.
pub(crate) struct Java {
    process: Child,
    commands: ChildStdin,
    actors: Arc<parking_lot::Mutex<HashMap<String, mpsc::UnboundedSender<String>>>>,
}

/// A thread of a client.
pub(crate) struct Actor {
    name: String,
    java: Arc<Mutex<Java>>,
    answers: mpsc::UnboundedReceiver<String>,
}

/// A client, to which several actors belong.
#[derive(Clone)]
pub(crate) struct Client(Arc<Mutex<Java>>);

impl Client {
    pub(crate) async fn start(version: Version, place: &Place, watchdog: Duration) -> Self {
        let (place, class_path) = (place.clone(), tokio::task::spawn_blocking(move || version.class_path()));
        let mut command = Command::new("java");
        command.args(["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m", "-cp"]);
        command.args([class_path.await.expect("built"), "beside.Main", &place.topology, &place.urls.join(",")]);
        command.arg(watchdog.as_millis().to_string()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.stderr(Stdio::inherit()).spawn().expect("java starts");
        let commands = process.stdin.take().expect("piped");
        let lines = BufReader::new(process.stdout.take().expect("piped")).lines();
        let actors = Arc::<parking_lot::Mutex<HashMap<String, mpsc::UnboundedSender<String>>>>::default();
        let java = Self(Arc::new(Mutex::new(Java { process, commands, actors: Arc::clone(&actors) })));
        let mut ready = java.actor("ready").await;
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let (name, answer) = line.split_once(' ').unwrap_or((&line, ""));
                if let Some(actor) = actors.lock().get(name) {
                    // An actor may have been dropped before its answer came.
                    drop(actor.send(answer.to_owned()));
                }
            }
        });
        let running = ready.answer().await;
        assert_eq!(running, version.number());
        java
    }

    pub(crate) async fn actor(&self, name: &str) -> Actor {
        let (sender, answers) = mpsc::unbounded_channel();
        self.0.lock().await.actors.lock().insert(name.to_owned(), sender);
        Actor { name: name.to_owned(), java: Arc::clone(&self.0), answers }
    }

    /// Ends the process as a crash would.
    pub(crate) async fn kill(&self) {
        let java = &mut self.0.lock().await.process;
        java.kill().expect("killed");
        java.wait().expect("ended");
    }
}

impl Drop for Java {
    fn drop(&mut self) {
        // The process may have ended already.
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

impl Actor {
    /// Sends a command, and does not wait for its answer.
    pub(crate) async fn begin(&mut self, command: &str) {
        let line = format!("{} {command}\n", self.name);
        self.java.lock().await.commands.write_all(line.as_bytes()).expect("it reads");
    }

    pub(crate) async fn answer(&mut self) -> String {
        self.answer_within(BOUND).await.expect("an answer in time")
    }

    /// Returns `None` if no answer comes within this time.
    pub(crate) async fn answer_within(&mut self, limit: Duration) -> Option<String> {
        tokio::time::timeout(limit, self.answers.recv()).await.ok().flatten()
    }

    pub(crate) async fn ask(&mut self, command: &str) -> String {
        self.begin(command).await;
        self.answer().await
    }

    /// Sends a command for a lock that this actor does not hold.
    pub(crate) async fn is_refused(&mut self, command: &str) {
        let refused = self.ask(command).await;
        assert!(refused.starts_with("error IllegalMonitorStateException"), "{refused}");
    }

    /// Carries out a command that must succeed.
    pub(crate) async fn ok(&mut self, command: &str) {
        assert_eq!(self.ask(command).await, "ok", "{command}");
    }
}
