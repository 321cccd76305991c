//! What goes wrong under MPS, out of the table of `mpsctl explain`: a section of mpsctl(1), and a table of the guide.

use anyhow::{Context as _, Result};
use mpsd::cli::explain::table::{ROWS, Row};

use crate::settings::escape;

/// Around the table in the guide's page of troubleshooting.
const BEGIN: &str = "<!-- Errors: written by `cargo xtask texts` from mpsd/src/cli/explain/table.rs -->\n";
const END: &str = "<!-- end -->\n";

/// The errors, one paragraph each.
pub fn to_roff() -> String {
    let one = |row: &Row| {
        format!(
            ".TP\n.B {}\nCause: {}.\nRemedy: {}.\n",
            escape(&title(row)),
            escape(row.cause),
            escape(row.remedy)
        )
    };
    ROWS.iter().map(one).collect()
}

/// The page with the table of the errors in it.
///
/// # Errors
/// It has no place for it.
pub fn in_page(page: &str) -> Result<String> {
    let (before, rest) = page.split_once(BEGIN).context("no place for the errors")?;
    let (_, after) = rest
        .split_once(END)
        .context("the place for the errors has no end")?;
    let line = |row: &Row| {
        let cells =
            [title(row), row.cause.to_owned(), row.remedy.to_owned()].map(|cell| cell.replace('|', "\\|"));
        format!(
            "| [{}](facts/{}) | {} | {} |\n",
            cells[0], row.source, cells[1], cells[2]
        )
    };
    let lines: String = ROWS.iter().map(line).collect();
    Ok(format!(
        "{before}{BEGIN}| what | cause | remedy |\n|---|---|---|\n{lines}{END}{after}"
    ))
}

/// Its name, with the numbers of CUDA's.
fn title(row: &Row) -> String {
    let codes: Vec<String> = row.codes.iter().map(ToString::to_string).collect();
    match codes.is_empty() {
        true => row.name.to_owned(),
        false => format!("{} ({})", row.name, codes.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_and_guide_have_every_error_as_the_table_says_it() {
        let page = &crate::pages::all().unwrap()["mpsctl.1"];
        let guide = include_str!("../../../docs/troubleshooting.md");
        assert!(in_page(guide).unwrap() == guide, "run 'cargo xtask texts'");
        for row in ROWS {
            assert!(
                page.contains(&format!(".B {}\nCause: ", escape(&title(row)))),
                "{}",
                row.name
            );
        }
    }
}
