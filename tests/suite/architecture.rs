//! The rules of the house, read from the sources: layers, the plugin's thinness, the homes of `unsafe`, no switch for
//! tests in what is shipped.

use std::collections::{BTreeMap, BTreeSet};

use toml::Table;

use crate::sources::{Strings, code, files, text, words};

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
/// Where `unsafe` stands, and nowhere else: the kernel's interface, Slurm's, and CUDA's in the probe.
const UNSAFE: [&str; 3] = [
    "mpsd/src/sys/",
    "spank/src/sys/",
    "mpsd/src/bin/mps-probe/cuda.rs",
];
/// The crates whose code is shipped.
const SHIPPED: [&str; 5] = ["mpsd", "mpsd/core", "prologue", "epilogue", "spank"];
/// What each of them may depend on; the plugin runs inside Slurm's daemons, so its list is short on purpose.
const DEPENDENCIES: [(&str, &[&str]); 5] = [
    (
        "mpsd/core",
        &[
            "derive_more",
            "nix",
            "serde",
            "serde_json",
            "strsim",
            "thiserror",
            "toml",
        ],
    ),
    ("spank", &["mpsd-core", "nix"]),
    ("prologue", &["clap", "mpsd", "mpsd-core", "users"]),
    ("epilogue", &["clap", "mpsd", "mpsd-core"]),
    (
        "mpsd",
        &[
            "anstream",
            "anstyle",
            "clap",
            "cudarc",
            "derive_more",
            "indicatif",
            "landlock",
            "mpsd-core",
            "nix",
            "nvml-wrapper",
            "object",
            "plotters",
            "regex-lite",
            "rustix",
            "serde",
            "serde_json",
            "tar",
            "thiserror",
            "toml",
            "users",
        ],
    ),
];

/// Every source of a crate, with its path from the workspace and its text without comments.
fn sources(krate: &str, strings: Strings) -> Vec<(String, String)> {
    let all = files(&format!("{krate}/src"), ".rs");
    all.into_iter()
        .map(|(name, text)| (name, code(&text, strings)))
        .collect()
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
    for (name, text) in sources("mpsd", Strings::Kept) {
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
fn each_crate_depends_on_what_its_place_allows() {
    for (krate, allowed) in DEPENDENCIES {
        let manifest: Table = toml::from_str(&text(format!("{krate}/Cargo.toml"))).expect("manifest");
        let table = |name: &str| manifest.get(name).and_then(|value| value.as_table());
        let used: Vec<&str> = table("dependencies")
            .expect("dependencies")
            .keys()
            .map(String::as_str)
            .collect();
        let sorted: BTreeSet<&str> = used.into_iter().collect();
        assert_eq!(sorted, allowed.iter().copied().collect(), "{krate}");
        for other in ["build-dependencies", "target", "features"] {
            assert!(table(other).is_none(), "{krate} has [{other}]");
        }
    }
}

#[test]
fn unsafe_stands_in_its_homes_and_in_each_of_them() {
    let mut strays = Vec::new();
    let mut homes = BTreeSet::new();
    for krate in SHIPPED {
        for (name, text) in sources(krate, Strings::Emptied) {
            if !words(&text).any(|word| word == "unsafe") {
                continue;
            }
            match UNSAFE.iter().find(|home| name.starts_with(**home)) {
                Some(home) => drop(homes.insert(*home)),
                None => strays.push(name),
            }
        }
    }
    assert_eq!(strays, Vec::<String>::new(), "unsafe outside of its homes");
    assert_eq!(
        homes,
        UNSAFE.into(),
        "homes without any unsafe: take them off the list"
    );
}

#[test]
fn nothing_shipped_has_a_switch_for_tests() {
    for krate in SHIPPED {
        for (name, text) in sources(krate, Strings::Kept) {
            for word in ["cfg!(test)", "feature = \"", "MPSD_TEST", "fake-", "nvml_stub"] {
                let test_file = name.contains("test") || name.contains("golden") || name.contains("paper");
                assert!(test_file || !text.contains(word), "{name} holds '{word}'");
            }
        }
    }
}

/// What one scheduler does differently is an answer of its folder to `BatchSystem`, so that a new one is a folder and a line.
#[test]
fn only_a_schedulers_folder_names_it() {
    let mut strays = Vec::new();
    let mut homes = BTreeSet::new();
    for krate in SHIPPED {
        for (name, text) in sources(krate, Strings::Emptied) {
            // The names themselves.
            if name == "mpsd/core/src/job.rs" || name.contains("test") {
                continue;
            }
            for scheduler in ["Slurm", "Torque", "OpenPbs"] {
                if !text.contains(&format!("Scheduler::{scheduler}")) {
                    continue;
                }
                let home = format!("mpsd/src/scheduler/{}/", scheduler.to_lowercase());
                match name.starts_with(&home) {
                    true => drop(homes.insert(home)),
                    false => strays.push(format!("{name} names {scheduler}")),
                }
            }
        }
    }
    assert_eq!(strays, Vec::<String>::new());
    assert_eq!(homes.len(), 3, "folders that name their scheduler: {homes:?}");
}
