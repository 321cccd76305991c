//! Rust sources, as the tests that read the repository itself see them.

use std::fs;
use std::path::{Path, PathBuf};

/// The workspace's root.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("workspace")
        .to_owned()
}

/// Every file below `dir` (from the workspace's root) whose name ends in `end`: its path from the root, and its text.
pub fn files(dir: &str, end: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut left = vec![root().join(dir)];
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(&dir).expect("directory").flatten() {
            let path = entry.path();
            let name = path.strip_prefix(root()).expect("below the root");
            if path.is_dir() {
                left.push(path);
            } else if name.as_os_str().as_encoded_bytes().ends_with(end.as_bytes()) {
                found.push((name.display().to_string(), text(name)));
            }
        }
    }
    found.sort();
    found
}

/// The text of a file that is named from the workspace's root.
pub fn text(name: impl AsRef<Path>) -> String {
    let path = root().join(name);
    let bytes = fs::read(&path).unwrap_or_else(|error| panic!("'{}': {error}", path.display()));
    String::from_utf8_lossy(&bytes).into_owned()
}

/// What of a source is kept.
#[derive(Clone, Copy, PartialEq)]
pub enum Strings {
    /// Strings as they are written.
    Kept,
    /// `""` in the place of each.
    Emptied,
}

/// The source without its comments.
pub fn code(text: &str, strings: Strings) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let before = kept.chars().next_back().unwrap_or(' ');
        let inside_a_word = before.is_alphanumeric() || before == '_';
        let (length, is_comment, is_string) = if rest.starts_with("//") {
            (rest.find('\n').unwrap_or(rest.len()), true, false)
        } else if rest.starts_with("/*") {
            (block_comment(rest), true, false)
        } else if let Some(length) = string(rest).filter(|_| !inside_a_word) {
            (length, false, true)
        } else {
            (character(rest).unwrap_or(first.len_utf8()), false, false)
        };
        let (piece, more) = rest.split_at(length);
        match () {
            () if is_comment => {}
            () if is_string && strings == Strings::Emptied => kept.push_str("\"\""),
            () => kept.push_str(piece),
        }
        rest = more;
    }
    kept
}

/// Length of the comment at the start; such comments nest.
fn block_comment(text: &str) -> usize {
    let mut depth = 0_i32;
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        let step = match &bytes[at..] {
            [b'/', b'*', ..] => 1,
            [b'*', b'/', ..] => -1,
            _ => 0,
        };
        depth += step;
        at += if step == 0 { 1 } else { 2 };
        if depth == 0 {
            break;
        }
    }
    at
}

/// Length of the string literal at the start, its prefix included.
fn string(text: &str) -> Option<usize> {
    let letters = text.len() - text.trim_start_matches(['b', 'c', 'r']).len();
    let raw = text[..letters].ends_with('r');
    let after = &text[letters..];
    let hashes = after.len() - after.trim_start_matches('#').len();
    if letters > 2 || !after[hashes..].starts_with('"') || (hashes > 0 && !raw) {
        return None;
    }
    let begin = letters + hashes + 1;
    if raw {
        let end = format!("\"{}", "#".repeat(hashes));
        return Some(begin + text[begin..].find(&end)? + end.len());
    }
    let mut escaped = false;
    let end = text[begin..].find(|c| {
        let ends = c == '"' && !escaped;
        escaped = c == '\\' && !escaped;
        ends
    })?;
    Some(begin + end + 1)
}

/// Length of the character literal at the start; a lifetime is none.
fn character(text: &str) -> Option<usize> {
    let inside = text.strip_prefix('\'')?;
    if let Some(escape) = inside.strip_prefix('\\') {
        let skipped = escape.chars().next()?.len_utf8();
        return Some(2 + skipped + escape[skipped..].find('\'')? + 1);
    }
    let one = inside.chars().next()?.len_utf8();
    inside[one..].starts_with('\'').then_some(one + 2)
}

/// The words of a text: letters, digits and underscores.
pub fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_')
        .filter(|word| !word.is_empty())
}

#[test]
fn comments_go_and_strings_stay_or_are_emptied() {
    let text = "let a = \"http://x \\\" unsafe\"; // unsafe\n/* unsafe /* nested */ */ let b = r#\"// \"unsafe\" \"#;\n\
                let c: &'a str = b\"x\"; let d = ['\"', '\\'', '/']; // end";
    assert_eq!(
        code(text, Strings::Emptied),
        "let a = \"\"; \n let b = \"\";\nlet c: &'a str = \"\"; let d = ['\"', '\\'', '/']; "
    );
    assert_eq!(
        code(text, Strings::Kept),
        "let a = \"http://x \\\" unsafe\"; \n let b = r#\"// \"unsafe\" \"#;\nlet c: &'a str = b\"x\"; \
         let d = ['\"', '\\'', '/']; "
    );
}
