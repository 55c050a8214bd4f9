//! Takes turns, stores the result of each, and continues an earlier run where it ended.

use std::ops::ControlFlow;

use super::*;
use crate::kept::Earlier;
use crate::scenario::{Entrant, Lessened};

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Scenarios to run. Without a name, all of them.
    #[arg(value_enum)]
    scenarios: Vec<Scenario>,
    /// Only rows whose names contain one of these.
    #[arg(long)]
    only: Vec<String>,
    /// Servers of cluster-testenv. All is run on the first one; uncontended, hot-write, hot-read and wake-up on the others too.
    #[arg(long, value_delimiter = ',', default_value = "redis-8.2")]
    server: Vec<Server>,
    /// Number of turns of each row. The median counts.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Length of a turn, in milliseconds.
    #[arg(long, default_value_t = 2000)]
    span_ms: u64,
    /// Time for which a market is open, in seconds.
    #[arg(long, default_value_t = 20)]
    market_s: u64,
    /// Ends after the turn in which this number of minutes is over. The same command then continues from there.
    #[arg(long)]
    at_most_minutes: Option<u64>,
    /// Deletes the results of earlier runs of these scenarios.
    #[arg(long)]
    fresh: bool,
    /// Folder of the results, which the report and the next run read: a file for each scenario and server. The default
    /// is target/figures, and the folder lessened in it with --lessened.
    #[arg(long)]
    figures: Option<PathBuf>,
    /// Uses at most 20 tasks, clients or locks, to show that everything runs.
    #[arg(long)]
    lessened: bool,
}

pub(crate) fn run(arguments: &Arguments) {
    let until = arguments.at_most_minutes.map(|minutes| Instant::now() + Duration::from_secs(60 * minutes));
    let absent = build(arguments);
    for (program, why) in &absent {
        eprintln!("{program:?} is left out: {why}");
    }
    let settings: Vec<_> = arguments.server.iter().map(|server| arguments.setting(*server, &absent)).collect();
    let mut parts = arguments.parts(&settings);
    print_left("To do", &parts);
    for part in &mut parts {
        if part.take_turns(until).is_break() {
            break;
        }
    }
    let missing: Vec<_> = parts.into_iter().filter(|part| part.left() > 0).collect();
    if missing.is_empty() {
        println!("\nNothing is missing.");
    } else {
        print_left("The same command goes on. Missing", &missing);
    }
}

/// Builds the programs of the peers. Returns the programs that cannot be built, with the reasons.
fn build(arguments: &Arguments) -> Vec<(Program, String)> {
    let is_asked = |program: &Program| {
        let mut kinds = Kind::all().iter().filter(|kind| kind.facts().program == *program);
        kinds.any(|kind| arguments.is_asked(kind.name()))
    };
    let asked = Program::FOREIGN.into_iter().filter(is_asked);
    asked.filter_map(|program| program.build().err().map(|why| (program, why))).collect()
}

impl Arguments {
    fn setting(&self, server: Server, absent: &[(Program, String)]) -> Setting {
        Setting {
            server,
            span: Duration::from_millis(self.span_ms),
            market: Duration::from_secs(self.market_s),
            lessened: if self.lessened { Lessened::Yes } else { Lessened::No },
            absent: absent.to_vec(),
        }
    }

    fn is_asked(&self, name: &str) -> bool {
        let is_meant = |only: &String| only.strip_prefix('=').map_or(name.contains(only), |whole| name == whole);
        self.only.is_empty() || self.only.iter().any(is_meant)
    }

    fn folder(&self) -> &Path {
        let default = if self.lessened { kept::LESSENED_FIGURES } else { kept::FIGURES };
        self.figures.as_deref().unwrap_or(Path::new(default))
    }

    /// Returns the scenarios to run, in order: all of them on the first server, then on the others the ones that depend
    /// most on the server.
    fn parts<'a>(&'a self, settings: &'a [Setting]) -> Vec<Part<'a>> {
        let named = &self.scenarios;
        let asked = Scenario::value_variants().iter().filter(|scenario| named.is_empty() || named.contains(scenario));
        let asked: Vec<_> = asked.copied().collect();
        let on = |(number, setting): (usize, &'a Setting)| {
            let of_server = asked.iter().filter(move |scenario| number == 0 || scenario.is_for_all_servers());
            of_server.map(|scenario| Part::open(self, *scenario, setting)).collect::<Vec<_>>()
        };
        settings.iter().enumerate().flat_map(on).collect()
    }
}

