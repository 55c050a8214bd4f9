//! The table in `docs/RELIABILITY.md` names tests that exist.

use std::fs;
use std::path::Path;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The last cells of all rows, which hold the names of tests.
fn last_cells(text: &str) -> Vec<&str> {
    let rows = text.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"));
    rows.filter_map(|row| row.rsplit_once(" | ")).map(|(_, last)| last).filter(|last| *last != "test").collect()
}

/// Returns true if `module::…::name` is a function of these tests or of the sources. With `fork-test::` in front it is
/// one of that package, with `lua::` or `redisson::` one of `tests/lua` or `tests/redisson`. The last module may be within the file of the one above it, and
/// tests of `src` with files of their own are in `testing/unit`.
fn exists(test: &str) -> bool {
    let Some((module, name)) = test.rsplit_once("::") else {
        return false;
    };
    let outer = module.rsplit_once("::").map_or(module, |(outer, _)| outer);
    let of_forks = module.strip_prefix("fork-test::").unwrap_or(module);
    let of_scripts = module.strip_prefix("lua::").unwrap_or(module);
    let of_redisson = module.strip_prefix("redisson::").unwrap_or(module);
    let judges = module.strip_prefix("testing::").unwrap_or(module);
    // A module of tests with a file of its own has its children beside it.
    let beside = module.replace("::tests::", "::");
    let places = [
        ("tests/it", module),
        ("tests/it", outer),
        ("tests/lua", of_scripts),
        ("tests/redisson", of_redisson),
        ("src", module),
        ("src", outer),
        ("testing/unit", module),
        ("testing/unit", &beside),
        ("testing", judges),
        ("fork-test/tests", of_forks),
    ];
    places.iter().any(|(folder, module)| {
        let file = root().join(folder).join(module.replace("::", "/")).with_extension("rs");
        fs::read_to_string(file).is_ok_and(|text| text.contains(&format!("fn {name}(")))
    })
}

#[test]
fn every_row_names_tests_that_exist() {
    let text = fs::read_to_string(root().join("docs/RELIABILITY.md")).expect("it is there");
    // The section below has figures, and names no tests.
    let (rows, _) = text.split_once("\n## Torture\n").expect("a section with figures at the end");
    let cells = last_cells(rows);
    assert!(cells.len() > 50, "{} rows", cells.len());
    for cell in cells {
        let tests: Vec<&str> = cell.split('`').skip(1).step_by(2).collect();
        assert!(!tests.is_empty(), "no test: {cell}");
        for test in tests {
            assert!(exists(test), "there is no {test}");
        }
    }
}

#[test]
fn made_up_tests_do_not_exist() {
    assert!(exists("callers::table::made_up_tests_do_not_exist"));
    assert!(exists("face::config::tests::what_is_not_said_is_as_by_default"));
    for made_up in [
        "callers::table::made_up",
        "face::config::tests::made_up",
        "callers::nowhere::made_up_tests_do_not_exist",
        "made_up",
    ] {
        assert!(!exists(made_up), "{made_up}");
    }
}
