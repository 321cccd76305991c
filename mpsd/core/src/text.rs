//! Text of other people, made safe for one line of a log or a terminal.

/// `text` on one line, made safe for a terminal that obeys escape sequences; at most `max` characters.
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

/// `1 client`, `2 clients`.
pub fn count(number: u64, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}

const LONGEST_WORD: usize = 64;

/// The `known` word that the user most likely meant by `word`, in any case; `None`: none is near.
pub fn nearest<'k>(word: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    if word.len() > LONGEST_WORD {
        return None;
    }
    let word = word.to_ascii_lowercase();
    let far = |known: &str| strsim::damerau_levenshtein(&word, &known.to_ascii_lowercase());
    let all = known.into_iter().map(|known| (far(known), known));
    let near = all.filter(|(far, known)| *far <= (known.len() / 3).max(1) && *far < word.len());
    Some(near.min_by_key(|(far, _)| *far)?.1)
}

/// `why`, and a guess at what was meant.
pub fn or_meant(why: &str, meant: Option<impl std::fmt::Display>) -> String {
    match meant {
        Some(meant) => format!("{why} (did you mean {meant}?)"),
        None => why.to_owned(),
    }
}

/// Whether `text` is one or more ASCII digits.
pub fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Whether `text` is one or more ASCII letters, digits and `others`.
pub fn is_word(text: &str, others: &[u8]) -> bool {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || others.contains(&byte);
    !text.is_empty() && text.bytes().all(good)
}

/// Bidirectional overrides and other invisible format characters that can make a line read as another.
fn is_format(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// How each line names a user. `mpsctl support-bundle` finds names by this form, and removes them.
pub fn user(name: impl std::fmt::Display) -> String {
    format!("user '{name}'")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_do_not_reach_the_terminal() {
        assert_eq!(one_line("a\x1b[2Jb\nc\u{202e}d", 80), "a?[2Jb?c?d");
        assert_eq!(one_line("abcdef", 3), "abc...");
    }

    #[test]
    fn the_nearest_word_is_near() {
        let known = ["threads", "mem", "on", "off", "per-node", "per-gpu"];
        let meant = ["thread", "THRAEDS", "pergpu", "pre-node"].map(|word| nearest(word, known));
        assert_eq!(meant, ["threads", "threads", "per-gpu", "per-node"].map(Some));
        for word in ["memory", "maybe", "x", "", &"threads".repeat(10)] {
            assert_eq!(nearest(word, known), None, "{word}");
        }
    }
}
