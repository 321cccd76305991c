//! The rules of the house, read from the sources: layers, the plugin's thinness, the homes of `unsafe`, no switch for
//! tests in what is shipped.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The modules of `mpsd`, with their layer. A module imports from lower layers and from itself.
const LAYERS: [(&str, u32); 7] = [
    ("sys", 0),
    ("scheduler", 1),
    ("plan", 2),
    ("job", 3),
    ("node", 4),
    ("daemon", 5),
    ("cli", 6),
];
/// The only places of shipped crates with `unsafe`: the kernel's ABI, Slurm's, and CUDA's in the probe.
const UNSAFE: [&str; 4] = [
    "mpsd/src/sys/",
    "spank/src/sys/",
    "spank/src/sys.rs",
    "mpsd/src/bin/mps-probe/cuda.rs",
];
const SHIPPED: [&str; 4] = ["mpsd", "prologue", "epilogue", "spank"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("workspace")
        .to_owned()
}

/// Every Rust file below `dir`, with its path from the workspace and its text without comments and tests of its own.
fn sources(dir: &Path) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut left = vec![dir.to_owned()];
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(&dir).expect("directory").flatten() {
            let path = entry.path();
            if path.is_dir() {
                left.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                let name = path.strip_prefix(root()).unwrap_or(&path).display().to_string();
                found.push((name, code(&fs::read_to_string(&path).expect("source"))));
            }
        }
    }
    found.sort();
    found
}

/// The text without comments; strings stay.
fn code(text: &str) -> String {
    let line = |line: &str| line.split("//").next().unwrap_or("").to_owned() + "\n";
    text.lines().map(line).collect()
}

/// The names that follow `prefix` (`crate::`), braces opened: `crate::{model, sys::x}` gives `model`, `sys`.
fn named_after(text: &str, prefix: &str) -> Vec<String> {
    let word = |text: &str| -> String {
        text.trim_start()
            .chars()
            .take_while(|c| c.is_alphanumeric() || *c == '_')
            .collect()
    };
    let mut names = Vec::new();
    for (at, _) in text.match_indices(prefix) {
        // `somecrate::` ends in `crate::` too.
        let before = text[..at].chars().next_back();
        if before.is_some_and(|c| c.is_alphanumeric() || c == '_') {
            continue;
        }
        let rest = &text[at + prefix.len()..];
        match rest.strip_prefix('{') {
            None => names.push(word(rest)),
            Some(list) => {
                let mut depth = 0;
                let mut start = 0;
                for (at, c) in list.char_indices() {
                    match c {
                        '{' => depth += 1,
                        '}' if depth == 0 => {
                            names.push(word(&list[start..at]));
                            break;
                        }
                        '}' => depth -= 1,
                        ',' if depth == 0 => {
                            names.push(word(&list[start..at]));
                            start = at + 1;
                        }
                        _ => {}
                    }
                }
            }
        }
    }
    names.retain(|name| !name.is_empty());
    names
}

#[test]
fn names_are_found_in_every_form_of_a_use() {
    let text = "use crate::job::Journal;\nuse crate::{sys::{a, b}, node, plan::x};\nlet x = crate::cli::y; \
                use mycrate::z;";
    assert_eq!(
        named_after(text, "crate::"),
        ["job", "sys", "node", "plan", "cli"]
    );
}

#[test]
fn each_layer_imports_only_from_its_left() {
    let layers: BTreeMap<&str, u32> = LAYERS.into_iter().collect();
    let mut wrong = Vec::new();
    let mut modules = 0;
    for (name, text) in sources(&root().join("mpsd/src")) {
        let module = name
            .strip_prefix("mpsd/src/")
            .and_then(|n| n.split(['/', '.']).next())
            .unwrap_or("");
        let Some(layer) = layers.get(module) else {
            assert!(
                ["lib", "main", "bin"].contains(&module),
                "'{name}' is in no layer: enter it in LAYERS"
            );
            continue;
        };
        modules += 1;
        for used in named_after(&text, "crate::") {
            match layers.get(used.as_str()) {
                _ if used == module => {}
                Some(below) if below < layer => {}
                other => wrong.push(format!("{name} (layer {layer}) uses crate::{used} ({other:?})")),
            }
        }
    }
    assert!(modules > 30, "only {modules} files seen");
    assert_eq!(wrong, Vec::<String>::new());
}

#[test]
fn siblings_do_not_know_one_another() {
    for (of, others) in [
        ("prologue", ["epilogue", "spank", "tests"]),
        ("epilogue", ["prologue", "spank", "tests"]),
        ("spank", ["prologue", "epilogue", "tests"]),
        ("mpsd", ["prologue", "epilogue", "tests"]),
    ] {
        for (name, text) in sources(&root().join(of).join("src")) {
            for other in others {
                let named = text
                    .lines()
                    .any(|l| l.trim_start().starts_with(&format!("use {other}::")));
                assert!(!named, "{name} uses {other}");
            }
        }
    }
}

#[test]
fn unsafe_has_one_name() {
    let mut wrong = Vec::new();
    let mut right = 0;
    for krate in SHIPPED {
        for (name, text) in sources(&root().join(krate).join("src")) {
            let used = text
                .split(|c: char| !c.is_alphanumeric() && c != '_')
                .any(|word| word == "unsafe");
            match UNSAFE.iter().any(|home| name.starts_with(home)) {
                _ if !used => {}
                true => right += 1,
                false => wrong.push(name),
            }
        }
    }
    assert!(right >= 2, "no unsafe was seen anywhere: the search is broken");
    assert_eq!(wrong, Vec::<String>::new());
}

#[test]
fn nothing_shipped_has_a_switch_for_tests() {
    for krate in SHIPPED {
        let manifest = fs::read_to_string(root().join(krate).join("Cargo.toml")).expect("manifest");
        assert!(!manifest.contains("[features]"), "{krate} has features");
        for (name, text) in sources(&root().join(krate).join("src")) {
            for word in ["cfg!(test)", "feature = \"", "MPSD_TEST", "fake-", "nvml_stub"] {
                let test_file = name.contains("test") || name.contains("golden") || name.contains("paper");
                assert!(test_file || !text.contains(word), "{name} holds '{word}'");
            }
        }
    }
}

#[test]
fn every_line_of_the_threat_model_names_a_test_that_exists() {
    let text = fs::read_to_string(root().join("THREAT-MODEL.md")).expect("THREAT-MODEL.md");
    let places = ["suite", "mom", "slurm"].map(|name| root().join("tests").join(name));
    let exists = |name: &str| {
        let Some((module, test)) = name.split_once("::") else {
            return false;
        };
        let holds = |place: &PathBuf| {
            let text = fs::read_to_string(place.join(format!("{module}.rs")));
            text.is_ok_and(|text| text.contains(&format!("\nfn {test}(")))
        };
        places.iter().any(holds)
    };
    let mut lines = 0;
    for line in text
        .lines()
        .filter(|l| l.starts_with("| ") && !l.starts_with("| What") && !l.starts_with("|--"))
    {
        lines += 1;
        let last = line.trim_end_matches('|').rsplit('|').next().unwrap_or("");
        let named: Vec<&str> = last.split('`').skip(1).step_by(2).collect();
        assert!(!named.is_empty(), "no test is named: {line}");
        for name in named {
            assert!(exists(name), "there is no test '{name}': {line}");
        }
    }
    assert!(lines >= 20, "only {lines} lines seen");
}
