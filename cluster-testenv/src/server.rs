//! Supported servers, and the paths of their binaries.

use std::{
    env, fmt,
    path::{Path, PathBuf},
    str::FromStr,
};

use crate::{Error, Result};

/// Server that an environment can start.
///
/// Its environment variable names the path of its binary (`TESTENV_REDIS_7_0`, `TESTENV_REDIS_8_2`,
/// `TESTENV_VALKEY_8_1`, `TESTENV_VALKEY_9_1`, `TESTENV_REDIS_6_2`). Without it, the binary is the one that
/// `cluster-testenv/install` put into `.testenv/bin` of the workspace.
///
/// Ask the running server what it can do, with [`Node::has_command`](crate::Node::has_command): not its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Server {
    /// Redis 7.0.
    Redis70,
    /// Redis 8.2.
    Redis82,
    /// Valkey 8.1.
    Valkey81,
    /// Valkey 9.1.
    Valkey91,
    /// Redis 6.2, which software that needs 7.0 must refuse.
    Redis62,
}

impl Server {
    /// All servers.
    pub const ALL: [Self; 5] = [Self::Redis70, Self::Redis82, Self::Valkey81, Self::Valkey91, Self::Redis62];

    /// Returns the path of the server's binary.
    ///
    /// # Errors
    ///
    /// [`Error::NotInstalled`] when there is no file at that path.
    pub fn binary(self) -> Result<PathBuf> {
        let path = env::var_os(self.variable()).map_or_else(|| self.installed(), PathBuf::from);
        if path.is_file() { Ok(path) } else { Err(Error::NotInstalled { server: self, path }) }
    }

    /// Environment variable that names another binary.
    pub(crate) fn variable(self) -> String {
        format!("TESTENV_{}", self.name().to_uppercase().replace(['-', '.'], "_"))
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Redis70 => "redis-7.0",
            Self::Redis82 => "redis-8.2",
            Self::Valkey81 => "valkey-8.1",
            Self::Valkey91 => "valkey-9.1",
            Self::Redis62 => "redis-6.2",
        }
    }

    fn installed(self) -> PathBuf {
        let package = Path::new(env!("CARGO_MANIFEST_DIR"));
        let workspace = package.parent().unwrap_or(package);
        workspace.join(".testenv/bin").join(self.name()).join("redis-server")
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Server {
    type Err = String;

    /// Parses the output of `Display`.
    fn from_str(name: &str) -> Result<Self, String> {
        let known = || Self::ALL.map(Self::name).join(", ");
        let found = Self::ALL.into_iter().find(|server| server.name() == name);
        found.ok_or_else(|| format!("no server is called {name:?}; there are {}", known()))
    }
}
