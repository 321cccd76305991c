//! The site's pages as mkdocs reads them: those of the repository where they lie in it, and the man pages in `reference/`.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail};

use super::tools;

/// The pages at the repository's root.
const ROOT: [&str; 6] = [
    "README.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "THREAT-MODEL.md",
];
/// What mkdocs itself reads, which is no page.
const SETTINGS: &str = "mkdocs.yml";

/// A man page: its name and section.
#[derive(Debug, PartialEq)]
struct Manual {
    name: String,
    section: String,
}

impl Manual {
    /// From the name of its file, `mpsd.toml.5`.
    fn of(file: &str) -> Option<Manual> {
        let (name, section) = file.rsplit_once('.')?;
        Some(Manual {
            name: name.to_owned(),
            section: section.to_owned(),
        })
    }

    /// `mpsd(8)`
    fn title(&self) -> String {
        format!("{}({})", self.name, self.section)
    }

    /// The name of its page, without the end.
    fn page(&self) -> String {
        format!("{}.{}", self.name, self.section)
    }
}

/// Writes all pages below `out`; the man pages are those in `manual`.
pub fn lay_out(root: &Path, manual: &Path, out: &Path) -> Result<()> {
    let manuals = manuals(manual)?;
    fs::create_dir_all(out).with_context(|| format!("cannot make '{}'", out.display()))?;
    for name in ROOT {
        page(&root.join(name), &out.join(name), "", &manuals)?;
    }
    folder(&root.join("docs"), &out.join("docs"), "../", &manuals)?;
    let reference = out.join("reference");
    fs::create_dir_all(&reference)?;
    for one in &manuals {
        let text = reference_page(one, &manual.join(one.page()), &manuals)?;
        fs::write(reference.join(format!("{}.md", one.page())), text)?;
    }
    Ok(())
}

fn manuals(dir: &Path) -> Result<Vec<Manual>> {
    let entries = fs::read_dir(dir).with_context(|| format!("cannot read '{}'", dir.display()))?;
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut found: Vec<Manual> = names.filter_map(|name| Manual::of(&name)).collect();
    found.sort_by_key(Manual::page);
    if found.is_empty() {
        bail!("'{}': no man pages", dir.display());
    }
    Ok(found)
}

/// A folder with all below it; `up` leads from it to the root.
fn folder(from: &Path, to: &Path, up: &str, manuals: &[Manual]) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("cannot make '{}'", to.display()))?;
    for entry in fs::read_dir(from).with_context(|| format!("cannot read '{}'", from.display()))? {
        let path = entry?.path();
        let name = path.file_name().context("a path without a name")?.to_owned();
        let into = to.join(&name);
        if path.is_dir() {
            folder(&path, &into, &format!("../{up}"), manuals)?;
        } else if path.extension().is_some_and(|end| end == "md") {
            page(&path, &into, up, manuals)?;
        } else if name != SETTINGS {
            fs::copy(&path, &into).with_context(|| format!("cannot copy '{}'", path.display()))?;
        }
    }
    Ok(())
}

fn page(from: &Path, to: &Path, up: &str, manuals: &[Manual]) -> Result<()> {
    let text = fs::read_to_string(from).with_context(|| format!("cannot read '{}'", from.display()))?;
    fs::write(to, linked(&text, up, manuals)).with_context(|| format!("cannot write '{}'", to.display()))
}

/// `text` with a link at each `mpsd(8)` that stands in no code.
fn linked(text: &str, up: &str, manuals: &[Manual]) -> String {
    let mut fenced = false;
    let mut all = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        if fenced {
            all.push_str(line);
            continue;
        }
        let pieces = line.split('`').enumerate().map(|(n, piece)| match n % 2 {
            0 => with_links(piece, up, manuals),
            _ => piece.to_owned(),
        });
        all.push_str(&pieces.collect::<Vec<_>>().join("`"));
    }
    all
}

fn with_links(piece: &str, up: &str, manuals: &[Manual]) -> String {
    manuals.iter().fold(piece.to_owned(), |text, one| {
        let link = format!("[{0}]({up}reference/{1}.md)", one.title(), one.page());
        text.replace(&one.title(), &link)
    })
}

/// mandoc's HTML below a heading of ours, with its own headings a step lower and a link at each other page's name.
fn reference_page(one: &Manual, file: &Path, manuals: &[Manual]) -> Result<String> {
    let output = tools::to_html()
        .arg(file)
        .output()
        .context("cannot start mandoc")?;
    if !output.status.success() {
        bail!(
            "mandoc: '{}': {}",
            file.display(),
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    let html = String::from_utf8(output.stdout).context("mandoc wrote no text")?;
    let lower = html
        .replace("<h2 class=\"Ss\"", "<h3 class=\"Ss\"")
        .replace("</h2>", "</h3>")
        .replace("<h1 class=\"Sh\"", "<h2 class=\"Sh\"")
        .replace("</h1>", "</h2>");
    let others = manuals.iter().filter(|other| *other != one);
    let html = others.fold(lower, |html, other| {
        let named = format!("<b>{}</b>({})", other.name, other.section);
        let link = format!("<a href=\"{}.html\">{named}</a>", other.page());
        html.replace(&named, &link)
    });
    // An empty line would end the piece of HTML for a reader of Markdown.
    let lines: Vec<&str> = html.lines().filter(|line| !line.trim().is_empty()).collect();
    Ok(format!(
        "# {}\n\n<div>\n{}\n</div>\n",
        one.title(),
        lines.join("\n")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages() -> Vec<Manual> {
        ["mpsd.8", "mpsd.toml.5"]
            .iter()
            .filter_map(|file| Manual::of(file))
            .collect()
    }

    #[test]
    fn a_page_is_named_by_its_file() {
        assert_eq!(pages()[1].title(), "mpsd.toml(5)");
        assert_eq!(pages()[1].page(), "mpsd.toml.5");
        assert_eq!(Manual::of("README"), None);
    }

    #[test]
    fn a_man_page_is_linked_where_it_stands_in_no_code() {
        let text = "See mpsd(8) and mpsd.toml(5), `man mpsd(8)`.\n```sh\n# mpsd(8)\n```\nmpsd(8)\n";
        assert_eq!(
            linked(text, "../", &pages()),
            "See [mpsd(8)](../reference/mpsd.8.md) and [mpsd.toml(5)](../reference/mpsd.toml.5.md), `man mpsd(8)`.\n\
         ```sh\n# mpsd(8)\n```\n[mpsd(8)](../reference/mpsd.8.md)\n"
        );
    }
}
