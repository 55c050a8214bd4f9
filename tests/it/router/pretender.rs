//! A server that answers scripts itself when a case orders it, and otherwise passes everything on to a real one. Some
//! answers cannot be had from a real server when a case needs them.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use parking_lot::Mutex;

/// Answer to a script.
#[derive(Clone, Debug)]
enum Says {
    Truth,
    /// Answers every script with these bytes, and the server does not run it.
    Instead(Vec<u8>),
    /// Answers one script with these bytes, and the server does not run it.
    Once(Vec<u8>),
    /// Answers one script with these bytes and then with the truth: all later replies on the connection are one late.
    Before(Vec<u8>),
}

pub struct Pretender {
    addr: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    server: SocketAddr,
    says: Mutex<Says>,
    /// Answer to the next `TIME`.
    time: Mutex<Option<Vec<u8>>>,
    /// Connections that have subscribed.
    subscribers: Mutex<Vec<TcpStream>>,
    connections: AtomicUsize,
    /// Requests that were refused since the last order to refuse.
    refused: Mutex<Vec<u8>>,
}

impl Pretender {
    pub fn before(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let addr = listener.local_addr().expect("bound");
        let shared = Arc::new(Shared {
            server,
            says: Mutex::new(Says::Truth),
            time: Mutex::default(),
            subscribers: Mutex::default(),
            connections: AtomicUsize::new(0),
            refused: Mutex::default(),
        });
        let accepting = Arc::clone(&shared);
        // The thread ends with the process. Those of the connections end with their clients.
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                accepting.connections.fetch_add(1, Ordering::SeqCst);
                let shared = Arc::clone(&accepting);
                thread::spawn(move || shared.serve(client));
            }
        });
        Self { addr, shared }
    }

    pub fn url(&self) -> String {
        format!("redis://{}", self.addr)
    }

    /// Answers every script with an error, until another order.
    pub fn refuses(&self, error: &str) {
        self.shared.refused.lock().clear();
        self.say(Says::Instead(format!("-{error}\r\n").into_bytes()));
    }

    /// True if a script with this key was refused since then.
    pub fn has_refused(&self, key: &str) -> bool {
        self.shared.refused.lock().windows(key.len()).any(|part| part == key.as_bytes())
    }

    /// Answers the next `TIME` with an error.
    pub fn refuses_time_once(&self, error: &str) {
        *self.shared.time.lock() = Some(format!("-{error}\r\n").into_bytes());
    }

    /// True if an answer to `TIME` is still to come.
    pub fn awaits_time(&self) -> bool {
        self.shared.time.lock().is_some()
    }

    /// Answers the next script with an error.
    pub fn refuses_once(&self, error: &str) {
        self.say(Says::Once(format!("-{error}\r\n").into_bytes()));
    }

    /// Puts a reply in front of the next script's.
    pub fn inserts(&self, reply: &str) {
        self.say(Says::Before(reply.as_bytes().to_vec()));
    }

    pub fn tells_the_truth(&self) {
        self.say(Says::Truth);
    }

    fn say(&self, says: Says) {
        *self.shared.says.lock() = says;
    }

    /// Sends all subscribers a push that no client asked for.
    pub fn pushes(&self, push: &str) {
        for mut subscriber in self.shared.subscribers.lock().iter() {
            // The write fails for a subscriber that has gone, which does not matter.
            drop(subscriber.write_all(push.as_bytes()));
        }
    }

    /// Number of connections that were made.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }
}

impl Shared {
    /// Serves one client, until the client or the server is gone.
    fn serve(&self, client: TcpStream) {
        let pass_on = || -> io::Result<()> {
            client.set_nodelay(true)?;
            let server = TcpStream::connect(self.server)?;
            server.set_nodelay(true)?;
            let (mut requests, mut replies) = (BufReader::new(&client), BufReader::new(&server));
            loop {
                let request = read_value(&mut requests)?;
                let is_script = request.windows(6).any(|part| part == b"EVALSH" || part == b"EVAL\r\n");
                if is_script && self.pretend(&client, &request)? {
                    continue;
                }
                if request.ends_with(b"\r\nTIME\r\n")
                    && let Some(answer) = self.time.lock().take()
                {
                    (&client).write_all(&answer)?;
                    continue;
                }
                (&server).write_all(&request)?;
                if request.split(|byte| *byte == b'\n').nth(2) == Some(b"SSUBSCRIBE\r") {
                    (&server).write_all(requests.buffer())?;
                    return self.serve_subscriber(&client, &server);
                }
                (&client).write_all(&read_value(&mut replies)?)?;
            }
        };
        drop(pass_on());
    }

    /// Passes everything on in both directions.
    fn serve_subscriber(&self, client: &TcpStream, server: &TcpStream) -> io::Result<()> {
        self.subscribers.lock().push(client.try_clone()?);
        let (mut from, mut to) = (server.try_clone()?, client.try_clone()?);
        thread::spawn(move || {
            drop(io::copy(&mut from, &mut to));
            drop(to.shutdown(Shutdown::Both));
        });
        let (mut from, mut to) = (client, server);
        io::copy(&mut from, &mut to)?;
        server.shutdown(Shutdown::Both)
    }

    /// Returns true if the script has its answer.
    fn pretend(&self, mut client: &TcpStream, request: &[u8]) -> io::Result<bool> {
        let mut says = self.says.lock();
        let (reply, has_its_answer) = match &*says {
            Says::Truth => return Ok(false),
            Says::Instead(reply) | Says::Once(reply) => (reply.clone(), true),
            Says::Before(reply) => (reply.clone(), false),
        };
        if !matches!(*says, Says::Instead(_)) {
            *says = Says::Truth;
        }
        drop(says);
        self.refused.lock().extend(request);
        client.write_all(&reply)?;
        Ok(has_its_answer)
    }
}

/// Reads the bytes of one request or reply.
fn read_value(from: &mut impl BufRead) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut left = 1;
    while left > 0 {
        left -= 1;
        let start = bytes.len();
        if from.read_until(b'\n', &mut bytes)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let line = &bytes[start..];
        let length = || String::from_utf8_lossy(&line[1..]).trim().parse::<i64>().map_err(io::Error::other);
        match line[0] {
            b'*' | b'~' => left += length()?.max(0),
            b'%' => left += length()?.max(0) * 2,
            b'$' => {
                let length = length()?;
                if length >= 0 {
                    from.take(length.unsigned_abs() + 2).read_to_end(&mut bytes)?;
                }
            }
            _ => {}
        }
    }
    Ok(bytes)
}
