//! Who else is in a process group.

use std::fs;

use rustix::process::Pid;

/// Whether a process of the group runs beside these; `None` where the system does not tell.
pub(super) fn are_in(group: Pid, known: &[Pid]) -> Option<bool> {
    let entries = fs::read_dir("/proc").ok()?;
    let mut is_proc = false;
    for entry in entries.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw) else {
            continue;
        };
        // It may have ended meanwhile.
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else { continue };
        is_proc = true;
        if !known.contains(&pid) && runs_in(&stat, group) {
            return Some(true);
        }
    }
    is_proc.then_some(false)
}

/// `pid (name) state parent group …`, where the name may be anything.
fn runs_in(stat: &str, group: Pid) -> bool {
    let Some((_, rest)) = stat.rsplit_once(") ") else { return false };
    let mut fields = rest.split(' ');
    let (state, of_group) = (fields.next(), fields.nth(1));
    !matches!(state, Some("Z" | "X")) && of_group == Some(&*group.as_raw_nonzero().to_string())
}
