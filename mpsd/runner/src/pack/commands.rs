//! The commands of a file, and the part of this node.

use crate::places::nodes_of_step;
use batch::Lookup;
use mpsd_core::Refusal;
use mpsd_core::text::one_line;
use std::ffi::OsString;
use std::io::Read as _;
use std::os::unix::ffi::OsStringExt as _;
use std::path::Path;

/// Most that the file may be, bytes.
const MOST: u64 = 256 << 20;

/// A command with its number in the file, from 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    pub seq: u64,
    pub text: OsString,
}

pub fn read(file: &Path) -> Result<Vec<Line>, Refusal> {
    let name = one_line(&file.display().to_string(), 200);
    let refused = |why: String| {
        let allowed = "a file with a command on each line, or -";
        Refusal::new(format!("file '{name}'"), why, allowed)
    };
    let mut bytes = Vec::new();
    let read = match file == Path::new("-") {
        true => std::io::stdin().take(MOST + 1).read_to_end(&mut bytes),
        false => std::fs::File::open(file)
            .and_then(|opened| opened.take(MOST + 1).read_to_end(&mut bytes)),
    };
    read.map_err(|error| refused(format!("cannot be read: {error}")))?;
    if bytes.len() as u64 > MOST {
        return Err(refused(format!("it is larger than {} MiB", MOST >> 20)));
    }
    match commands(&bytes) {
        Ok(all) if all.is_empty() => Err(refused("it has no command".to_owned())),
        Ok(all) => Ok(all),
        Err(number) => Err(refused(format!("line {number} has a NUL byte"))),
    }
}

/// Blank lines and comments have no number. The error is the number of a line that cannot be run.
fn commands(bytes: &[u8]) -> Result<Vec<Line>, usize> {
    let mut all: Vec<Line> = Vec::new();
    for (number, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let text = line.trim_ascii();
        if text.is_empty() || text.starts_with(b"#") {
            continue;
        }
        if text.contains(&0) {
            return Err(number + 1);
        }
        all.push(Line {
            seq: all.len() as u64 + 1,
            text: OsString::from_vec(text.to_vec()),
        });
    }
    Ok(all)
}

/// A node's part of the file: each `of`-th command, from the one of its number on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    pub node: u64,
    pub of: u64,
}

impl Part {
    const WHOLE: Self = Self { node: 0, of: 1 };

    /// Only srun starts a pack on each node.
    pub fn of(env: Lookup<'_>) -> Result<Self, Refusal> {
        let Some(of) = nodes_of_step(env, "pack", "run the commands of its node")? else {
            return Ok(Self::WHOLE);
        };
        let number = |name: &str| env(name)?.trim().parse::<u64>().ok();
        match number("SLURM_NODEID") {
            _ if of < 2 => Ok(Self::WHOLE),
            Some(node) if node < of => Ok(Self { node, of }),
            _ => {
                let why = "SLURM_NODEID does not say which node of the step this is";
                Err(Refusal::new("pack", why, "srun"))
            }
        }
    }

    pub fn has(self, line: &Line) -> bool {
        (line.seq - 1) % self.of == self.node
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blank_lines_and_comments_are_no_commands_and_have_no_number() {
        let all = commands(b"a b\n\n  # no\r\n\t c | d # e \r\n#\n\xffe").unwrap();
        let all = all
            .iter()
            .map(|line| (line.seq, line.text.as_encoded_bytes()));
        let all: Vec<(u64, &[u8])> = all.collect();
        assert_eq!(all, [(1, &b"a b"[..]), (2, b"c | d # e"), (3, b"\xffe")]);
        assert_eq!(commands(b"a\nb\0c"), Err(2));
        let error = |file: &str| read(Path::new(file)).unwrap_err().to_string();
        assert!(error("/nonexistent").contains("cannot be read"));
        assert!(error("/dev/null").contains("no command"));
    }

    #[test]
    fn the_parts_of_two_nodes_are_disjoint_and_whole() {
        let step = |nodes: &'static str, tasks: &'static str, node: &'static str| {
            Part::of(&move |name| match name {
                "SLURM_STEP_NUM_NODES" => Some(nodes.to_owned()),
                "SLURM_STEP_NUM_TASKS" => Some(tasks.to_owned()),
                "SLURM_NODEID" => Some(node.to_owned()),
                _ => None,
            })
        };
        let lines = commands("x\n".repeat(9).as_bytes()).unwrap();
        let of = |part: Part| -> Vec<u64> {
            let own = lines.iter().filter(|line| part.has(line));
            own.map(|line| line.seq).collect()
        };
        assert_eq!(of(step("2", "2", "0").unwrap()), [1, 3, 5, 7, 9]);
        assert_eq!(of(step("2", "2", "1").unwrap()), [2, 4, 6, 8]);
        assert_eq!(step("1", "1", "0"), Ok(Part::WHOLE));
        let several = step("2", "8", "0").unwrap_err().to_string();
        for said in ["8 tasks on 2 nodes", "srun -N2 -n2"] {
            assert!(several.contains(said), "{several}");
        }
        assert!(step("2", "2", "").is_err() && step("1", "4", "0").is_err());
        // A batch script of two nodes.
        let script = |name: &str| (name == "SLURM_NNODES").then(|| "2".to_owned());
        assert_eq!(Part::of(&script), Ok(Part::WHOLE));
    }
}
