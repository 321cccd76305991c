//! The links of the pages, and what comments cite of `docs/facts`: each leads to a file that is there, and to a heading of it.

use std::collections::BTreeSet;

use crate::sources::{files, root, text};

/// What a citation begins with.
const FACTS: &str = "docs/facts/";
/// Where comments may cite.
const PLACES: [&str; 10] = [
    "docs",
    "epilogue",
    "etc",
    "fuzz",
    "mpsd",
    "packaging",
    "prologue",
    "spank",
    "tests",
    ".github",
];

/// A heading's anchor, as GitHub makes it.
fn anchor(heading: &str) -> String {
    let kept = heading
        .to_lowercase()
        .chars()
        .filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c))
        .collect::<String>();
    kept.replace(' ', "-")
}

/// The anchors of a page.
fn anchors(page: &str) -> BTreeSet<String> {
    let headings = page.lines().filter(|line| line.starts_with('#'));
    headings
        .map(|line| anchor(line.trim_start_matches('#').trim()))
        .collect()
}

/// Why `target`, a path from the root with or without `#ANCHOR`, leads nowhere.
fn broken(target: &str) -> Option<String> {
    let (file, heading) = target
        .split_once('#')
        .map_or((target, None), |(file, heading)| (file, Some(heading)));
    if !root().join(file).exists() {
        return Some(format!("there is no '{file}'"));
    }
    let heading = heading?;
    (!anchors(&text(file)).contains(heading)).then(|| format!("'{file}' has no heading '#{heading}'"))
}

/// Every citation of a text: `docs/facts/PAGE.md#HEADING`, or a file there that has no headings.
fn citations(text: &str) -> Vec<&str> {
    text.match_indices(FACTS)
        .map(|(at, _)| {
            let rest = &text[at..];
            let end = rest.find(|c: char| !c.is_alphanumeric() && !"/.#-_".contains(c));
            rest[..end.unwrap_or(rest.len())].trim_end_matches('.')
        })
        .collect()
}

/// The targets of a page's links that lead into the repository.
fn links(page: &str) -> Vec<&str> {
    let targets = page.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets
        .filter(|target| !target.contains("://") && !target.starts_with("mailto:"))
        .collect()
}

#[test]
fn every_citation_leads_to_a_heading() {
    let mut wrong = Vec::new();
    let mut cited = 0;
    for place in PLACES {
        for (name, text) in files(place, "") {
            // This file's own examples cite nothing; the site's list of pages is mkdocs' to check.
            if name.ends_with("suite/facts.rs") || name.ends_with("docs/mkdocs.yml") {
                continue;
            }
            let old_form = text.lines().filter(|line| line.contains("facts: "));
            let comments = old_form.filter(|line| line.trim_start().starts_with("//"));
            wrong.extend(comments.map(|line| format!("{name}: no link: {}", line.trim())));
            for target in citations(&text) {
                cited += 1;
                let why = match target.contains('#') || !target.ends_with(".md") {
                    true => broken(target),
                    false => Some("no heading is named".to_owned()),
                };
                wrong.extend(why.map(|why| format!("{name} cites '{target}': {why}")));
            }
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
    assert!(cited >= 30, "only {cited} citations were seen");
}

#[test]
fn every_link_of_a_page_leads_somewhere() {
    let mut pages = files("docs", ".md");
    for name in std::fs::read_dir(root()).expect("workspace").flatten() {
        let name = name.file_name().into_string().expect("a name");
        if name.ends_with(".md") {
            pages.push((name.clone(), text(&name)));
        }
    }
    let mut wrong = Vec::new();
    for (name, text) in &pages {
        let folder = name
            .rsplit_once('/')
            .map_or(String::new(), |(folder, _)| format!("{folder}/"));
        for target in links(text) {
            let full = match target.starts_with('#') {
                true => format!("{name}{target}"),
                false => format!("{folder}{target}"),
            };
            wrong.extend(broken(&full).map(|why| format!("{name} links to '{target}': {why}")));
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
}

/// The paths that a page names in backquotes, from the workspace's root: a file or, with a slash at its end, a folder.
fn paths(page: &str) -> Vec<&str> {
    let quoted = page.split('`').skip(1).step_by(2);
    let is_path = |word: &&str| {
        let file = [".rs", ".md", ".toml"].iter().any(|end| word.ends_with(end)) && word.contains('/');
        let plain = word.chars().all(|c| c.is_alphanumeric() || "/._-".contains(c));
        plain && !word.starts_with('/') && (file || word.ends_with('/'))
    };
    quoted.filter(is_path).collect()
}

#[test]
fn every_file_that_the_map_names_is_there() {
    for page in ["ARCHITECTURE.md", "CONTRIBUTING.md"] {
        let text = text(page);
        let named = paths(&text);
        let missing: Vec<&&str> = named.iter().filter(|path| !root().join(path).exists()).collect();
        assert!(missing.is_empty(), "{page} names {missing:?}");
        assert!(named.len() >= 5, "{page}: only {named:?}");
    }
}

#[test]
fn what_leads_nowhere_is_found() {
    assert_eq!(anchor("Environment of job_prolog"), "environment-of-job_prolog");
    assert_eq!(
        anchor("Environment, identity and descriptors"),
        "environment-identity-and-descriptors"
    );
    let text = "(docs/facts/pbs.md#pbsnodes). docs/facts/slurm.md#no-such, docs/facts/none.md#x; docs/facts/slurm.md";
    let found = citations(text);
    assert_eq!(
        found,
        [
            "docs/facts/pbs.md#pbsnodes",
            "docs/facts/slurm.md#no-such",
            "docs/facts/none.md#x",
            "docs/facts/slurm.md",
        ]
    );
    let broken: Vec<bool> = found.iter().map(|target| broken(target).is_some()).collect();
    assert_eq!(broken, [false, true, true, false]);
    assert_eq!(
        paths("`a/b.rs` `c/` `d.rs` `/e/f.md` x `g/*.rs` `h/i`"),
        ["a/b.rs", "c/"]
    );
    assert_eq!(links("[a](b.md) [c](https://x.y) [d](#e)"), ["b.md", "#e"]);
}
