//! Copies itself while it has a manager: `fork-test KIND CASE URL...`. It fails if a copy can do what only the process
//! may that built the manager, or if that process suffers. Its output says when it was inside a lock: `in TOKEN`, `out
//! TOKEN`.

#[cfg(unix)]
mod cases;
#[cfg(unix)]
mod copy;
#[cfg(unix)]
mod kinds;

#[cfg(unix)]
fn main() {
    let mut args = std::env::args().skip(1);
    let kind = args.next().expect("the kind of manager");
    let case = args.next().expect("a case");
    cases::run(&case, &kinds::Kind::new(&kind, args.collect()));
}

#[cfg(not(unix))]
fn main() {}
