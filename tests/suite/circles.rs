//! No circles between the files of the product: each can be read after those that it names.
//!
//! A file names another by a path (`use`, or in the code) that leads to something defined there. `mod child;` and
//! re-exports (`pub use child::Thing`) name nothing: a parent is the door of its children, who may use what it defines.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// What is looked at, from the workspace's root.
const PRODUCT: [&str; 6] = [
    "mpsd/src",
    "mpsd/core/src",
    "prologue/src",
    "epilogue/src",
    "spank/src",
    "packaging/src",
];

/// The files that name one another, directly or through others.
type Circle = BTreeSet<String>;

#[test]
fn no_file_of_the_product_names_itself_through_others() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("workspace");
    let mut files = BTreeMap::new();
    for part in PRODUCT {
        read(root, &root.join(part), &mut files);
    }
    assert!(files.len() > 100, "only {} files seen", files.len());
    let found = circles(&edges(&files));
    let new: Vec<String> = found.iter().map(|circle| told(circle, &edges(&files))).collect();
    assert!(new.is_empty(), "circles between files:\n{}", new.join("\n"));
}

fn read(root: &Path, dir: &Path, files: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(dir).expect("directory").flatten() {
        let path = entry.path();
        if path.is_dir() {
            read(root, &path, files);
        } else if path.extension().is_some_and(|end| end == "rs") {
            let name = path
                .strip_prefix(root)
                .expect("below the root")
                .display()
                .to_string();
            files.insert(name, fs::read_to_string(&path).expect("source"));
        }
    }
}

/// One module: its file, and what its text says.
#[derive(Debug, Default)]
struct Module {
    file: String,
    parent: Option<usize>,
    root: usize,
    children: BTreeMap<String, usize>,
    /// Names that `use` brings in, with the path behind each.
    imports: BTreeMap<String, Vec<String>>,
    /// Every path of a `use` that is no re-export, and of the code.
    named: Vec<Vec<String>>,
}

/// Which file names which others.
fn edges(files: &BTreeMap<String, String>) -> BTreeMap<String, BTreeSet<String>> {
    let mut modules = Vec::new();
    for file in files.keys().filter(|file| is_root(file)) {
        let own = modules.len();
        let directory = Path::new(file).parent().expect("a directory").to_owned();
        add(files, file, &directory, None, own, &mut modules);
    }
    let mut edges = BTreeMap::new();
    for (at, module) in modules.iter().enumerate() {
        let goals: &mut BTreeSet<String> = edges.entry(module.file.clone()).or_default();
        for path in &module.named {
            if let Some(goal) = resolve(&modules, at, path, 0) {
                goals.insert(modules[goal].file.clone());
            }
        }
        goals.remove(&module.file);
    }
    edges
}

/// A crate's first file.
fn is_root(file: &str) -> bool {
    let (directory, name) = file.rsplit_once('/').unwrap_or_default();
    let (above, last) = directory.rsplit_once('/').unwrap_or_default();
    (last == "src" && ["lib.rs", "main.rs"].contains(&name))
        || last == "bin"
        || (above.ends_with("/bin") && name == "main.rs")
}

