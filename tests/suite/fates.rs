//! What becomes of a job and of its node, by what happens at its begin, on the sim. A job of
//! `auto`, or one that its site brings in, always runs. The second is told nothing. Without MPS,
//! either is like a job that did not ask.

use mpsd_core::failure::Evidence;
use mpsd_core::record::RecordState::{Ready, Unneeded};
use tests::sim::scenario::Scenario;
use tests::sim::{SharedWorld, Sim, Trouble, living, silence_kills};

/// The scenario ([`Scenario::new`]), what happens, the prologue's exit code and failure, the
/// record's state; how often the node is drained, the job requeued, the exit held back, a remark shown;
/// lines for the user; words of the log, `!` before those that are not there. Words of a job that
/// runs are also in the user's lines and in the record's reason.
const FATES: &str = "
# A failing sister takes its node down, and a job may be deleted with it. So the tasks are told
# instead, unless a broken node stays in service.
1 MPS=true torque | undetermined | 2 undetermined | - | 0 0 1 0 | 1 |
1 MPS=true torque | fault | 2 fault | - | 1 0 0 0 | 2 |
1 MPS=true torque | fault, deaf | 2 fault | - | 0 0 1 0 | 2 |
1 MPS=true torque sister | undetermined | 0 undetermined | failed | 0 0 0 0 | 1 |
1 MPS=true torque sister | fault | 0 fault | failed | 1 0 0 0 | 2 |
1 MPS=true torque sister | fault, deaf | 2 fault | - | 0 0 1 0 | 2 |
# OpenPBS's hook does not let this try count: the user had nothing there.
1 MPS=true torque recorded | undetermined, full | 2 undetermined | - | 0 0 1 0 | 1 | record for \
    the job's tasks; !script
1 MPS=true openpbs recorded | undetermined, full | 3 undetermined | - | 0 0 1 1 | 1 | record for \
    the job's tasks; !script
# OpenPBS tries it again, and its administrator would not hear of it.
1 MPS=true openpbs recorded | undetermined | 3 undetermined | failed | 0 0 1 1 | 1 |
1 MPS=true openpbs recorded config=[drain]; enabled = false | undetermined | 3 undetermined | failed | 0 0 1 0 | 1 |
# Jobs without MPS run well there.
1 MPS=true torque sister unattached | well | 2 fault | - | 0 0 1 1 | 1 | no starter
1 MPS=auto torque tasks=4 unattached | well | 0 | unneeded | 0 0 0 0 | 1 | no starter
1 MPS=auto torque sister tasks=4 unattached | well | 0 | unneeded | 0 0 0 0 | 1 | no starter
# Its user knows best whether TM starts its tasks.
1 MPS=true torque by-hand | well | 0 | ready | 0 0 0 0 | 1 | mpsctl exec
# It would be refused again.
1 MPS=true,MPS_MEM=8G config=[ceilings]; mem = '4G' | well | 1 refusal | - | 0 0 0 0 | 1 | 8G
1 MPS=true,MPS_MEM=8G torque config=[ceilings]; mem = '4G' | well | 1 refusal | - | 0 0 0 0 | 1 | 8G
1 MPS=true,MPS_MEM=8G openpbs config=[ceilings]; mem = '4G' | well | 1 refusal | - | 0 0 0 0 | 1 | 8G
# The plugin fails the prolog of a job on a broken node by its record.
1 MPS=true recorded | fault | 2 fault | failed | 1 0 0 0 | 2 | !script
1 MPS=true recorded | fault, full | 2 fault | - | 1 1 0 0 | 2 | !script
1 MPS=auto recorded tasks=1 | well | 0 | unneeded | 0 0 0 0 | 1 | auto: no MPS, because 1 task on 1 GPU
1 MPS=auto recorded tasks=1 site | well | 0 | unneeded | 0 0 0 0 | 0 | auto: no MPS, because 1 task on 1 GPU
1 MPS=auto recorded tasks=2 | well | 0 | ready | 0 0 0 0 | 0 |
1 MPS=auto recorded tasks=1 shared | well | 0 | ready | 0 0 0 0 | 0 |
1 MPS=auto recorded tasks=4 no-gpu | well | 0 | unneeded | 0 0 0 0 | 1 | auto: no MPS, because
1 MPS=auto recorded tasks=4 unknown | well | 0 | unneeded | 0 0 0 0 | 1 | auto: no MPS, because
1 MPS=auto recorded tasks=49 | well | 0 | unneeded | 0 0 0 0 | 1 | auto: no MPS, because
1 MPS=auto,MPS_THREADS=25 recorded tasks=49 | well | 1 refusal | refused | 0 0 0 0 | 1 |
1 MPS=auto,MPS_THREADS=25 recorded tasks=1 | well | 0 | unneeded | 0 0 0 0 | 1 | auto: no MPS, because
1 MPS=auto detached tasks=1 | well | 0 | unneeded | 0 0 0 0 | 1 | auto: no MPS, because
1 MPS=auto announced tasks=1 | well | 0 | unneeded | 0 0 0 0 | 1 | auto: no MPS, because
1 MPS=auto announced tasks=49 | well | 0 | unneeded | 0 0 0 0 | 1 | auto: no MPS, because
1 MPS=auto recorded tasks=1 step | well | 0 | unneeded | 0 0 0 0 | 1 | auto: no MPS, because
# A drain of this node waits for its scheduler.
1 MPS=auto recorded tasks=1 | undelivered | 0 | unneeded | 0 0 0 0 | 1 |
1 MPS=auto recorded tasks=2 | undelivered | 2 undetermined | failed | 0 1 0 0 | 1 |
# A job that its site brought in could notice its MPS.
2 MPS=auto recorded tasks=4 site | well | 0 | ready | 0 0 0 0 | 0 |
2 MPS=auto recorded tasks=4 site script=mpirun -n 4 ./prog | well | 0 | ready | 0 0 0 0 | 0 |
2 MPS=auto recorded tasks=4 site script=nvidia-cuda-mps-control -d; mpirun ./prog | well | 0 | \
    unneeded | 0 0 0 0 | 0 | nvidia-cuda-mps
