//! The project's rules, checked in the sources with syn: layers, no circles between files, the
//! places of `unsafe`, thin crates.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use mpsd_core::config::SECTIONS;
use syn::visit::{self, Visit};
use syn::{Attribute, Item, UseTree};
use tests::double::look::walk;
use toml::Table;

const LAYERS: [&str; 5] = ["plan", "job", "node", "supervisor", "cli"];
/// The interfaces to the kernel and to Slurm, and to CUDA in the probe.
const UNSAFE: [&str; 3] = [
    "mpsd/sys/src/",
    "spank/src/sys/",
    "mpsd/src/bin/mps-probe/cuda.rs",
];
const SCHEDULERS: [&str; 3] = ["Slurm", "Torque", "OpenPbs"];
const ROOTS: [&str; 17] = [
    "mpsd/core/src/lib.rs",
    "mpsd/sys/src/lib.rs",
    "mpsd/batch/src/lib.rs",
    "mpsd/setup/src/lib.rs",
    "mpsd/src/lib.rs",
    "mpsd/src/main.rs",
    "mpsd/ctl/src/lib.rs",
    "mpsd/ctl/src/main.rs",
    "mpsd/src/bin/mps-probe/main.rs",
    "mpsd/runner/src/lib.rs",
    "mpsd/runner/src/main.rs",
    "prologue/src/lib.rs",
    "prologue/src/main.rs",
    "epilogue/src/lib.rs",
    "epilogue/src/main.rs",
    "spank/src/lib.rs",
    "packaging/src/main.rs",
];
/// The plugin runs inside Slurm's daemons, so its list is short on purpose.
const DEPENDENCIES: [(&str, &str); 10] = [
    (
        "mpsd/core",
        "derive_more nix serde serde_json strsim thiserror toml",
    ),
    (
        "mpsd/sys",
        "derive_more landlock mpsd-core nix rustix serde thiserror",
    ),
    (
        "mpsd/batch",
        "clap derive_more mpsd-core mpsd-sys nix object serde serde_json",
    ),
    (
        "mpsd/setup",
        "anyhow clap derive_more mpsd-batch mpsd-core mpsd-sys nix serde_json",
    ),
    ("spank", "mpsd-core nix"),
    ("prologue", "clap mpsd mpsd-batch mpsd-core mpsd-sys"),
    ("epilogue", "clap mpsd mpsd-batch mpsd-core mpsd-sys"),
    (
        "mpsd",
        "clap cudarc derive_more mpsd-batch mpsd-core mpsd-sys nix nvml-wrapper rustix serde serde_json thiserror toml",
    ),
    (
        "mpsd/ctl",
        "anstream anstyle clap derive_more mpsd mpsd-batch mpsd-core mpsd-setup mpsd-sys nix rustix serde serde_json users",
    ),
    (
        "mpsd/runner",
        "anyhow clap indicatif mpsd mpsd-batch mpsd-core mpsd-ctl mpsd-setup mpsd-sys nix regex-lite serde serde_json",
    ),
];

type Names = Vec<String>;
/// The text of a file by its path from the workspace's root.
type Source<'a> = &'a dyn Fn(&str) -> Option<String>;

/// A module of a crate, without test code.
#[derive(Debug, Default)]
struct Module {
    file: String,
    imports: BTreeMap<String, Names>,
    /// Each path of a `use`, from code and macros. Re-exports of children (`pub use child::Thing`)
    /// are left out: through its parent a child may use what the parent defines.
    paths: Vec<Names>,
    /// What is read of what: `drain.enabled` of `settings.drain.enabled`.
    fields: BTreeSet<(String, String)>,
    has_unsafe: bool,
    has_switch: bool,
}

#[derive(Debug, Default)]
struct Crate(BTreeMap<Names, Module>);

fn source(file: &str) -> Option<String> {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file)).ok()
}

fn crates() -> Vec<Crate> {
    let read = |root| Crate::read(root, &source);
    ROOTS.into_iter().map(read).collect()
}

impl Crate {
    fn read(root: &str, source: Source) -> Self {
        let mut read = Self::default();
        let directory = root.rsplit_once('/').unwrap_or_default().0;
        read.add(Vec::new(), root, directory, source);
        read
    }

