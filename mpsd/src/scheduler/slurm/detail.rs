//! Which GPUs of a node a job has, as slurmctld says it: `scontrol --details show job`.
//!
//! The answer holds text of the user's, the job's name among it, which could look like the lines that are read here. So
//! the whole answer may name the node once only, and what the prolog was told must be part of it.

use super::commands::Installation;
use crate::scheduler::call::Input;
use crate::scheduler::devices::GpuName;
use mpsd_core::config::HostList;
use std::time::Duration;

/// The prolog waits no longer for it.
const DEADLINE: Duration = Duration::from_secs(3);

/// The job's places in the list of the GPUs of `node`, among which are those of `told`.
///
/// # Errors
/// One line: the controller does not answer, or what it says is not clear.
pub(super) fn places(input: &Input<'_>, node: &str, told: &[GpuName]) -> Result<Vec<GpuName>, String> {
    let var = |name: &str| (input.env)(name).filter(|value| !value.is_empty());
    let id = var("SLURM_JOB_ID").ok_or("Slurm did not set SLURM_JOB_ID")?;
    let slurm = Installation::find(&input.site, node);
    let call = |program, words: &[&str]| slurm.ask(program, words, DEADLINE);
    let show = |id: &str| call("scontrol", &["--details", "--oneliner", "show", "job", id]);
    let whole = of_node(&show(&id)?, node, told);
    // One id of an array, or of a het job, is that of all its parts; squeue has a name for each, and no text of the user's.
    whole.or_else(|why| {
        let names = call("squeue", &["--noheader", "--jobs", &id, "--format", "%A %i"])?;
        let own = names
            .lines()
            .find_map(|line| line.strip_prefix(&format!("{id} ")));
        let own = own.map(str::trim).filter(|own| *own != id).ok_or(why)?;
        of_node(&show(own)?, node, told)
    })
}

/// `Nodes=n[1-2] CPU_IDs=0-1 Mem=0 GRES=gpu:a:1(IDX:0),gpu:b:2(IDX:2-3)`.
fn of_node(text: &str, node: &str, told: &[GpuName]) -> Result<Vec<GpuName>, String> {
    let here = |list: &str| HostList::try_from(list.to_owned()).is_ok_and(|list| list.contains(node));
    let mut found = Vec::new();
    let mut is_here = false;
    for word in text.split_whitespace() {
        if let Some(list) = word.strip_prefix("Nodes=") {
            is_here = here(list);
        } else if let (true, Some(gres)) = (is_here, word.strip_prefix("GRES=")) {
            found.push(gres);
        }
    }
    let [gres] = found[..] else {
        return Err(format!(
            "scontrol shows {} lists of them for this job",
            found.len()
        ));
    };
    let unclear = || format!("scontrol shows GRES={gres}");
    // A share of a GPU, which is of one type.
    if !gres.contains("gpu:") {
        return Ok(told.to_vec());
    }
    let mut places = Vec::new();
    for part in gres
        .split(')')
        .filter(|part| part.trim_start_matches(',').starts_with("gpu:"))
    {
        let (_, list) = part.split_once("(IDX:").ok_or_else(unclear)?;
        for range in list.split(',').filter(|range| !range.is_empty()) {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let (first, last): (u32, u32) = first.parse().ok().zip(last.parse().ok()).ok_or_else(unclear)?;
            places.extend((first..=last.min(first.saturating_add(MOST))).map(GpuName::Index));
        }
    }
    match told.iter().all(|one| places.contains(one)) {
        true => Ok(places),
        false => Err(unclear()),
    }
}

/// More GPUs than a node has.
const MOST: u32 = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &str = "JobId=7 JobName=x NodeList=n[1-3] JOB_GRES=gpu:a:1,gpu:b:2 Nodes=n[1-2] CPU_IDs=0-1 Mem=0 \
                   GRES=gpu:a:1(IDX:0),gpu:b:2(IDX:2-3) Nodes=n3 CPU_IDs=0 Mem=0 GRES=gpu:a:2(IDX:0,1) MinCPUsNode=1";

    fn of(text: &str, node: &str, told: u32) -> Result<Vec<u32>, String> {
        let index = |name| match name {
            GpuName::Index(place) => place,
            GpuName::Uuid(_) => u32::MAX,
        };
        let found = of_node(text, node, &[GpuName::Index(told)])?;
        Ok(found.into_iter().map(index).collect())
    }

    #[test]
    fn the_places_of_every_type() {
        assert_eq!(of(TWO, "n2", 2), Ok(vec![0, 2, 3]));
        assert_eq!(of(TWO, "n3", 1), Ok(vec![0, 1]));
        assert_eq!(
            of("Nodes=n3 GRES=gpu:b:1(IDX:1),gpu:a:0(IDX:)", "n3", 1),
            Ok(vec![1])
        );
        assert_eq!(of("Nodes=n3 GRES=shard:1(IDX:1)", "n3", 1), Ok(vec![1]));
    }

    /// The job's name is the user's text.
    #[test]
    fn who_forges_a_line_gets_no_answer() {
        let forged = TWO.replace("=x", "=x Nodes=n2 GRES=gpu:4(IDX:0-3)");
        assert_eq!(
            of(&forged, "n2", 2),
            Err("scontrol shows 2 lists of them for this job".into())
        );
        let forged = TWO.replace("=x", "=x\nJobId=8 Nodes=n2 GRES=gpu:4(IDX:0-3)\nJobId=9");
        assert!(of(&forged, "n2", 2).is_err());
        for (text, node, told) in [(TWO, "n4", 0), (TWO, "n3", 3), ("", "n1", 0)] {
            assert!(of(text, node, told).is_err(), "{node}");
        }
        assert!(of("Nodes=n1 GRES=gpu:a:1", "n1", 0).is_err());
    }
}
