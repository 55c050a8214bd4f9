//! Register of who is inside a lock, by their own belief. It is a part of the test, so no fault reaches it.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

use parking_lot::Mutex;

#[derive(Debug, Default)]
struct Inside {
    /// Names, each with `r` or `w`.
    names: BTreeMap<String, String>,
    overlaps: Vec<String>,
    turns: BTreeMap<String, u64>,
}

impl Inside {
    fn enter(&mut self, name: &str, mode: &str) {
        let others: Vec<_> = self.names.iter().filter(|(_, other)| mode == "w" || *other == "w").collect();
        if !others.is_empty() {
            self.overlaps.push(format!("{name} ({mode}) beside {others:?}"));
        }
        self.names.insert(name.to_owned(), mode.to_owned());
        *self.turns.entry(name.to_owned()).or_default() += 1;
    }
}

/// Register on a port of its own. The names of a connection that ends are gone: their process has died.
pub(crate) struct Register {
    pub(crate) port: u16,
    inside: Arc<Mutex<Inside>>,
}

impl Register {
    pub(crate) fn open() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let inside = Arc::<Mutex<Inside>>::default();
        let of_all = Arc::clone(&inside);
        thread::spawn(move || {
            for connection in listener.incoming().map_while(Result::ok) {
                let inside = Arc::clone(&of_all);
                thread::spawn(move || serve(connection, &inside));
            }
        });
        Self { port, inside }
    }

    pub(crate) fn overlaps(&self) -> Vec<String> {
        self.inside.lock().overlaps.clone()
    }

    /// Number of entries of each name.
    pub(crate) fn turns(&self) -> BTreeMap<String, u64> {
        self.inside.lock().turns.clone()
    }
}

fn serve(connection: TcpStream, inside: &Mutex<Inside>) {
    let mut replies = connection.try_clone().expect("cloned");
    let mut here = None;
    for line in BufReader::new(connection).lines().map_while(Result::ok) {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["enter", name, mode] => {
                inside.lock().enter(name, mode);
                here = Some(name.to_owned());
            }
            ["leave", name] => drop(inside.lock().names.remove(name)),
            _ => panic!("{line} is no message"),
        }
        if replies.write_all(b"ok\n").is_err() {
            break;
        }
    }
    if let Some(name) = here {
        inside.lock().names.remove(&name);
    }
}

/// Connection of a worker to the register.
pub(crate) struct Entry(BufReader<TcpStream>);

impl Entry {
    pub(crate) fn open(port: u16) -> Self {
        Self(BufReader::new(TcpStream::connect(("127.0.0.1", port)).expect("the register is there")))
    }

    pub(crate) fn ask(&mut self, line: &str) {
        self.0.get_mut().write_all(format!("{line}\n").as_bytes()).expect("sent");
        let mut reply = String::new();
        self.0.read_line(&mut reply).expect("answered");
        assert_eq!(reply, "ok\n");
    }
}