2 MPS=auto recorded tasks=4 site script=for i in $(seq 56); do ./prog & done | well | 0 | \
    unneeded | 0 0 0 0 | 0 | names no mpirun
2 MPS=auto recorded tasks=4 site script= | well | 0 | unneeded | 0 0 0 0 | 0 | names no mpirun
1 MPS=auto recorded tasks=49 site | well | 0 | unneeded | 0 0 0 0 | 0 | a GPU takes 48 of its 49 tasks
2 MPS=auto recorded tasks=49 site | well | 0 | unneeded | 0 0 0 0 | 0 | a GPU takes 48 of its 49 tasks
2 MPS=auto recorded tasks=4 unlike site | well | 0 | unneeded | 0 0 0 0 | 0 | not alike
2 MPS=auto recorded tasks=4 site config=[defaults]; mode = 'per-gpu' | well | 0 | ready | 0 0 0 0 | 0 |
2 MPS=per-gpu recorded tasks=4 site | well | 0 refusal | unneeded | 0 0 0 0 | 0 | a daemon for each GPU
4 MPS=auto recorded tasks=4 listed=0,1 site | well | 0 | unneeded | 0 0 0 0 | 0 | the numbers of its own would change
4 MPS=auto recorded tasks=4 \
    listed=GPU-00000000-0000-4000-8000-000000000000,GPU-00000001-0000-4000-8000-000000000000 site \
    | well | 0 | ready | 0 0 0 0 | 0 |
2 MPS=auto recorded tasks=4 divided=1:0/1 site | well | 0 | ready | 0 0 0 0 | 0 |
2 MPS=auto recorded tasks=2 site | well | 0 | unneeded | 0 0 0 0 | 0 | 2 tasks on 2 GPUs
1 MPS=auto recorded tasks=2 torque unattached site | well | 0 | unneeded | 0 0 0 0 | 0 | no starter
1 MPS=auto recorded tasks=2 torque by-hand site | well | 0 | ready | 0 0 0 0 | 0 |
";

fn happens(world: &SharedWorld, what: &str) -> Trouble {
    let has = |word| what.split(", ").any(|one| one == word);
    let mut world = world.borrow_mut();
    (world.deaf, world.no_room) = (has("deaf"), has("full"));
    world.undelivered = has("undelivered").then(|| format!("mpsd: {:?}", Evidence::GpuLost));
    match (has("fault"), has("undetermined")) {
        (true, _) => Trouble::FaultAt(0),
        (_, true) => Trouble::UndeterminedAt(0),
        _ => Trouble::None,
    }
}

