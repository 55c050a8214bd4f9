//! Program that runs a command under a lock, shows the holders of locks, and checks the servers. Its manual is
//! `docs/CLI.md`.
#![forbid(unsafe_code)]

#[cfg(not(unix))]
compile_error!("the program `redis-rwlock` needs signals and process groups, as Unix has them");

mod args;
mod doctor;
mod exit;
mod force;
mod locks;
mod look;
mod output;
mod run;
mod settings;
mod table;
mod top;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use crate::args::{Arguments, Command};
use crate::exit::{Code, Failure};
use crate::output::Output;
use crate::settings::Settings;

fn main() -> ExitCode {
    // Only `run` starts this command, so the help texts and the parser below do not have it.
    if let Some(task) = run::watchdog::asked_for(std::env::args_os()) {
        return run::watchdog::watch(task).unwrap_or_else(|failure| Output::Text.fail(&failure)).end();
    }
    let Arguments { command, servers, json } = Arguments::parse();
    let output = Output::new(json);
    let outcome = match &command {
        Command::Completions { shell } => completions(*shell),
        Command::Man { command } => man(command.as_deref()),
        command => on_servers(command, &servers, output),
    };
    outcome.unwrap_or_else(|failure| output.fail(&failure)).end()
}

fn on_servers(command: &Command, servers: &args::Servers, output: Output) -> Result<Code, Failure> {
    let settings = Settings::gather(servers, output)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::system)?;
    let outcome = runtime.block_on(async {
        match command {
            Command::Run(options) => run::run(options, &settings, output).await,
            Command::Inspect { name } => look::inspect(name, &settings, output).await,
            Command::List { held } => look::list(*held, &settings, output).await,
            Command::Top { names } => top::top(names, &settings, output).await,
            Command::Deadlocks => look::deadlocks(&settings, output).await,
            Command::ForceRelease { name, yes } => force::force_release(name, *yes, &settings, output).await,
            Command::Doctor { replicas } => doctor::doctor(*replicas, &settings, output).await,
            Command::Completions { .. } | Command::Man { .. } => {
                unreachable!("these need no servers")
            }
        }
    });
    // A normal shutdown would wait for a thread that reads from the terminal.
    runtime.shutdown_background();
    outcome
}

fn completions(shell: clap_complete::Shell) -> Result<Code, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "redis-rwlock", &mut script);
    output::print(&script)?;
    Ok(Code::OK)
}

fn man(command: Option<&str>) -> Result<Code, Failure> {
    let mut described = Arguments::command();
    // This adds the program's name to the name of each command, and the global options to the command.
    described.build();
    if let Some(name) = command {
        let found = described.find_subcommand(name).cloned();
        described =
            found.ok_or_else(|| Failure::new(Code::USAGE, format!("there is no command {}", table::shown(name))))?;
    }
    let mut page = Vec::new();
    clap_mangen::Man::new(described).render(&mut page).map_err(Failure::system)?;
    output::print(&page)?;
    Ok(Code::OK)
}
