//! The links of the finished site: each leads to a file of it, and to a place in that file. mkdocs follows those of Markdown alone, and
//! neither those of the man pages nor those of the theme.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context as _, Result, bail};

/// Follows every link below `site`; how many there are.
///
/// # Errors
/// The links that lead nowhere, each with its page.
pub fn follow(site: &Path) -> Result<usize> {
    let mut pages = BTreeMap::new();
    collect(site, &mut pages)?;
    let anchors: BTreeMap<&PathBuf, BTreeSet<&str>> = pages
        .iter()
        .map(|(path, html)| (path, values(html, &["id", "name"]).collect()))
        .collect();
    let mut followed = 0;
    let mut broken = Vec::new();
    for (path, html) in &pages {
        for target in values(html, &["href", "src"]).filter(|target| is_ours(target)) {
            followed += 1;
            let (file, place) = resolved(path, target);
            let there = match anchors.get(&file) {
                Some(anchors) => place.is_empty() || anchors.contains(place),
                None => file.exists(),
            };
            if !there {
                broken.push(format!("{}: '{target}'", path.display()));
            }
        }
    }
    match broken[..] {
        [] if followed > 0 => Ok(followed),
        [] => bail!("'{}': no links", site.display()),
        _ => bail!("links that lead nowhere:\n{}", broken.join("\n")),
    }
}

fn collect(dir: &Path, pages: &mut BTreeMap<PathBuf, String>) -> Result<()> {
    for entry in fs::read_dir(dir).with_context(|| format!("cannot read '{}'", dir.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, pages)?;
        } else if path.extension().is_some_and(|end| end == "html") && !path.ends_with("404.html") {
            let html =
                fs::read_to_string(&path).with_context(|| format!("cannot read '{}'", path.display()))?;
            pages.insert(path, html);
        }
    }
    Ok(())
}

/// The values of these attributes.
fn values<'a>(html: &'a str, names: &[&str]) -> impl Iterator<Item = &'a str> {
    let starts: Vec<String> = names.iter().map(|name| format!(" {name}=\"")).collect();
    let found: Vec<&str> = starts
        .iter()
        .flat_map(|start| html.split(start.as_str()).skip(1))
        .filter_map(|rest| rest.split('"').next())
        .collect();
    found.into_iter()
}

/// Whether the link stays on the site.
fn is_ours(target: &str) -> bool {
    !target.contains("://")
        && !target.starts_with("//")
        && !["mailto:", "data:", "javascript:"]
            .iter()
            .any(|word| target.starts_with(word))
}

/// The file that a link of `page` leads to, and the place in it.
fn resolved<'a>(page: &Path, target: &'a str) -> (PathBuf, &'a str) {
    let (file, place) = target.split_once('#').unwrap_or((target, ""));
    let file = file.split('?').next().unwrap_or(file);
    if file.is_empty() {
        return (page.to_owned(), place);
    }
    let mut path = page.parent().unwrap_or(page).to_owned();
    for part in Path::new(file).components() {
        match part {
            Component::ParentDir => {
                path.pop();
            }
            Component::CurDir => {}
            part => path.push(part),
        }
    }
    (path, place)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A site of two pages in a directory of its own, with `link` on the first.
    fn site(name: &str, link: &str) -> Result<usize> {
        let dir = std::env::temp_dir().join(format!("mpsd-links-{}-{name}", std::process::id()));
        fs::create_dir_all(dir.join("a")).unwrap();
        fs::write(
            dir.join("index.html"),
            format!("<p id=\"top\"><a href=\"{link}\">x</a>"),
        )
        .unwrap();
        fs::write(
            dir.join("a/b.html"),
            "<h2 class=\"Sh\" id=\"NAME\"><a href=\"../index.html#top\">",
        )
        .unwrap();
        let followed = follow(&dir);
        fs::remove_dir_all(&dir).unwrap();
        followed
    }

    #[test]
    fn a_link_that_leads_nowhere_is_named() {
        for link in ["a/b.html", "a/b.html#NAME", "./a/b.html?q=1#NAME", "#top", "#"] {
            assert_eq!(site("good", link).unwrap(), 2, "{link}");
        }
        assert_eq!(site("out", "https://example.org/x").unwrap(), 1);
        for link in ["a/c.html", "a/b.html#OTHER", "#bottom", "b.html"] {
            let why = site("bad", link).unwrap_err().to_string();
            assert!(why.contains(&format!("index.html: '{link}'")), "{link}: {why}");
        }
    }
}