    /// Reads the module in `file`, whose children lie in `directory`, and all below it.
    fn add(&mut self, path: Names, file: &str, directory: &str, source: Source) {
        let text = source(file).unwrap_or_else(|| panic!("there is no '{file}'"));
        let parsed = syn::parse_file(&text).unwrap_or_else(|why| panic!("'{file}': {why}"));
        for item in &parsed.items {
            let Item::Mod(child) = item else { continue };
            if child.content.is_some() || is_for_tests(&child.attrs) {
                continue;
            }
            let below = format!("{directory}/{}", child.ident);
            let flat = format!("{below}.rs");
            let found = match source(&flat) {
                Some(_) => flat,
                None => format!("{below}/mod.rs"),
            };
            let path = [&path[..], &[child.ident.to_string()]].concat();
            self.add(path, &found, &below, source);
        }
        let mut module = Module {
            file: file.to_owned(),
            ..Module::default()
        };
        module.visit_file(&parsed);
        self.0.insert(path, module);
    }

    fn edges(&self) -> BTreeMap<&str, BTreeSet<&str>> {
        let mut edges = BTreeMap::new();
        for (at, module) in &self.0 {
            let paths = module.paths.iter();
            let goals = paths.filter_map(|path| self.resolve(at, path, 0));
            let files = goals.map(|goal| self.0[&goal].file.as_str());
            let others = files.filter(|file| *file != module.file).collect();
            edges.insert(module.file.as_str(), others);
        }
        edges
    }

    /// `None` if another crate does.
    fn resolve(&self, at: &[String], path: &[String], depth: u32) -> Option<Names> {
        let (first, rest) = path.split_first()?;
        match first.as_str() {
            _ if depth > 20 => None,
            "crate" => self.step(&[], rest, depth),
            "self" => self.step(at, rest, depth),
            "super" if rest.first().is_some_and(|next| next == "super") => {
                self.resolve(at.split_last()?.1, rest, depth + 1)
            }
            "super" => self.step(at.split_last()?.1, rest, depth),
            _ => self.step(at, path, depth).filter(|goal| goal != at),
        }
    }

    fn step(&self, at: &[String], path: &[String], depth: u32) -> Option<Names> {
        let Some((first, rest)) = path.split_first() else {
            return Some(at.to_vec());
        };
        let child = [at, std::slice::from_ref(first)].concat();
        if self.0.contains_key(&child) {
            return self.step(&child, rest, depth);
        }
        match self.0[at].imports.get(first) {
            Some(behind) => self.resolve(at, &[behind, rest].concat(), depth + 1),
            None => Some(at.to_vec()),
        }
    }
}

fn is_for_tests(attributes: &[Attribute]) -> bool {
    let words = |one: &Attribute| one.parse_args::<syn::Ident>();
    let mut all = attributes.iter().filter(|one| one.path().is_ident("cfg"));
    all.any(|one| words(one).is_ok_and(|word| word == "test"))
}

impl Module {
    fn import(&mut self, tree: &UseTree, before: &[String], is_public: bool) {
        let with = |name: &syn::Ident| [before, &[name.to_string()]].concat();
        let (name, path) = match tree {
            UseTree::Path(one) => return self.import(&one.tree, &with(&one.ident), is_public),
            UseTree::Group(group) => {
                let parts = group.items.iter();
                return parts.for_each(|part| self.import(part, before, is_public));
            }
            UseTree::Name(one) if one.ident == "self" => {
                (before[before.len() - 1].clone(), before.to_vec())
            }
            UseTree::Name(one) => (one.ident.to_string(), with(&one.ident)),
            UseTree::Rename(one) => (one.rename.to_string(), with(&one.ident)),
            UseTree::Glob(_) => (String::new(), before.to_vec()),
        };
        let is_door = is_public && !["crate", "super"].contains(&path[0].as_str());
        if !is_door {
            self.paths.push(path.clone());
        }
        self.imports.insert(name, path);
    }
}