/// The middle cells of the row, as they are.
fn becomes(words: &'static str, what: &str, expected: &str, row: &str) -> String {
    let scenario = Scenario::new("fate", words);
    let world = scenario.node();
    let trouble = happens(&world, what);
    let begun = Sim::new(&world, trouble).begun(&scenario);
    let seen = world.borrow().clone();
    let record = seen.record(&scenario.id());
    let state = record.as_ref().map(|record| record.state);
    let failure = begun.failed.as_ref().map(|failed| &failed.failure);

    let drains = usize::from(what.starts_with("fault"));
    assert_eq!(seen.drains.len(), drains, "{row}");
    if begun.code == 1 {
        let told = seen.reports.iter().flat_map(|report| &report.not_started);
        let is_told = told.eq(&failure.map(ToString::to_string));
        assert!(is_told, "{row}: {seen:?}");
    }
    let reason = record.as_ref().and_then(|record| record.reason.as_ref());
    for word in expected.split("; ").filter(|word| !word.is_empty()) {
        if let Some(absent) = word.strip_prefix('!') {
            assert!(!seen.log.concat().contains(absent), "{row}: {:?}", seen.log);
            continue;
        }
        let count = |lines: &[String]| lines.iter().filter(|line| line.contains(word)).count();
        let is_told = count(&seen.complaints) == seen.complaints.len();
        let is_logged = count(&seen.log) == 1;
        assert!(is_logged && (is_told || begun.code != 0), "{row}: {seen:?}");
        let is_reason = reason.is_none_or(|reason| reason.contains(word));
        assert!(is_reason, "{row}: {reason:?}");
    }
    if let (true, Some(record)) = (scenario.by_site, &record) {
        let plain = record.warnings.is_empty() && !record.exclusive && seen.modes.is_empty();
        let untold = seen.reports.is_empty() && record.by_site.is_some();
        assert!(plain && untold, "{row}: {record:?}");
    }
    if state == Some(Unneeded) {
        is_alone(&world, &scenario, row);
        assert!(seen.journal(&scenario.id()).is_none(), "{row}");
    }
    if what == "well" {
        ends_as_before(&world, &scenario, row);
    }
    let kind = failure.map_or(String::new(), |failure| format!(" {}", failure.kind()));
    let state = state.map_or("-".to_owned(), |state| format!("{state:?}").to_lowercase());
    let [drained, requeued, waits] = [seen.drained, seen.requeued.len(), seen.waits as usize];
    let (code, remarks, told) = (begun.code, seen.remarks.len(), seen.complaints.len());
    format!("{code}{kind} | {state} | {drained} {requeued} {waits} {remarks} | {told}")
}

