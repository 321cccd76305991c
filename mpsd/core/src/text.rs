//! Text that came from somebody else, made fit for one line of a log or a terminal.

/// `text` on one line: control characters, escapes and non-ASCII blanks replaced, at most `max` characters.
///
/// The job's user writes account strings, log lines and environment values; an administrator reads them in a
/// terminal that obeys escape sequences.
pub fn one_line(text: &str, max: usize) -> String {
    let mut out = String::with_capacity(text.len().min(max));
    for (n, c) in text.chars().enumerate() {
        if n == max {
            out.push_str("...");
            break;
        }
        out.push(if c.is_control() || is_format(c) { '?' } else { c });
    }
    out
}

/// Bidirectional overrides and other invisible format characters that can make a line read as another.
fn is_format(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

#[cfg(test)]
mod tests;