impl<'ast> Visit<'ast> for Module {
    fn visit_item(&mut self, item: &'ast Item) {
        let attributes = match item {
            Item::Mod(item) => &item.attrs[..],
            Item::Fn(item) => &item.attrs,
            Item::Impl(item) => &item.attrs,
            Item::Use(item) => &item.attrs,
            _ => &[],
        };
        if !is_for_tests(attributes) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        let is_public = !matches!(item.vis, syn::Visibility::Inherited);
        self.import(&item.tree, &[], is_public);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments = path.segments.iter();
        let names: Names = segments.map(|one| one.ident.to_string()).collect();
        // A single name is an import's, which is among the paths already, or this file's own.
        if names.len() > 1 {
            self.paths.push(names);
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, item: &'ast syn::Macro) {
        let tokens = item.tokens.to_string();
        self.has_switch |= item.path.is_ident("cfg") && tokens.contains("test");
        // Macros have no syntax tree, and write a path as `a :: b`.
        let joined = tokens.replace(" :: ", "::");
        let fields = tokens.replace(" . ", ".");
        let fields = fields.split(|c: char| !c.is_alphanumeric() && c != '_' && c != '.');
        for path in fields.map(|path| path.split('.').collect::<Vec<_>>()) {
            let pair = |pair: &[&str]| (pair[0].to_owned(), pair[1].to_owned());
            self.fields.extend(path.windows(2).map(pair));
        }
        let words = joined.split(|c: char| !c.is_alphanumeric() && c != '_' && c != ':');
        let paths = words.map(|word| word.split("::").map(str::to_owned).collect::<Names>());
        self.paths.extend(paths.filter(|path| path.len() > 1));
        visit::visit_macro(self, item);
    }

    fn visit_expr_field(&mut self, field: &'ast syn::ExprField) {
        let of = match &*field.base {
            syn::Expr::Path(path) => path.path.segments.last().map(|one| one.ident.to_string()),
            syn::Expr::Field(of) => Some(member(of)),
            _ => None,
        };
        self.fields.extend(of.map(|of| (of, member(field))));
        visit::visit_expr_field(self, field);
    }

    fn visit_expr_unsafe(&mut self, block: &'ast syn::ExprUnsafe) {
        self.has_unsafe = true;
        visit::visit_expr_unsafe(self, block);
    }
}

fn member(field: &syn::ExprField) -> String {
    match &field.member {
        syn::Member::Named(name) => name.to_string(),
        syn::Member::Unnamed(bed) => bed.index.to_string(),
    }
}

fn circles(edges: &BTreeMap<&str, BTreeSet<&str>>) -> Vec<String> {
    let is_in_one = |file: &&&str| {
        let (mut found, mut left) = (BTreeSet::new(), vec![**file]);
        while let Some(next) = left.pop() {
            left.extend(edges[next].iter().filter(|goal| found.insert(**goal)));
        }
        found.contains(**file)
    };
    let inside: BTreeSet<&str> = edges.keys().filter(is_in_one).copied().collect();
    let line = |file: &&str| {
        let others: Vec<&str> = edges[file].intersection(&inside).copied().collect();
        format!("{file} names {}", others.join(", "))
    };
    inside.iter().map(line).collect()
}

#[test]
fn no_file_names_itself_through_others() {
    let crates = crates();
    let found = crates.iter().flat_map(|one| circles(&one.edges()));
    assert_eq!(found.collect::<Vec<_>>(), [""; 0], "circles between files");
}

#[test]
fn each_layer_imports_only_from_its_left() {
    let layer = |file: &str| {
        let module = file.strip_prefix("mpsd/src/")?.split(['/', '.']).next()?;
        let is_root = ["lib", "main", "bin"].contains(&module);
        let at = LAYERS.iter().position(|layer| *layer == module);
        assert!(is_root || at.is_some(), "'{file}' is in no layer");
        at
    };
    let mpsd = Crate::read("mpsd/src/lib.rs", &source);
    let mut wrong = Vec::new();
    for (file, others) in mpsd.edges() {
        let own = layer(file);
        let others = others.iter();
        let below = others.filter(|other| own.is_some() && layer(other) > own);
        wrong.extend(below.map(|other| format!("{file} uses {other}")));
    }
    assert!(mpsd.0.len() > 60, "only {} modules seen", mpsd.0.len());
    assert_eq!(wrong, [""; 0]);
}

#[test]
fn unsafe_stands_in_its_homes_and_no_code_knows_that_it_is_tested() {
    for module in crates().iter().flat_map(|one| one.0.values()) {
        let is_home = UNSAFE.iter().any(|home| module.file.starts_with(home));
        assert!(is_home || !module.has_unsafe, "unsafe in {}", module.file);
        assert!(!module.has_switch, "cfg!(test) in {}", module.file);
    }
}

/// A new scheduler is a folder and a line.
#[test]
fn only_a_schedulers_folder_names_it() {
    let mut homes = BTreeSet::new();
    for module in crates().iter().flat_map(|one| one.0.values()) {
        let pairs = module.paths.iter().flat_map(|path| path.windows(2));
        let is_one = |pair: &&[String]| SCHEDULERS.contains(&pair[1].as_str());
        for pair in pairs.filter(|pair| pair[0] == "Scheduler").filter(is_one) {
            let name = pair[1].to_lowercase();
            let places = ["batch", "setup"].map(|of| format!("mpsd/{of}/src/{name}"));
            let is_home = places.iter().any(|bed| module.file.starts_with(bed))
                // The definition of the names.
                || module.file == "mpsd/core/src/job.rs";
            assert!(is_home, "{} names {}", module.file, pair[1]);
            homes.insert(pair[1].clone());
        }
    }
    assert_eq!(homes.len(), SCHEDULERS.len(), "{homes:?}");
}

/// A key can be set, shown and explained without that any program reads it.
#[test]
fn each_key_of_mpsd_toml_is_read_by_a_program() {
    let crates = crates();
    let modules = || crates.iter().flat_map(|one| one.0.values());
    let rows = source("mpsd/core/src/config/settings.rs").expect("the keys");
    let mut unread = Vec::new();
    for section in SECTIONS {
        // `rule` is the table of a function that has nothing else of the settings.
        let of: &[&str] = match section.name {
            "" => &["settings", "in_force", "self"],
            name => &[name, "rule"],
        };
        for row in section.rows {
            // `deadline as "deadline_s"`
            let renamed = rows.split_once(&format!(" as \"{}\":", row.key));
            let field = renamed.and_then(|(before, _)| before.rsplit([' ', '\n']).next());
            let field = field.unwrap_or(row.key).to_owned();
            let is_read = |of: &&str| {
                let read = ((*of).to_owned(), field.clone());
                let own = |file: &str| *of != "self" || file == "mpsd/core/src/config/settings.rs";
                modules().any(|module| own(&module.file) && module.fields.contains(&read))
            };
            unread.extend((!of.iter().any(is_read)).then_some(row.name));
        }
    }
    assert_eq!(unread, [""; 0], "no program reads these keys");
}

#[test]
fn each_test_that_the_threat_model_names_is_there() {
    let page = source("THREAT-MODEL.md").expect("the page");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut all = Vec::new();
    for folder in ["mpsd", "spank", "packaging", "tests"] {
        walk(&root.join(folder), &mut |path, _| {
            if path.extension().is_some_and(|name| name == "rs") {
                let text = fs::read_to_string(path).expect("a file");
                all.push((path.to_owned(), text));
            }
            true
        });
    }
    let named = page.split('`').skip(1).step_by(2);
    let named: Vec<&str> = named.filter(|code| code.contains("::")).collect();
    assert!(named.len() > 100, "{named:?}");
    // 'file::function', the file also as 'file::tests' or by its folder.
    let is_away = |name: &&&str| {
        let words: Vec<&str> = name.split("::").filter(|word| *word != "tests").collect();
        let file = words[words.len().saturating_sub(2)];
        let function = format!("fn {}(", words[words.len() - 1]);
        let is_there = |(path, text): &(PathBuf, String)| {
            let path = path.with_extension("");
            path.iter().any(|part| part == file) && text.contains(&function)
        };
        !all.iter().any(is_there)
    };
    let away: Vec<_> = named.iter().filter(is_away).collect();
    assert!(away.is_empty(), "no such tests: {away:?}");
}

#[test]
fn each_crate_depends_on_what_its_place_allows() {
    for (name, allowed) in DEPENDENCIES {
        let text = source(&format!("{name}/Cargo.toml")).expect("a manifest");
        let manifest: Table = toml::from_str(&text).expect("a manifest");
        let used = manifest["dependencies"].as_table().expect("dependencies");
        let used: BTreeSet<&str> = used.keys().map(String::as_str).collect();
        assert_eq!(used, allowed.split(' ').collect(), "{name}");
        for other in ["build-dependencies", "target"] {
            assert!(manifest.get(other).is_none(), "{name} has [{other}]");
        }
    }
}

/// A row whose text the product no longer has would build no mutation.
#[test]
fn each_mutation_has_its_place() {
    let rows: Table = toml::from_str(&source("tests/mutations.toml").expect("rows")).expect("TOML");
    for row in rows["mutation"].as_array().expect("an array") {
        let [file, old] = ["file", "old"].map(|key| row[key].as_str().expect("text"));
        let text = source(file).expect("a file");
        assert_eq!(text.matches(old).count(), 1, "{file}: {old}");
    }
}
