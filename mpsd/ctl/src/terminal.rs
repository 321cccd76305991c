//! What `mpsctl` prints: lines that fit the terminal, and the lines of a check with a colored mark.

use anstyle::AnsiColor;
pub use mpsd::cli::{say, say_json};
use rustix::termios::{isatty, tcgetwinsize};
use serde_json::{Value, json};
use setup::CheckLine;
use std::io::{Write as _, stdout};

const MARKS: [(&str, AnsiColor); 3] = [
    ("OK", AnsiColor::Green),
    ("WARN", AnsiColor::Yellow),
    ("FAIL", AnsiColor::Red),
];
/// The text of a check's line begins here, and so do its further lines.
const MARK_WIDTH: usize = 6;

/// Columns of standard output; `None`: it is no terminal, and lines are as long as they are.
pub fn width() -> Option<usize> {
    let columns = || tcgetwinsize(stdout()).map_or(0, |size| usize::from(size.ws_col));
    isatty(stdout()).then(|| match columns() {
        0 => 80,
        columns => columns,
    })
}

/// `line` within `width` columns; '>' stands for the part that is cut off.
pub fn cut(mut line: String, width: Option<usize>) -> String {
    if let Some(width) = width.filter(|width| line.chars().count() > *width) {
        line = line.chars().take(width.saturating_sub(1)).collect();
        line.push('>');
    }
    line
}

/// Breaks between words; the second and later lines begin with `indent` blanks.
pub fn wrap(line: &str, indent: usize, width: Option<usize>) -> String {
    // A terminal with no room beside the indent gets the line as it is.
    let Some(width) = width.filter(|width| *width > 2 * indent) else {
        return line.to_owned();
    };
    let mut out = String::new();
    let mut column = 0;
    for (place, word) in line.split(' ').enumerate() {
        let length = word.chars().count();
        if place > 0 && column + 1 + length > width && column > indent {
            out.push('\n');
            out.push_str(&" ".repeat(indent));
            column = indent;
        } else if place > 0 {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += length;
    }
    out
}

/// The marks are colored on a terminal only, and not with `NO_COLOR`.
pub fn say_checks(text: &str) {
    let mut out = anstream::stdout();
    let width = width();
    for line in text.lines() {
        let first = line.split(' ').next().unwrap_or_default();
        let _ = match MARKS.iter().find(|(mark, _)| *mark == first) {
            Some((mark, color)) => {
                let (line, style) = (wrap(line, MARK_WIDTH, width), color.on_default());
                writeln!(out, "{style}{mark}{style:#}{}", &line[mark.len()..])
            }
            None => writeln!(out, "{line}"),
        };
    }
}

/// The object of `doctor --json` and `selftest --json`.
pub fn checks_json<'a>(lines: impl IntoIterator<Item = &'a CheckLine>, worst: &str) -> Value {
    let one = |line: &CheckLine| json!({"status": line.status(), "text": line.text()});
    let findings: Vec<_> = lines.into_iter().map(one).collect();
    json!({"worst": worst, "findings": findings})
}

pub fn worst(lines: &[CheckLine]) -> &'static str {
    let has = |mark: &&str| lines.iter().any(|line| line.status() == *mark);
    ["FAIL", "WARN"].into_iter().find(has).unwrap_or("OK")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_wrapped_between_words_and_no_word_is_lost() {
        let line = "WARN  one two three four five six seven";
        for width in [0, 5, 13, 20, 80] {
            let text = wrap(line, MARK_WIDTH, Some(width));
            let (words, all) = (text.split_whitespace(), line.split_whitespace());
            assert!(words.eq(all), "{width}: {text}");
            let fits = text.lines().all(|line| line.chars().count() <= width);
            assert!(fits || width <= 2 * MARK_WIDTH, "{width}: {text}");
        }
        assert_eq!(wrap("OK    a bb ccc", 6, Some(13)), "OK    a bb\n      ccc");
        assert_eq!(wrap(line, 6, None), line);
    }

    #[test]
    fn the_worst_line_counts_also_if_it_is_not_shown() {
        let [pass, warn, fail] =
            [CheckLine::Pass, CheckLine::Warn, CheckLine::Fail].map(|line| line("x".into()));
        assert_eq!(worst(&[]), "OK");
        let all = [pass, warn];
        assert_eq!(worst(&all), "WARN");
        let expected = json!({"worst": "WARN", "findings": [{"status": "WARN", "text": "x"}]});
        assert_eq!(checks_json(&all[1..], worst(&all)), expected);
        assert_eq!(worst(&[fail]), "FAIL");
    }
}
