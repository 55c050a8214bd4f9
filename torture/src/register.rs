//! Registers that the locks protect. Each lock has two numbers: one that refuses old tokens, and one that accepts every
//! write.
//!
//! Writers read the number, and write it plus one. If the number has changed meanwhile, the write loses the updates of
//! other writers. The number with tokens must never lose an update, even if a lock fails.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::thread;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;

/// Kind of a register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Fenced,
    Unfenced,
}

/// Updates that a write has overwritten although its writer had not read them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LostUpdates {
    pub(crate) at: Moment,
    pub(crate) kind: Kind,
    pub(crate) lock: usize,
    pub(crate) count: u64,
}

/// Events of the registers.
#[derive(Clone, Default, Debug)]
pub(crate) struct Ledger {
    pub(crate) lost: Vec<LostUpdates>,
    /// Number of writes to registers of both kinds.
    pub(crate) updates: u64,
    /// Moments when an old token was refused.
    pub(crate) refused: Vec<Moment>,
}

#[derive(Clone, Copy, Default, Debug)]
struct Register {
    value: u64,
    /// Highest token so far.
    token: u64,
}

#[derive(Debug)]
struct Shelf {
    fenced: Vec<Register>,
    unfenced: Vec<Register>,
    ledger: Ledger,
}

const READ: u8 = 0;
const WRITE: u8 = 1;
const FENCED: u8 = 2;
/// Length of a request: the order, the lock, the token and the number that the writer has read.
const REQUEST_BYTES: usize = 18;
/// Length of a reply: the result flag and the number.
const REPLY_BYTES: usize = 9;

impl Shelf {
    /// Returns the number, or `None` for an old token.
    fn serve(&mut self, order: u8, lock: usize, token: u64, read: u64) -> Option<u64> {
        let kind = if order & FENCED > 0 { Kind::Fenced } else { Kind::Unfenced };
        let shelf = if kind == Kind::Fenced { &mut self.fenced } else { &mut self.unfenced };
        let register = shelf.get_mut(lock)?;
        if kind == Kind::Fenced {
            // The token of a reader counts too, since an older token must not change the number that the reader has
            // read.
            if token < register.token {
                self.ledger.refused.push(now());
                return None;
            }
            register.token = token;
        }
        if order & WRITE > 0 {
            if register.value != read {
                let count = register.value.abs_diff(read);
                self.ledger.lost.push(LostUpdates { at: now(), kind, lock, count });
            }
            register.value = read + 1;
            self.ledger.updates += 1;
        }
        Some(register.value)
    }
}

/// Registers of all locks, in this process. Each task of a worker has its own connection.
#[derive(Debug)]
pub(crate) struct Registers {
    shelf: Arc<Mutex<Shelf>>,
    path: PathBuf,
}

impl Registers {
    pub(crate) fn start(dir: &Path, locks: usize) -> Result<Self> {
        let path = dir.join("registers");
        let listener = UnixListener::bind(&path)?;
        let registers = vec![Register::default(); locks];
        let shelf = Shelf { fenced: registers.clone(), unfenced: registers, ledger: Ledger::default() };
        let shelf = Arc::new(Mutex::new(shelf));
        let shared = Arc::clone(&shelf);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let shelf = Arc::clone(&shared);
                thread::spawn(move || serve(client, &shelf));
            }
        });
        Ok(Self { shelf, path })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn ledger(&self) -> Ledger {
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner).ledger.clone()
    }
}

/// Serves a worker until it closes its connection.
fn serve(mut client: UnixStream, shelf: &Mutex<Shelf>) {
    let mut request = [0; REQUEST_BYTES];
    while client.read_exact(&mut request).is_ok() {
        let number = |at: usize| u64::from_le_bytes(request[at..at + 8].try_into().expect("eight bytes"));
        let mut shelf = shelf.lock().unwrap_or_else(PoisonError::into_inner);
        let value = shelf.serve(request[0], usize::from(request[1]), number(2), number(10));
        drop(shelf);
        let mut reply = [u8::from(value.is_some()); REPLY_BYTES];
        reply[1..].copy_from_slice(&value.unwrap_or(0).to_le_bytes());
        if client.write_all(&reply).is_err() {
            return;
        }
    }
}

/// Connection of a worker to the registers.
#[derive(Debug)]
pub(crate) struct Client(tokio::net::UnixStream);

impl Client {
    pub(crate) async fn connect(path: &Path) -> Result<Self> {
        Ok(Self(tokio::net::UnixStream::connect(path).await?))
    }

    /// Returns the number, or `None` for an old token.
    pub(crate) async fn read(&mut self, kind: Kind, lock: usize, token: u64) -> Result<Option<u64>> {
        self.ask(READ, kind, lock, token, 0).await
    }

    /// Writes one more than the number that the writer has read.
    pub(crate) async fn write(&mut self, kind: Kind, lock: usize, token: u64, read: u64) -> Result<Option<u64>> {
        self.ask(WRITE, kind, lock, token, read).await
    }

    async fn ask(&mut self, order: u8, kind: Kind, lock: usize, token: u64, read: u64) -> Result<Option<u64>> {
        let mut request = [0; REQUEST_BYTES];
        request[0] = if kind == Kind::Fenced { order | FENCED } else { order };
        request[1] = u8::try_from(lock)?;
        request[2..10].copy_from_slice(&token.to_le_bytes());
        request[10..].copy_from_slice(&read.to_le_bytes());
        self.0.write_all(&request).await?;
        let mut reply = [0; REPLY_BYTES];
        self.0.read_exact(&mut reply).await?;
        let value = u64::from_le_bytes(reply[1..].try_into()?);
        Ok((reply[0] > 0).then_some(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shelf() -> Shelf {
        let registers = vec![Register::default(); 1];
        Shelf { fenced: registers.clone(), unfenced: registers, ledger: Ledger::default() }
    }

    #[test]
    fn updates_that_are_written_over_are_counted() {
        let mut shelf = shelf();
        for read in 0..5 {
            shelf.serve(WRITE, 0, 1, read);
        }
        shelf.serve(WRITE, 0, 1, 2);
        assert_eq!(shelf.ledger.lost[0].count, 3);
        assert_eq!(shelf.ledger.updates, 6);
    }

    #[test]
    fn older_tokens_are_refused_as_soon_as_a_newer_one_has_read() {
        let mut shelf = shelf();
        assert_eq!(shelf.serve(FENCED | READ, 0, 1, 0), Some(0));
        assert_eq!(shelf.serve(FENCED | READ, 0, 2, 0), Some(0));
        assert_eq!(shelf.serve(FENCED | WRITE, 0, 1, 0), None);
        assert_eq!(shelf.serve(FENCED | WRITE, 0, 2, 0), Some(1));
        assert!(shelf.ledger.lost.is_empty() && shelf.ledger.refused.len() == 1);
    }
}
