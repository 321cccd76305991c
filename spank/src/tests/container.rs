//! The second line, behind pyxis'.

use super::fake::{FakeNode, FakeSlurm};
use crate::handle::{Context, Item, Verdict};
use crate::plugin;
use crate::state::State;

const PIPE: &str = "/run/mpsd/jobs/4711/pipe";

fn words() -> Vec<String> {
    vec!["look=container".into()]
}

/// A task that the first line has attached.
fn task() -> FakeSlurm {
    FakeSlurm::step(3)
        .with_job_env("MPSD_JOB", "4711")
        .with_job_env("CUDA_MPS_PIPE_DIRECTORY", PIPE)
}

fn look(slurm: FakeSlurm, hides: bool) -> (Verdict, Vec<String>) {
    look_as(slurm, 0, hides)
}

fn look_as(mut slurm: FakeSlurm, rank: u32, hides: bool) -> (Verdict, Vec<String>) {
    let node = FakeNode {
        hides,
        ..FakeNode::new()
    };
    slurm.items.retain(|(item, _)| *item != Item::TaskId);
    slurm.items.push((Item::TaskId, rank));
    let verdict = plugin::task_init(&mut slurm, &node, &mut State::default(), &words());
    assert!(node.nothing_ran());
    (verdict, slurm.errors())
}

#[test]
fn a_task_whose_container_hides_its_mps_does_not_start() {
    let (verdict, errors) = look(task(), true);
    assert_eq!(verdict, Verdict::Leave);
    assert!(
        matches!(&errors[..], [one] if one.contains(PIPE) && one.contains("job 4711: not started on n1")),
        "{errors:?}"
    );
    assert_eq!(look_as(task(), 1, true), (Verdict::Leave, Vec::new()));
    assert_eq!(look(task(), false), (Verdict::Continue, Vec::new()));
}

#[test]
fn a_task_that_has_no_mps_of_ours_is_not_looked_at() {
    let own = FakeSlurm::step(3).with_job_env("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps");
    assert_eq!(look(own, true), (Verdict::Continue, Vec::new()));
    assert_eq!(look(FakeSlurm::step(3), true), (Verdict::Continue, Vec::new()));
}

/// Slurm loads the library once, so both lines have one state: what the first has made of it stays.
#[test]
fn the_second_line_leaves_the_first_ones_state_alone() {
    let node = FakeNode::new();
    let flags = vec!["config=/etc/other.toml".to_owned()];
    for context in [
        Context::Local,
        Context::Allocator,
        Context::Remote,
        Context::Slurmd,
    ] {
        let mut slurm = FakeSlurm::new(context);
        let mut state = State::default();
        plugin::init(&mut slurm, &node, &mut state, &flags);
        let (registered, line) = (slurm.registered.len(), state.line.clone());
        plugin::init(&mut slurm, &node, &mut state, &words());
        plugin::init_post_opt(&mut slurm, &node, &mut state, &words());
        plugin::task_exit(&mut slurm, &node, &mut state, &words());
        plugin::exit(&mut slurm, &node, &mut state, &words());
        assert_eq!((slurm.registered.len(), state.line), (registered, line));
    }
    let mut slurm = FakeSlurm::new(Context::JobScript).with_option("mps", None);
    plugin::job_prolog(&mut slurm, &node, &mut State::default(), &words());
    plugin::job_epilog(&mut slurm, &node, &mut State::default(), &words());
    assert!(node.nothing_ran() && slurm.is_silent());
}
