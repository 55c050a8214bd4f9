//! Sees to it that no server outlives the process that started it.
//!
//! Destructors do not run for a `static`, in `exit` or under `kill -9`, so they are not enough. Each environment therefore
//! has a guardian, a shell process that waits for the end of a pipe which only this process holds open: however this
//! process ends, the kernel closes the pipe, and the guardian ends the servers that are left and removes their files.

use std::{
    env, fs,
    os::unix::{fs::DirBuilderExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{self, Child, Command, Stdio},
};

use crate::{Error, Result, port};

/// The guardian process of one environment, and the folder in which the environment's servers have theirs.
#[derive(Debug)]
pub(crate) struct Guardian {
    dir: PathBuf,
    shell: Child,
}

impl Guardian {
    /// Makes the folder and starts the process.
    pub(crate) fn start() -> Result<Self> {
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
            // What ends this process's group, Ctrl-C or a runner's timeout, must not end the guardian.
            .process_group(0)
            .spawn()
            .map_err(Error::io("starting the guardian"))?;
        Ok(Self { dir, shell })
    }

    /// The folder that is removed in the end.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }
}

impl Drop for Guardian {
    /// Lets the guardian do its work now, and waits for it.
    fn drop(&mut self) {
        // `wait` closes the pipe first. It fails only for a process that is not our child any more: nothing to wait for.
        drop(self.shell.wait());
    }
}
