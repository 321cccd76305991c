//! THREAT-MODEL.md: every line names a test, and the test exists.

use std::collections::BTreeSet;

use crate::sources::{Strings, code, files, text};

/// Where the tests are that the lines may name, each a test program whose root module is this folder.
const PLACES: [&str; 3] = ["tests/suite/", "tests/mom/", "tests/slurm/"];

/// The tests of one file, by their path inside the test program: `#[test]` functions, also in modules inside the file, and
/// the cells of `tests/slurm`, which has a runner of its own.
pub fn tests_of(module: &str, text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut modules = vec![(0, module.to_owned())];
    let mut is_test = false;
    // rustfmt, which CI checks, gives every attribute, `fn` and closing brace a line of its own.
    for line in code(text, Strings::Emptied).lines() {
        let depth = line.len() - line.trim_start().len();
        let line = line.trim();
        if line == "}" && modules.len() > 1 && modules.last().is_some_and(|(at, _)| *at == depth) {
            modules.pop();
        }
        let path = modules.last().map_or("", |(_, path)| path);
        if let Some(name) = line.strip_prefix("mod ").and_then(|l| l.strip_suffix(" {")) {
            let path = format!("{path}::{name}");
            modules.push((depth, path));
        } else if let Some((name, _)) = line.strip_prefix("fn ").and_then(|l| l.split_once('(')) {
            if is_test {
                found.insert(format!("{path}::{name}"));
            }
            is_test = false;
        } else if line == "#[test]" {
            is_test = true;
        }
    }
    found.extend(cells(text).map(|cell| format!("{module}::{cell}")));
    found
}

/// `("name", name)` of a list of cells, on one line or on several.
fn cells(text: &str) -> impl Iterator<Item = String> {
    let pieces: Vec<&str> = text.split_whitespace().collect();
    let joined = pieces.join(" ");
    let pairs: Vec<String> = joined
        .split('(')
        .filter_map(|pair| {
            let (name, rest) = pair.trim_start().strip_prefix('"')?.split_once("\", ")?;
            let function = rest.split([')', ',']).next()?.trim();
            (name == function).then(|| name.to_owned())
        })
        .collect();
    pairs.into_iter()
}

/// `suite/crash/begin.rs` below its place is `crash::begin`.
fn module_of(file: &str) -> String {
    let path = file.trim_end_matches(".rs").trim_end_matches("/mod");
    path.replace('/', "::")
}

fn all_tests() -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for place in PLACES {
        for (name, text) in files(place, ".rs") {
            let file = name.strip_prefix(place).expect("below its place");
            all.extend(tests_of(&module_of(file), &text));
        }
    }
    all
}

/// The names in backquotes in the last column of each line of the model's tables.
fn named(model: &str) -> Vec<(&str, Vec<&str>)> {
    let rows = model
        .lines()
        .filter(|line| line.starts_with("| ") && !line.starts_with("| What "));
    rows.map(|line| {
        let last = line.trim_end_matches('|').rsplit('|').next().unwrap_or("");
        (line, last.split('`').skip(1).step_by(2).collect())
    })
    .collect()
}

#[test]
fn every_line_of_the_threat_model_names_a_test_that_exists() {
    let tests = all_tests();
    let model = text("THREAT-MODEL.md");
    let rows = named(&model);
    assert!(rows.len() >= 35, "only {} lines were seen", rows.len());
    for (line, names) in rows {
        assert!(!names.is_empty(), "no test is named: {line}");
        for name in names {
            assert!(tests.contains(name), "there is no test '{name}': {line}");
        }
    }
}

#[test]
fn a_name_is_a_tests_whole_path_and_nothing_less() {
    let text = "\
#[test]
fn one() {
    let text = \"
#[test]
fn in_a_string() {}
\";
}

mod inner {
    use super::*;

    #[test]
    #[ignore = \"slow\"]
    fn two() {}

    mod deeper {
        #[test]
        fn three() {}
    }

    #[test]
    fn four() {}
}

fn no_test() {}

// #[test]
fn commented_out() {}

const CELLS: &[Cell] = &[
    (\"five\", five),
    (
        \"a_long_one\",
        a_long_one,
    ),
    (\"six\", seven),
];
";
    let found: Vec<String> = tests_of("module", text).into_iter().collect();
    assert_eq!(
        found,
        [
            "module::a_long_one",
            "module::five",
            "module::inner::deeper::three",
            "module::inner::four",
            "module::inner::two",
            "module::one",
        ]
    );
    assert_eq!(module_of("crash/begin.rs"), "crash::begin");
    assert_eq!(module_of("crash/mod.rs"), "crash");
    let tests = all_tests();
    let (module, test) = (module_path!(), "a_name_is_a_tests_whole_path_and_nothing_less");
    let module = module.strip_prefix("suite::").expect("below the test program");
    assert!(tests.contains(&format!("{module}::{test}")));
    // The module is missing, is one too many, is another; the name is cut.
    for wrong in [
        test.to_owned(),
        format!("suite::{module}::{test}"),
        format!("{module}::nested::{test}"),
        format!("sources::{test}"),
        format!("{module}::{}", &test[..test.len() - 1]),
    ] {
        assert!(!tests.contains(&wrong), "{wrong}");
    }
}
