//! Command `force-release`.

use std::io::{self, BufRead, IsTerminal, Write};

use redis_rwlock::{DurationText, RwLockManager};

use crate::exit::{Code, Failure};
use crate::look;
use crate::output::Output;
use crate::settings::Settings;
use crate::table::shown;

pub(crate) async fn force_release(name: &str, yes: bool, settings: &Settings, output: Output) -> Result<Code, Failure> {
    let manager = settings.manager()?;
    let view = manager.inspect(name).await?;
    // The user has not seen holders that arrive after this inspection, so their holds stay.
    let ended = if view.is_free() {
        Vec::new()
    } else if yes || agreed(&look::lines(&view))? {
        manager.force_release_shown(&view).await?
    } else {
        return Err(Failure::new(Code::NO, "nothing was done"));
    };
    output.answer(&ended, || match &*ended {
        [] if view.is_free() => format!("lock {} was free\n", shown(name)),
        [] => format!("the holds of lock {} were over already; nothing was ended\n", shown(name)),
        ended => ended
            .iter()
            .map(|holder| {
                format!(
                    "ended the {} hold of {}, {} old\n",
                    holder.mode,
                    shown(&holder.label),
                    DurationText(holder.age)
                )
            })
            .collect(),
    })?;
    Ok(if ended.is_empty() { Code::NO } else { Code::OK })
}

/// Shows the holds that would end, and waits for the user's answer.
fn agreed(lines: &[String]) -> Result<bool, Failure> {
    if !io::stdin().is_terminal() {
        return Err(Failure::new(
            Code::USAGE,
            "force-release asks for a confirmation, but standard input is no terminal: use --yes",
        ));
    }
    let question = format!(
        "{}\nThe holders work on until they notice the loss, and others can get the lock at once. End these holds? [y/N] ",
        lines.join("\n")
    );
    io::stderr().write_all(question.as_bytes()).map_err(Failure::system)?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer).map_err(Failure::system)?;
    Ok(["y", "yes"].contains(&answer.trim().to_lowercase().as_str()))
}
