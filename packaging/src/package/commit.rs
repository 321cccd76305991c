//! The name of the commit that is built, for what `--version` says.

use std::process::Command;

use crate::cargo;

/// In an archive by `git archive`: the commit's name.
const ARCHIVED: &str = include_str!("../../commit");

/// The short name of the commit that is built: `MPSD_COMMIT`, or git's, or what `git archive` wrote into the source; none where
/// nothing tells.
pub fn commit() -> Option<String> {
    let given = std::env::var("MPSD_COMMIT").ok();
    let of_git = || {
        let output = Command::new("git")
            .args(["rev-parse", "--short=12", "HEAD"])
            .current_dir(cargo::root().ok()?)
            .output()
            .ok()?;
        let name = String::from_utf8(output.stdout).ok()?;
        output.status.success().then_some(name)
    };
    let given = given.or_else(of_git).unwrap_or_else(|| ARCHIVED.to_owned());
    let name = given.trim();
    let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_name.then(|| name.chars().take(12).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commit_is_a_name_of_git_and_the_file_in_the_repository_is_none() {
        let is_name = |name: &str| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_hexdigit());
        assert!(
            ARCHIVED == "$Format:%H$\n" || is_name(ARCHIVED.trim()),
            "{ARCHIVED}"
        );
        // A copy without a repository has none.
        assert!(commit().is_none_or(|name| name.len() <= 12 && is_name(&name)));
    }
}