/// Enters the module in `file`, whose children lie in `directory`, and all below it.
fn add(
    files: &BTreeMap<String, String>,
    file: &str,
    directory: &Path,
    parent: Option<usize>,
    root: usize,
    modules: &mut Vec<Module>,
) -> usize {
    let own = modules.len();
    let words = words(&without_tests(&plain(&files[file])));
    modules.push(Module {
        file: file.to_owned(),
        parent,
        root,
        ..Module::default()
    });
    for pair in words.windows(3).filter(|w| w[0] == "mod" && w[2] == ";") {
        let name = &pair[1];
        let (flat, deep) = (
            directory.join(format!("{name}.rs")),
            directory.join(name).join("mod.rs"),
        );
        let found = [flat, deep].into_iter().find(|p| files.contains_key(&text(p)));
        let found = found.unwrap_or_else(|| panic!("'{file}': no file for 'mod {name}'"));
        let child = add(
            files,
            &text(&found),
            &directory.join(name),
            Some(own),
            root,
            modules,
        );
        modules[own].children.insert(name.clone(), child);
    }
    paths(&words, &mut modules[own]);
    own
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

/// The module that defines what `path` leads to from module `at`; none for what is another crate's.
fn resolve(modules: &[Module], at: usize, path: &[String], depth: u32) -> Option<usize> {
    let (first, rest) = path.split_first()?;
    let start = match first.as_str() {
        _ if depth > 20 => return None,
        "crate" => modules[at].root,
        "self" => at,
        "super" => modules[at].parent?,
        _ => return step(modules, at, path, depth).filter(|goal| *goal != at),
    };
    match rest.first().map(String::as_str) {
        Some("super") => resolve(modules, start, rest, depth + 1),
        _ => step(modules, start, rest, depth),
    }
}

/// From inside `at`: into a child, behind an import, or to an item of its own.
fn step(modules: &[Module], at: usize, path: &[String], depth: u32) -> Option<usize> {
    let Some((first, rest)) = path.split_first() else {
        return Some(at);
    };
    if let Some(child) = modules[at].children.get(first) {
        return step(modules, *child, rest, depth);
    }
    match modules[at].imports.get(first) {
        // `use x::x` names something else by the same word.
        Some(behind) if depth < 20 => {
            let whole: Vec<String> = behind.iter().chain(rest).cloned().collect();
            match whole.first().map(String::as_str) {
                Some("crate" | "self" | "super") => resolve(modules, at, &whole, depth + 1),
                Some(word) if modules[at].children.contains_key(word) => step(modules, at, &whole, depth + 1),
                _ => None,
            }
        }
        _ => Some(at),
    }
}

/// The text with comments, strings and characters blanked.
fn plain(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let skipped = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if c == '"' {
            quoted(rest)
        } else if c == 'r' && raw(rest, &out).is_some() {
            raw(rest, &out).unwrap_or(1)
        } else if c == '\'' && (rest[1..].starts_with('\\') || rest.chars().nth(2) == Some('\'')) {
            let from = if rest[1..].starts_with('\\') { 3 } else { 2 };
            rest.get(from..)
                .and_then(|r| r.find('\''))
                .map_or(1, |end| from + end + 1)
        } else {
            out.push(c);
            rest = &rest[c.len_utf8()..];
            continue;
        };
        out.push(' ');
        rest = &rest[skipped..];
    }
    out
}

/// Length of the string that begins here.
fn quoted(text: &str) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// Length of the raw string that begins here, if one does.
fn raw(text: &str, before: &str) -> Option<usize> {
    let word = before
        .chars()
        .next_back()
        .is_some_and(|c| c.is_alphanumeric() && c != 'b' && c != 'c' || c == '_');
    let hashes = text[1..].chars().take_while(|c| *c == '#').count();
    let body = text
        .get(1 + hashes..)
        .filter(|rest| !word && rest.starts_with('"'))?;
    let end = format!("\"{}", "#".repeat(hashes));
    Some(1 + hashes + 1 + body[1..].find(&end)? + end.len())
}

/// The text without what is compiled for tests only.
fn without_tests(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("#[cfg(test)]") {
        out.push_str(before);
        let mut depth = 0;
        let end = after.char_indices().find(|(_, c)| {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                _ => {}
            }
            depth == 0 && matches!(c, '}' | ';')
        });
        rest = end.map_or("", |(at, _)| &after[at + 1..]);
    }
    out + rest
}

/// Words, `::`, and single other characters.
fn words(text: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut inside = false;
    for c in text.chars() {
        let letter = c.is_alphanumeric() || c == '_';
        match words.last_mut() {
            Some(last) if letter && inside => last.push(c),
            Some(last) if c == ':' && last == ":" => last.push(c),
            _ if c.is_whitespace() => {}
            _ => words.push(c.to_string()),
        }
        inside = letter;
    }
    words
}

