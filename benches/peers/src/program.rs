//! Programs with locks: this one, and one for each other language whose toolchain is installed.

use std::process::Command;

use super::*;

/// Locks that are not measured at all, and the reasons. The report names them.
pub(crate) const ABSENT: [(&str, &str); 2] = [
    ("rueidislock (Go)", "the module proxy has no version of `github.com/redis/rueidis/rueidislock`"),
    (
        "github.com/mmdalix/redis-rwlock/clients/go (Go)",
        "the module proxy has no version of it, and its client for Node is not on npm (its package is private)",
    ),
];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Program {
    Own,
    Go,
    Java,
    Node,
    Python,
}

impl Program {
    pub(crate) const FOREIGN: [Self; 4] = [Self::Go, Self::Java, Self::Node, Self::Python];

    /// Returns the folder, and the tools that must be on the PATH.
    fn needs(self) -> (&'static str, &'static [&'static str]) {
        match self {
            Self::Own => ("", &[]),
            Self::Go => ("go", &["go"]),
            Self::Java => ("java", &["java", "mvn"]),
            Self::Node => ("node", &["node", "npm"]),
            Self::Python => ("python", &["python3"]),
        }
    }

    /// Returns the time for the warm-up. A virtual machine that compiles at run time needs longer to reach its full
    /// speed.
    pub(crate) fn warm_ms(self) -> u64 {
        match self {
            Self::Java => 3000,
            Self::Node => 1000,
            Self::Own | Self::Go | Self::Python => 300,
        }
    }

    /// Downloads the packages of the lock files and builds the program. Returns the reason if that fails.
    pub(crate) fn build(self) -> Result<(), String> {
        let (folder, tools) = self.needs();
        for tool in tools {
            if !on_path(tool) {
                return Err(format!("`{tool}` is not installed"));
            }
        }
        let built = target().join(folder);
        std::fs::create_dir_all(&built).map_err(|error| error.to_string())?;
        let built = built.display().to_string();
        let folder = own_folder().join(folder);
        let run = |program: &str, arguments: &[&str]| run(&folder, program, arguments);
        match self {
            Self::Own => Ok(()),
            Self::Go => run("go", &["build", "-o", &format!("{built}/peer"), "."]),
            Self::Java => {
                let out = format!("-Dpeers.target={built}");
                run("mvn", &["--batch-mode", "--quiet", &out, "package"])
            }
            Self::Node => run("npm", &["ci", "--no-audit", "--no-fund", "--loglevel=error"]),
            Self::Python => {
                let pip = format!("{built}/bin/pip");
                run("python3", &["-m", "venv", &built])?;
                run(&pip, &["install", "--quiet", "--require-hashes", "--requirement", "requirements.txt"])
            }
        }
    }

    /// Returns the command of a worker, without its arguments.
    pub(crate) fn command(self) -> Command {
        let (folder, _) = self.needs();
        let (folder, built) = (own_folder().join(folder), target().join(folder));
        let (program, arguments) = match self {
            Self::Own => (std::env::current_exe().expect("this program"), vec!["worker".into()]),
            Self::Go => (built.join("peer"), vec![]),
            Self::Java => {
                let classes = format!("{0}/classes:{0}/lib/*", built.display());
                ("java".into(), vec!["-cp".into(), classes.into(), "peers.Main".into()])
            }
            Self::Node => ("node".into(), vec![folder.join("main.js")]),
            Self::Python => (built.join("bin/python"), vec![folder.join("main.py")]),
        };
        let mut command = Command::new(program);
        command.args(arguments);
        command
    }
}

fn own_folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the folder in which the other programs are built. It is beside this program, so that `cargo clean` removes
/// it.
pub(crate) fn target() -> PathBuf {
    let exe = std::env::current_exe().expect("this program");
    exe.parent().and_then(Path::parent).expect("target/release/peers").join("programs")
}

fn on_path(tool: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(tool).is_file())
}

fn run(folder: &Path, program: &str, arguments: &[&str]) -> Result<(), String> {
    let output = Command::new(program).args(arguments).current_dir(folder).output();
    let output = output.map_err(|error| format!("`{program}` does not start: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = [output.stderr, output.stdout].concat();
    let said = String::from_utf8_lossy(&said);
    let last = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it says nothing");
    Err(format!("`{program} {}` fails: {}", arguments[0], last.trim()))
}
