//! Program that copies itself while it has a manager: `fork-test KIND CASE URL...`. It fails if the copied manager does
//! more than refuse calls, or if the original manager has a fault. The output has a line `in TOKEN` when a process
//! enters the lock, and `out TOKEN` when it leaves.
#![allow(unreachable_pub)] // a program has no public items

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
