//! `cargo xtask docs`: the site, by mkdocs. A headless browser opens each page at three widths: a
//! page that scrolls sideways, or a link that leads nowhere, is an error.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use fs_err as fs;

use crate::cargo;
use crate::command::quietly;
use crate::files::{emptied, is_a, list};
use crate::install::{mermaid, program, python};

const MKDOCS: &str = include_str!("../python/mkdocs.txt");
const CHROMIUM: &str = "/usr/bin/chromium";
/// No sandbox, because root cannot have one; no network; frames may read each other's pages.
const BROWSER: [&str; 10] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--allow-file-access-from-files",
    "--virtual-time-budget=60000",
];

pub fn prepare() -> Result<()> {
    python("mkdocs", MKDOCS)?;
    mermaid()?;
    program("/usr/bin/mandoc", "mandoc")?;
    program(CHROMIUM, "chromium")
}

pub fn run() -> Result<()> {
    prepare()?;
    let root = cargo::root()?;
    let work = cargo::target_directory()?.join("docs");
    let manual = work.join("manual");
    for dir in [&work, &manual, &work.join("pages")] {
        emptied(dir)?;
    }
    let to = manual.display().to_string();
    cargo::build(&format!("run --locked --package manual -- {to}"))?;
    for name in ["mkdocs.yml", "hooks.py", "site.css", "search.js"] {
        fs::copy(root.join("packaging/site").join(name), work.join(name))?;
    }
    let out = root.join("target/site");
    let mut command = Command::new(python("mkdocs", MKDOCS)?.join("mkdocs"));
    command
        .env("MPSD_ROOT", &root)
        .env("MPSD_MANUAL", manual.join("man"))
        .env("MPSD_MERMAID", mermaid()?)
        .env("MPSD_BROWSER", serde_json::to_string(&browser())?)
        .env("NO_MKDOCS_2_WARNING", "1")
        // Without --quiet, because with it --strict counts no warning.
        .args(["build", "--strict", "--config-file"])
        .arg(work.join("mkdocs.yml"))
        .arg("--site-dir")
        .arg(&out);
    quietly(&mut command)?;
    let (index, result) = (out.join("index.html"), check(&root, &out, &work)?);
    println!("{}: {result}", index.display());
    Ok(())
}

fn browser() -> Vec<&'static str> {
    let start = ["/usr/bin/timeout", "--kill-after=5", "300", CHROMIUM];
    start.into_iter().chain(BROWSER).collect()
}

fn check(root: &Path, site: &Path, work: &Path) -> Result<String> {
    let mut pages = Vec::new();
    collect(site, &mut pages)?;
    let relative = pages.iter().filter_map(|page| page.strip_prefix(site).ok());
    let relative = relative.filter(|page| *page != Path::new("404.html"));
    let relative = serde_json::to_string(&Vec::from_iter(relative))?;
    let text = fs::read_to_string(root.join("packaging/site/check.html"))?;
    let text = text.replacen("PAGES;", &format!("{relative};"), 1);
    let file = site.join("check.html");
    fs::write(&file, text)?;
    let browser = browser();
    let mut command = Command::new(browser[0]);
    command.args(&browser[1..]);
    let data = work.join("browser");
    command.arg(format!("--user-data-dir={}", data.display()));
    command.args(["--dump-dom", &format!("file://{}", file.display())]);
    let output = command.output().context("cannot start chromium")?;
    fs::remove_file(&file)?;
    let page = String::from_utf8_lossy(&output.stdout).into_owned();
    let result = page.split_once("RESULT\n");
    let result = result.and_then(|(_, rest)| rest.split_once("\nEND"));
    match result {
        Some((result, _)) if result.contains("links lead somewhere") => Ok(result.to_owned()),
        Some((result, _)) => bail!("the site:\n{result}"),
        None => bail!(
            "the browser gave no result ({}): {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        ),
    }
}

fn collect(dir: &Path, pages: &mut Vec<PathBuf>) -> Result<()> {
    for path in list(dir)? {
        if path.is_dir() {
            collect(&path, pages)?;
        } else if is_a(&path, "html") {
            pages.push(path);
        }
    }
    Ok(())
}
