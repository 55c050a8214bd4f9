//! Command `top`: shows the locks again every second, in the terminal or as lines of JSON.

use std::cmp::Reverse;
use std::io::{self, IsTerminal, Read};
use std::thread;
use std::time::Duration;

use redis_rwlock::{LockView, RwLockManager};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::exit::{Code, Failure, full_text};
use crate::look::{self, Look};
use crate::output::{Output, Reader};
use crate::settings::{Manager, Settings};
use crate::table;

mod screen;

use screen::Screen;

const PAUSE: Duration = Duration::from_secs(1);
/// Byte of Ctrl-C in a terminal that sends no signal for this key.
const CTRL_C: u8 = 3;

pub(crate) async fn top(names: &[String], settings: &Settings, output: Output) -> Result<Code, Failure> {
    let manager = settings.manager()?;
    match output {
        Output::Json => loop {
            if output.answer(&looks(&manager, names).await?, String::new)? == Reader::Gone {
                return Ok(Code::OK);
            }
            tokio::time::sleep(PAUSE).await;
        },
        Output::Text if io::stdin().is_terminal() && io::stdout().is_terminal() => {
            let screen = Screen::open().map_err(Failure::system)?;
            tokio::select! {
                biased;
                quit = quit() => quit.map_err(Failure::system)?,
                shown = show(&manager, names, &screen) => shown.map_err(Failure::system)?,
            }
            Ok(Code::OK)
        }
        Output::Text => Err(Failure::new(Code::USAGE, "top needs a terminal: use `list`, or `top --json`")),
    }
}

/// Inspects the locks and sorts them. The longest queue comes first, and among equal queues the oldest hold.
async fn looks(manager: &Manager, names: &[String]) -> Result<Vec<Look>, redis_rwlock::Error> {
    let mut looks = match names {
        [] => look::looks(manager, &manager.locks().await?).await?,
        names => look::looks(manager, names).await?,
    };
    looks.sort_by_key(|look| {
        let age = look.view().and_then(|view| view.holders.first()).map(|holder| holder.age);
        Reverse((look.view().map_or(0, waiting), age))
    });
    Ok(looks)
}

fn waiting(view: &LockView) -> usize {
    view.waiters.len() + view.more_waiters
}

/// Shows the locks in a loop without end. Shows errors too, since a silent server may answer later.
async fn show(manager: &Manager, names: &[String], screen: &Screen) -> io::Result<()> {
    loop {
        let lines = match looks(manager, names).await {
            Ok(looks) => {
                let views = || looks.iter().filter_map(Look::view);
                let (held, waiting) =
                    (views().filter(|view| !view.is_free()).count(), views().map(waiting).sum::<usize>());
                let head = format!("{} locks, {held} held, {waiting} wait; q ends this", looks.len());
                [vec![head, String::new()], table::of_locks(&looks)].concat()
            }
            Err(error) => vec![table::shown(&full_text(&error)), String::new(), "q ends this".to_owned()],
        };
        screen.draw(&lines)?;
        tokio::time::sleep(PAUSE).await;
    }
}

/// Waits for a key or a signal that ends `top`.
async fn quit() -> io::Result<()> {
    let (pressed, mut keys) = mpsc::unbounded_channel();
    thread::spawn(move || {
        let keys = io::stdin().lock().bytes();
        keys.map_while(Result::ok).try_for_each(|key| pressed.send(key)).ok();
    });
    let mut signals = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()].map(signal);
    let [interrupt, terminate, hangup] = &mut signals;
    let signalled = async {
        if let (Ok(interrupt), Ok(terminate), Ok(hangup)) = (interrupt, terminate, hangup) {
            tokio::select! { _ = interrupt.recv() => {} _ = terminate.recv() => {} _ = hangup.recv() => {} }
        }
    };
    let key = async {
        loop {
            match keys.recv().await {
                Some(b'q' | b'Q' | CTRL_C) => return,
                Some(_) => {}
                // The terminal is gone.
                None => return,
            }
        }
    };
    tokio::select! { () = signalled => {} () = key => {} }
    Ok(())
}
