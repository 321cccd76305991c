//! The shipped mpsd.toml from the table of keys, and mpsd.toml(5) from that file's comments. A
//! comment stands above each key. A single `#` stands before a key at its default. Empty lines
//! separate blocks.

use anyhow::{Result, bail};
use mpsd_core::config::{Row, SECTIONS, Settings, TEXTS};

/// The file's first block.
const HEAD: &str = "\
# mpsd.toml: what this site decides about MPS for batch jobs.
#
# A line that begins with a single '#' and a key shows the default, or an example if the text says 'Not set'. The file
# and every directory above it must belong to root, and no other user may write them. An unknown key is an error. Any
# error stops every job that asks for MPS on the node. 'mpsctl config check FILE' checks a draft of any user. 'mpsctl
# config show --node NAME' shows the values in force on a node, and their lines. A change takes effect with the next job;
# a running job keeps its settings, except for run_dir.
#
# Keys without a table stand above [defaults], and each table stands once.
# A job's request comes first, then the last [[node]] section that fits, then the keys outside of sections. [ceilings]
# limits all of them.
";
/// Its last block: the sections for some nodes.
const TAIL: &str = "\
# Sections for some nodes. Every key above may stand in one, tables as 'defaults.threads = 25'. A section needs hosts
# (names and ranges).
#
#[[node]]
#hosts = \"gpu[001-100],login1\"
#compute_mode = \"keep\"
#replicas = 7
#ceilings.mem = \"70G\"
";

/// The shipped file: every key with its meaning, commented out at its default.
pub fn to_toml() -> String {
    let usual = Settings::usual();
    let default = |row: &Row| {
        let mut origins = usual.origins.iter();
        origins.find(|origin| origin.key == row.name)?.value.clone()
    };
    let comment =
        |text: &[&str]| -> String { text.iter().map(|line| format!("#{line}\n")).collect() };
    let mut file = HEAD.to_owned();
    for (section, (about, texts)) in SECTIONS.iter().zip(TEXTS) {
        if !section.name.is_empty() {
            file += &format!("\n{}[{}]\n", comment(about), section.name);
        }
        for (n, (row, text)) in section.rows.iter().zip(*texts).enumerate() {
            let apart = !text.is_empty() && (n > 0 || section.name.is_empty());
            let value = default(row).or_else(|| row.example.map(str::to_owned));
            let value = value.unwrap_or_default();
            let space = if apart { "\n" } else { "" };
            file += &format!("{space}{}#{} = {value}\n", comment(text), row.key);
        }
    }
    file + "\n" + TAIL
}

/// The sections and keys of `file` as roff.
pub fn to_roff(file: &str) -> Result<String> {
    // The first block is about the whole file: the page says that in its own words.
    file.split("\n\n").skip(1).map(block).collect()
}

fn block(block: &str) -> Result<String> {
    let mut roff = String::new();
    let mut prose: Vec<&str> = Vec::new();
    let mut keys: Vec<&str> = Vec::new();
    let mut example: Vec<&str> = Vec::new();
    for line in block.lines() {
        match line {
            "" | "#" => {}
            _ if line.starts_with("[") => {
                roff.push_str(&format!(".SS {}\n", escape(line)));
                roff.push_str(&paragraph(&std::mem::take(&mut prose)));
            }
            _ if line.starts_with("# ") => prose.push(&line[2..]),
            _ if line.starts_with("#[[") || !example.is_empty() => example.push(&line[1..]),
            _ if line.starts_with('#') => keys.push(&line[1..]),
            _ => {
                bail!(
                    "mpsd.toml: '{line}' is neither a comment nor a key at its default nor a table"
                )
            }
        }
    }
    if !keys.is_empty() {
        // A roff request consumes quotes.
        let bold = |key: &&str| format!(".B {}\n", escape(key).replace('"', "\\(dq"));
        let bold: Vec<String> = keys.iter().map(bold).collect();
        let text = paragraph(&prose).replace(".PP\n", "");
        roff.push_str(&format!(".PP\n{}.RS 4\n{text}.RE\n", bold.join(".br\n")));
    } else if !example.is_empty() {
        roff.push_str(&format!(".SS [[node]]\n{}.PP\n.EX\n", paragraph(&prose)));
        roff.extend(example.iter().map(|line| format!("{}\n", guarded(line))));
        roff.push_str(".EE\n");
    } else {
        roff.push_str(&paragraph(&prose));
    }
    Ok(roff)
}

fn paragraph(lines: &[&str]) -> String {
    if lines.is_empty() {
        return String::new();
    }
    let lines = lines.iter().map(|line| format!("{}\n", guarded(line)));
    format!(".PP\n{}", String::from_iter(lines))
}

/// A text line that roff does not take for a request.
fn guarded(line: &str) -> String {
    let mark = match line.starts_with(['.', '\'']) {
        true => "\\&",
        false => "",
    };
    format!("{mark}{}", escape(line))
}

/// Text that roff prints as it is.
pub fn escape(text: &str) -> String {
    text.replace('\\', "\\e")
        .replace('-', "\\-")
        .replace('\'', "\\(aq")
}
