//! Much at once: what it takes, what others feel of it, and what waiting costs.
//!
//! The parts are `burst`, `outage` and `crowd`; name some to run only these (`cargo bench --bench load -- burst`).

#[path = "../figures/mod.rs"]
mod figures;

mod burst;
mod crowd;
mod outage;
mod peak;

use figures::Effort;

type Part = fn(Effort);

fn main() {
    let effort = Effort::asked_for();
    let parts: [(&str, Part); 3] = [("burst", burst::run), ("outage", outage::run), ("crowd", crowd::run)];
    let is_named = |name: &str| std::env::args().skip(1).any(|argument| argument == name);
    let all = !parts.iter().any(|(name, _)| is_named(name));
    for (name, run) in parts {
        if all || is_named(name) {
            println!("part: {name}");
            run(effort);
        }
    }
}