/// Scenario on one server.
struct Part<'a> {
    arguments: &'a Arguments,
    file: PathBuf,
    /// Chapter with a table for each comparison. The table has a row for each entrant.
    chapter: Chapter,
    comparisons: Vec<Comparison<'a>>,
}

impl<'a> Part<'a> {
    fn open(arguments: &'a Arguments, scenario: Scenario, setting: &'a Setting) -> Self {
        let file = kept::file(arguments.folder(), scenario, setting.server);
        let comparisons = scenario.comparisons(setting);
        let mut chapter = chapter(arguments, scenario, setting, &comparisons);
        if arguments.fresh {
            kept::remove(&file);
        }
        let earlier = kept::read(&file).map(|earlier| chapter.take_over(&earlier));
        let title = chapter.title();
        match earlier {
            None | Some(Earlier::GoesOn) => {}
            Some(Earlier::IsOver(why)) => eprintln!("{title} begins anew: {why}"),
            Some(Earlier::IsOfOtherOptions(why)) => {
                eprintln!("{}: {why}; --fresh begins anew, and --figures names another folder", file.display());
                std::process::exit(2);
            }
        }
        Self { arguments, file, chapter, comparisons }
    }

    /// Takes one turn of each row in each round, and breaks off when the time of the run is over. A peer that cannot do
    /// it, or that fails, gets a reason instead.
    fn take_turns(&mut self, until: Option<Instant>) -> ControlFlow<()> {
        for number in 0..self.comparisons.len() {
            let before = self.left_of(number);
            for round in 1..=self.arguments.rounds {
                self.take_round(number, round, until)?;
            }
            if before > 0 {
                let table = &self.chapter.tables[number];
                println!("{}{}", print::table(table), print::notes(std::slice::from_ref(table)));
            }
        }
        ControlFlow::Continue(())
    }

    fn take_round(&mut self, number: usize, round: usize, until: Option<Instant>) -> ControlFlow<()> {
        for (entrant, row) in self.comparisons[number].entrants.iter().zip(0..) {
            let kept = &mut self.chapter.tables[number].rows[row];
            if !self.arguments.is_asked(&entrant.name) || kept.missing(round) == 0 {
                continue;
            }
            take_turn(entrant, kept);
            self.chapter.dates.1 = machine::date();
            kept::write(&self.file, &self.chapter);
            if until.is_some_and(|until| Instant::now() >= until) {
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    }

    fn left(&self) -> usize {
        (0..self.comparisons.len()).map(|number| self.left_of(number)).sum()
    }

    /// Returns the number of turns that a comparison lacks.
    fn left_of(&self, number: usize) -> usize {
        let asked = self.chapter.tables[number].rows.iter().filter(|row| self.arguments.is_asked(&row.name));
        asked.map(|row| row.missing(self.arguments.rounds)).sum()
    }
}

fn take_turn(entrant: &Entrant<'_>, row: &mut Row) {
    match (entrant.take)() {
        Ok((figures, _)) if !figures.iter().all(|figure| figure.is_finite()) => {
            row.why = Some(Why::Failed("one of its figures is no number".to_owned()));
        }
        Ok((figures, versions)) => {
            row.turns.push(figures);
            row.versions = versions;
        }
        Err(why) => row.why = Some(Why::Failed(why)),
    }
}

fn chapter(arguments: &Arguments, scenario: Scenario, setting: &Setting, comparisons: &[Comparison<'_>]) -> Chapter {
    let Setting { server, span, market, lessened, .. } = setting;
    let is_lessened = *lessened == Lessened::Yes;
    // A reader must not take the page of such a run for that of a full run.
    let about = scenario.about().trim_end_matches('.').to_owned();
    let span = if scenario == Scenario::Market { market } else { span };
    Chapter {
        scenario: scenario.name(),
        about: if is_lessened { about + " (lessened: with 20 at most)" } else { about },
        circumstances: Circumstances {
            commit: machine::commit(),
            machine: machine::description(),
            server: server.to_string(),
            span_ms: u64::try_from(span.as_millis()).expect("short"),
            is_lessened,
        },
        dates: (machine::date(), machine::date()),
        rounds: arguments.rounds,
        tables: comparisons.iter().map(|comparison| comparison.table.clone()).collect(),
    }
}

fn print_left(what: &str, parts: &[Part<'_>]) {
    println!("\n{what}: {} turns", parts.iter().map(Part::left).sum::<usize>());
    for part in parts {
        println!("  {}: {} turns", part.chapter.title(), part.left());
    }
}
