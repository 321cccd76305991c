//! Text of other people, made safe for one line of a log or a terminal.

/// At most `max` characters, made safe for a terminal that obeys escape sequences.
pub fn one_line(text: &str, max: usize) -> String {
    let shown = |c: char| {
        if c.is_control() || is_format(c) {
            '?'
        } else {
            c
        }
    };
    let mut characters = text.chars().map(shown);
    let mut line: String = characters.by_ref().take(max).collect();
    if characters.next().is_some() {
        line += "...";
    }
    line
}

/// `1 client`, `2 clients`.
pub fn count(number: u64, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}

pub fn list(all: impl IntoIterator<Item = impl ToString>) -> String {
    let all: Vec<String> = all.into_iter().map(|one| one.to_string()).collect();
    all.join(", ")
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

pub fn or_meant(why: &str, meant: Option<impl std::fmt::Display>) -> String {
    match meant {
        Some(meant) => format!("{why} (did you mean {meant}?)"),
        None => why.to_owned(),
    }
}

/// The parts of `text` between commas that stand in no brackets.
pub fn split_outside(text: &str, [open, close]: [char; 2]) -> impl Iterator<Item = &str> {
    let mut inside = false;
    text.split(move |c| {
        inside = (inside || c == open) && c != close;
        c == ',' && !inside
    })
}

pub fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Whether `text` is one or more ASCII letters, digits and `others`.
pub fn is_word(text: &str, others: &[u8]) -> bool {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || others.contains(&byte);
    !text.is_empty() && text.bytes().all(good)
}

/// Unicode's categories Cf, Zl and Zp, and what it lets a terminal show as nothing
/// (Default_Ignorable_Code_Point).
fn is_format(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{34f}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}' | '\u{890}'..='\u{891}'
        | '\u{8e2}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}' | '\u{180b}'..='\u{180f}'
        | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}'
        | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}' | '\u{110bd}' | '\u{110cd}'
        | '\u{13430}'..='\u{1343f}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

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
    fn what_no_terminal_shows_is_a_question_mark() {
        // The ends of each range of category Cf (Unicode 16), and of what is ignored without being
        // of it.
        let of_format = [
            0xad, 0x600, 0x605, 0x61c, 0x6dd, 0x70f, 0x890, 0x891, 0x8e2, 0x180e, 0x200b, 0x200f,
            0x202a, 0x202e, 0x2060, 0x2064, 0x2066, 0x206f, 0xfeff, 0xfff9, 0xfffb, 0x110bd,
            0x110cd, 0x13430, 0x1343f, 0x1bca0, 0x1bca3, 0x1d173, 0x1d17a, 0xe0001, 0xe0020,
            0xe007f,
        ];
        let ignored = [
            0x34f, 0x115f, 0x17b5, 0x180b, 0x2028, 0x2029, 0x3164, 0xfe0f, 0xffa0, 0xe0100, 0xe01ef,
        ];
        for code in of_format.into_iter().chain(ignored) {
            let c = char::from_u32(code).unwrap();
            assert_eq!(one_line(&format!("a{c}b"), 8), "a?b", "U+{code:04X}");
        }
        let shown = "\u{e9}\u{df}\u{4e2d}\u{5d0}\u{627}\u{2010}\u{20ac}\u{fffd}\u{1f600}";
        assert_eq!(one_line(shown, 80), shown);
    }

    #[test]
    fn the_nearest_word_is_near() {
        let known = ["threads", "mem", "on", "off", "per-node", "per-gpu"];
        let meant = ["thread", "THRAEDS", "pergpu", "pre-node"].map(|word| nearest(word, known));
        let near = ["threads", "threads", "per-gpu", "per-node"];
        assert_eq!(meant, near.map(Some));
        for word in ["memory", "maybe", "x", "", &"threads".repeat(10)] {
            assert_eq!(nearest(word, known), None, "{word}");
        }
    }
}
