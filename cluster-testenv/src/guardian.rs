//! Guardian process, which ends servers that would outlive the process that started them.
//!
//! Destructors do not run for a `static`, in `exit` or under `kill -9`, so they are not enough. Each environment
//! therefore has a guardian, a shell process that waits for the end of a pipe. Only this process holds the pipe open.
//! The kernel closes the pipe at the end of this process, even after a kill. The guardian then ends the remaining
//! servers and removes their files.

use std::{
    env, fs,
    os::unix::{fs::DirBuilderExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{self, Child, Command, Stdio},
};

use crate::{Error, Result, port};

/// Guardian process of one environment, and the folder that contains the folders of the environment's servers.
#[derive(Debug)]
pub struct Guardian {
    dir: PathBuf,
    shell: Child,
}

impl Guardian {
    /// Creates the folder and starts the process.
    pub fn start() -> Result<Self> {
        let name = format!("cluster-testenv-{}-{:016x}", process::id(), port::random());
        let dir = env::temp_dir().join(name);
        let doing = || format!("making {}", dir.display());
        fs::DirBuilder::new().mode(0o700).create(&dir).map_err(Error::io(doing()))?;
        let shell = Command::new("sh")
            .args(["-c", include_str!("guardian.sh"), "guardian"])
            .arg(&dir)
            .stdin(Stdio::piped())
            // A reader of this process's output must not wait for the guardian too.
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // A signal to this process's group, from Ctrl-C or a runner's timeout, must not end the guardian.
            .process_group(0)
            .spawn()
            .map_err(Error::io("starting the guardian"))?;
        Ok(Self { dir, shell })
    }

    /// Folder of the environment, which the guardian removes in the end.
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

impl Drop for Guardian {
    /// Closes the pipe and waits for the guardian, which stops the servers.
    fn drop(&mut self) {
        // `wait` closes the pipe first. It fails only if the guardian is not our child any more, and then no wait is
        // needed.
        drop(self.shell.wait());
    }
}