#[test]
fn each_job_and_its_node_have_the_fate_of_their_row() {
    let mut wrong = Vec::new();
    for row in FATES.lines().filter(|line| line.contains('|')) {
        let cells: Vec<&'static str> = row.split('|').map(str::trim).collect();
        let [words, what, middle @ .., expected] = &cells[..] else {
            panic!("{row}")
        };
        let is = becomes(words, what, expected, row);
        if middle.join(" | ") != is {
            wrong.push(format!("{row}\n  is {is}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[track_caller]
fn is_alone(world: &SharedWorld, scenario: &Scenario, after: &str) {
    let world = world.borrow();
    let before = scenario.world();
    assert_eq!(world.inventory, before.inventory, "{after}: compute modes");
    let none = world.processes.is_empty() && world.cgroups.is_empty();
    assert!(none, "{after}");
    assert_eq!(world.accounts(), before.accounts(), "{after}");
    let none = world.drains.is_empty() && world.requeued.is_empty();
    assert!(none, "{after}");
}

#[track_caller]
fn ends_as_before(world: &SharedWorld, scenario: &Scenario, after: &str) {
    let found = Sim::well(world).end(scenario);
    assert!(found.is_clean(), "{after}: {found:?}");
    let before = scenario.world().picture();
    assert_eq!(world.borrow().picture(), before, "{after}");
}

/// A job that gets no MPS never fails through us. Its end leaves nothing, wherever its begin was
/// killed. The user of a job that its site brings in is told nothing in any case.
#[test]
fn nothing_that_fails_keeps_a_job_from_running_that_did_not_insist() {
    silence_kills();
    let ways = [
        "recorded",
        "detached",
        "announced",
        "torque sister recorded",
    ];
    for (how, is_of_site) in ways.into_iter().flat_map(|how| [(how, false), (how, true)]) {
        let tasks = ["tasks=1", "tasks=2 site"][usize::from(is_of_site)];
        let scenario = Scenario::new("fails", &format!("1 MPS=auto {how} {tasks}"));
        let mut well = Sim::well(&scenario.node());
        well.begin(&scenario).expect("it begins");
        let (points, calls) = (well.points(), well.calls());
        assert!(points > 2 && calls > 2, "{points} {calls}");
        let mut left_out = 0;
        let troubles =
            (0..calls).flat_map(|at| [Trouble::FaultAt(at), Trouble::UndeterminedAt(at)]);
        for trouble in troubles {
            let world = scenario.node();
            let code = Sim::new(&world, trouble).begun(&scenario).code;
            let seen = world.borrow().clone();
            let name = format!("{how} {tasks} {trouble:?}");
            assert_eq!(code, 0, "{name}: {:?}", seen.log);
            let record = seen.record(&scenario.id());
            let state = record.as_ref().map(|record| record.state);
            left_out += usize::from(state == Some(Unneeded));
            if !is_of_site {
                assert!(matches!(state, None | Some(Unneeded)), "{name}: {state:?}");
                is_alone(&world, &scenario, &name);
                ends_as_before(&world, &scenario, &name);
                continue;
            }
            let runs = matches!(state, None | Some(Unneeded | Ready));
            assert!(runs, "{name}: {state:?}");
            let silent = seen.complaints.is_empty() && seen.reports.is_empty();
            assert!(silent && seen.requeued.is_empty(), "{name}");
            if let Some(record) = record.filter(|record| record.state == Unneeded) {
                // Without a request no step of it tries again.
                let is_whole = record.request.is_none() && record.by_site.is_some();
                assert!(is_whole, "{name}");
                assert!(seen.log.iter().any(|line| line.contains("4711")), "{name}");
            }
        }
        assert!(left_out > 0 || !is_of_site, "{how}");
        for at in (0..points).filter(|_| !is_of_site) {
            let world = scenario.node();
            let mut node = Sim::new(&world, Trouble::KillAt(at));
            assert!(living(|| drop(node.begin(&scenario))).is_none(), "{at}");
            is_alone(&world, &scenario, &format!("killed at {at}"));
            ends_as_before(&world, &scenario, &format!("killed at {at}"));
        }
    }
}

/// Torque runs a job's prologue again without an epilogue in between.
#[test]
fn what_an_earlier_start_of_the_job_left_is_taken_down() {
    let first = Scenario::new("first", "1 MPS=auto recorded tasks=2");
    let again = Scenario::new("again", "1 MPS=auto recorded tasks=1");
    let begun = |scenario, world: &_, trouble| Sim::new(world, trouble).begun(scenario).code;
    let world = first.node();
    assert_eq!(begun(&first, &world, Trouble::None), 0);
    assert_eq!(world.borrow().state(&first.id()), Some(Ready));
    assert_eq!(begun(&again, &world, Trouble::None), 0);
    assert_eq!(world.borrow().state(&again.id()), Some(Unneeded));
    is_alone(&world, &again, "begun again");
    ends_as_before(&world, &again, "begun again");
    // If that cannot be taken down, it still holds the GPU, so the job does not run.
    let mut kept = 0;
    for at in 0..40 {
        let world = first.node();
        begun(&first, &world, Trouble::None);
        match begun(&again, &world, Trouble::UndeterminedAt(at)) {
            0 => is_alone(&world, &again, &format!("trouble at {at}")),
            _ => kept += 1,
        }
    }
    assert!(kept > 0);
}

/// Slurm's plugin shows what the record asks for.
#[test]
fn a_job_that_its_site_brought_in_has_no_line_in_its_output() {
    for (words, told) in [
        ("", (false, true)),
        ("site", (false, false)),
        ("config=[defaults]; report = true", (true, false)),
        ("site config=[defaults]; report = true", (false, false)),
    ] {
        let words = format!("1 MPS=auto recorded tasks=2 {words}");
        let scenario = Scenario::new("line", &words);
        let world = scenario.node();
        Sim::well(&world).begin(&scenario).expect("it begins");
        let record = world.borrow().record(&scenario.id()).expect("a record");
        assert_eq!(record.state, Ready, "{words}");
        assert_eq!((record.report, record.summary), told, "{words}");
    }
}

/// A single task is left out later, if nothing else uses its GPU.
#[test]
fn its_record_says_whether_its_steps_tasks_must_meet() {
    for (words, meet) in [
        ("1 MPS=auto recorded tasks=4 site", true),
        ("1 MPS=on recorded tasks=4 site", false),
        ("1 MPS=auto recorded tasks=4 site shared", false),
    ] {
        let scenario = Scenario::new("meet", words);
        let world = scenario.node();
        let mut well = Sim::well(&world);
        well.begin(&scenario).expect("it begins");
        // Nobody would read of programs outside its MPS.
        assert!(!well.outside, "{meet}");
        let record = world.borrow().record(&scenario.id()).expect("a record");
        let by_site = record.by_site.expect("by_site");
        assert_eq!((by_site.tasks, by_site.if_tasks_meet), (4, meet));
    }
}