/// The paths of one text: those of `use`, opened, and those in the code.
fn paths(words: &[String], module: &mut Module) {
    let mut at = 0;
    while let Some(word) = words.get(at) {
        if word == "use" {
            let end = words[at..]
                .iter()
                .position(|w| w == ";")
                .map_or(words.len(), |n| at + n);
            let public = at > 0 && (words[at - 1] == "pub" || words[at - 1] == ")");
            let mut opened = Vec::new();
            open(&words[at + 1..end], &mut Vec::new(), &mut opened);
            for (path, name) in opened {
                let own = path
                    .first()
                    .is_some_and(|first| first == "self" || module.children.contains_key(first));
                if !(public && own) {
                    module.named.push(path.clone());
                }
                module.imports.insert(name, path);
            }
            at = end;
        } else if words.get(at + 1).is_some_and(|next| next == "::") && (at == 0 || words[at - 1] != "::") {
            let path: Vec<String> = words[at..]
                .chunks(2)
                .take_while(|pair| is_name(&pair[0]))
                .scan(true, |more, pair| {
                    let take = more.then(|| pair[0].clone());
                    *more = pair.get(1).is_some_and(|w| w == "::");
                    take
                })
                .collect();
            at += 2 * path.len().max(1) - 1;
            module.named.push(path);
        } else {
            at += 1;
        }
    }
}

fn is_name(word: &str) -> bool {
    word.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Opens the braces of a `use`: each path with the name that it gets.
fn open(words: &[String], before: &mut Vec<String>, opened: &mut Vec<(Vec<String>, String)>) {
    let depth = before.len();
    let mut name = None;
    let mut at = 0;
    while let Some(word) = words.get(at) {
        match word.as_str() {
            "{" => {
                let close = closing(words, at);
                for part in parts(&words[at + 1..close]) {
                    open(part, &mut before.clone(), opened);
                }
                before.truncate(depth);
                return;
            }
            "as" => name = words.get(at + 1).cloned(),
            "self" if !before.is_empty() => {}
            "::" | "*" => {}
            word if name.is_none() => before.push(word.to_owned()),
            _ => {}
        }
        at += 1;
    }
    let last = before.last().cloned().unwrap_or_default();
    opened.push((before.clone(), name.unwrap_or(last)));
    before.truncate(depth);
}

fn closing(words: &[String], open: usize) -> usize {
    let mut depth = 0;
    for (at, word) in words.iter().enumerate().skip(open) {
        match word.as_str() {
            "{" => depth += 1,
            "}" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at;
        }
    }
    words.len()
}

/// The parts between the commas of the outermost level.
fn parts(words: &[String]) -> Vec<&[String]> {
    let mut depth = 0;
    let mut all = words.split(|word| {
        match word.as_str() {
            "{" => depth += 1,
            "}" => depth -= 1,
            _ => {}
        }
        depth == 0 && word == ","
    });
    all.by_ref().filter(|part| !part.is_empty()).collect()
}

/// The sets of files that reach one another.
fn circles(edges: &BTreeMap<String, BTreeSet<String>>) -> BTreeSet<Circle> {
    let reach: BTreeMap<&String, BTreeSet<&String>> =
        edges.keys().map(|file| (file, reached(file, edges))).collect();
    let circle = |file: &String| -> Circle {
        reach[file]
            .iter()
            .filter(|other| reach.get(*other).is_some_and(|back| back.contains(file)))
            .map(|other| (*other).clone())
            .collect()
    };
    edges
        .keys()
        .filter(|file| reach[file].contains(file))
        .map(circle)
        .collect()
}

fn reached<'a>(from: &str, edges: &'a BTreeMap<String, BTreeSet<String>>) -> BTreeSet<&'a String> {
    let mut found = BTreeSet::new();
    let mut left: Vec<&str> = vec![from];
    while let Some(file) = left.pop() {
        for next in edges.get(file).into_iter().flatten() {
            if found.insert(next) {
                left.push(next);
            }
        }
    }
    found
}

