//! `cargo xtask docs`: the site, by mkdocs. A headless browser opens each page at three widths: a
//! page that scrolls sideways, or a link that leads nowhere, is an error.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use fs_err as fs;

use crate::cargo;
use crate::command::{command, quietly, wrote};
use crate::files::emptied;
use crate::install::{mermaid, program, python};

const MKDOCS: &str = include_str!("../python/mkdocs.txt");
/// For timeout(1). No sandbox, because root cannot have one; no network; frames may read each
/// other's pages.
const BROWSER: &str = "--kill-after=5 300 /usr/bin/chromium --headless --no-sandbox --disable-gpu --disable-quic \
                       --no-first-run --disable-background-networking --disable-component-update --disable-sync \
                       --allow-file-access-from-files --virtual-time-budget=60000";

pub fn prepare() -> Result<()> {
    python("mkdocs", MKDOCS)?;
    mermaid()?;
    program("/usr/bin/mandoc", "mandoc")?;
    program("/usr/bin/chromium", "chromium")
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
        .env("MPSD_BROWSER", format!("/usr/bin/timeout {BROWSER}"))
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

fn check(root: &Path, site: &Path, work: &Path) -> Result<String> {
    let found = wrote(command("find", ". -name *.html -printf %P\\n").current_dir(site))?;
    let mut pages = Vec::from_iter(found.lines().filter(|page| *page != "404.html"));
    pages.sort_unstable();
    let pages = serde_json::to_string(&pages)?;
    let text = fs::read_to_string(root.join("packaging/site/check.html"))?;
    let text = text.replacen("PAGES;", &format!("{pages};"), 1);
    let file = site.join("check.html");
    fs::write(&file, text)?;
    let mut command = command("/usr/bin/timeout", BROWSER);
    let data = work.join("browser");
    command.arg(format!("--user-data-dir={}", data.display()));
    command.args(["--dump-dom", &format!("file://{}", file.display())]);
    let output = command.output().context("cannot start chromium")?;
    fs::remove_file(&file)?;
    let page = String::from_utf8_lossy(&output.stdout).into_owned();
    let result = page.split_once("RESULT\n");
    let result = result.and_then(|(_, rest)| rest.split_once("\nEND"));
    let Some((result, _)) = result else {
        let why = String::from_utf8_lossy(&output.stderr);
        bail!(
            "the browser gave no result ({}): {}",
            output.status,
            why.trim()
        );
    };
    if !result.contains("links lead somewhere") {
        bail!("the site:\n{result}");
    }
    Ok(result.to_owned())
}