/// A circle for a message: who names whom in it.
fn told(circle: &Circle, edges: &BTreeMap<String, BTreeSet<String>>) -> String {
    let line = |file: &String| {
        let inside: Vec<&str> = edges[file].intersection(circle).map(String::as_str).collect();
        format!("  {file} names {}", inside.join(", "))
    };
    circle.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Which files of a made-up crate name which.
fn made_up(texts: &[(&str, &str)]) -> BTreeMap<String, BTreeSet<String>> {
    let files = texts
        .iter()
        .map(|(file, text)| (format!("x/src/{file}"), (*text).to_owned()))
        .collect();
    edges(&files)
}

#[test]
fn a_circle_is_found_whatever_form_names_it() {
    let root = ("lib.rs", "pub mod a; mod b; mod c;");
    for (to_b, to_a) in [
        ("use crate::b::B;", "use crate::a::{self, A};"),
        ("use super::{c, b::{x, B as Y}};", "fn f() { crate::a::A::new() }"),
        ("fn f() -> super::b::B {}", "use super::a; impl a::A {}"),
    ] {
        let found = circles(&made_up(&[root, ("a.rs", to_b), ("b.rs", to_a), ("c.rs", "")]));
        let names: Vec<_> = found.iter().flatten().map(String::as_str).collect();
        assert_eq!(names, ["x/src/a.rs", "x/src/b.rs"], "{to_b} {to_a}");
    }
    let three = [
        root,
        ("a.rs", "use crate::b::B;"),
        ("b.rs", "use crate::c;"),
        ("c.rs", "use super::a::A;"),
    ];
    assert_eq!(
        circles(&made_up(&three))
            .iter()
            .map(Circle::len)
            .collect::<Vec<_>>(),
        [3]
    );
}

#[test]
fn a_door_is_no_circle_and_what_lies_behind_it_counts() {
    // The parent re-exports; the child uses what the parent defines.
    let door = [
        ("lib.rs", "mod a;"),
        ("a/mod.rs", "mod b; pub use b::B; pub struct A;"),
        ("a/b.rs", "use super::A;"),
    ];
    assert!(circles(&made_up(&door)).is_empty());
    // The parent's own code uses its child.
    let used = [
        ("lib.rs", "mod a;"),
        ("a/mod.rs", "mod b; use b::B; pub struct A;"),
        ("a/b.rs", "use super::A;"),
    ];
    assert_eq!(circles(&made_up(&used)).len(), 1);
    // Two children name one another through the door.
    let behind = [
        ("lib.rs", "mod a;"),
        ("a/mod.rs", "mod b; mod c; pub use b::B; pub use c::C;"),
        ("a/b.rs", "use super::C;"),
        ("a/c.rs", "use crate::a::B;"),
    ];
    let found = circles(&made_up(&behind));
    assert_eq!(found.iter().flatten().count(), 2, "{found:?}");
}

#[test]
fn comments_strings_and_tests_name_nothing() {
    let quiet = "// use crate::b::B;\nconst X: &str = \"crate::b::B\"; const Y: &str = r#\"crate::b::\"B\"#; \
        const Z: char = '\"'; fn f<'a>(x: &'a str) {} #[cfg(test)] mod tests { use crate::b::B; fn f() {} }";
    let texts = [
        ("lib.rs", "mod a; mod b;"),
        ("a.rs", quiet),
        ("b.rs", "use crate::a::f; use std::b;"),
    ];
    let edges = made_up(&texts);
    assert!(edges["x/src/a.rs"].is_empty(), "{edges:?}");
    assert_eq!(edges["x/src/b.rs"].len(), 1);
}
