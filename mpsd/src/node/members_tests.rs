use super::*;
use crate::job::journal::Programs;
use crate::node::tasks::tasks;
use crate::node::testing::{journal, node};
use mpsd_core::JobId;
use mpsd_sys::cgroup::Cgroup;
use mpsd_sys::spawn::{Child, Identity, Spawn};
use mpsd_sys::testing::{STRANGER, alone, outlived_by_a_thread};
use std::fs::{Permissions, set_permissions};
use std::os::unix::fs::{PermissionsExt, chown};

fn recorded() -> (RealNode, Journal) {
    let node = node(Path::new("/run/mpsd"), Duration::from_secs(1));
    (node, journal())
}

fn limit() -> Deadline {
    Deadline::after_ms(20_000)
}

fn start(program: &Path, change: impl FnOnce(&mut Spawn)) -> Child {
    let mut sleeper = Spawn::new(program);
    sleeper.args = vec!["60".into()];
    change(&mut sleeper);
    sleeper.start(limit()).unwrap()
}

fn of_user(uid: u32) -> Option<Identity> {
    let (gid, groups) = (STRANGER, Vec::new());
    Some(Identity { uid, gid, groups })
}

fn made_cgroup(name: &str) -> Cgroup {
    let cgroup = Cgroup::create(&(Cgroup::passing() + name)).unwrap();
    cgroup.expect("this machine has no cgroup hierarchy to test with")
}

fn remove_cgroup(cgroup: &Cgroup) {
    let removed = cgroup.remove();
    Cgroup::remove_base(cgroup.path().parent().unwrap());
    removed.unwrap();
}

/// A pid that `mpsd` names is the user's word.
#[test]
fn only_a_process_of_the_jobs_user_in_the_jobs_directory_is_proved_to_be_its_server() {
    let (node, mut journal) = recorded();
    (journal.cgroup, journal.plan.record.uid) = (None, STRANGER);
    journal.programs = Some(Programs {
        server: file(Path::new("/bin/sleep")),
        ..Programs::default()
    });
    let is_proved = |uid: u32, pipe: &Path, role| {
        let mut sleeper = start(Path::new("/bin/sleep"), |spawn| {
            spawn.env = vec![(PIPE_DIRECTORY.into(), pipe.into())];
            spawn.identity = of_user(uid);
        });
        let proved = prove(&node, &journal, sleeper.pid(), role, &[]);
        sleeper.kill(limit());
        proved.is_some()
    };
    let own = journal.record().daemons[0].pipe.clone();
    assert!(is_proved(STRANGER, &own, Role::Server));
    let of_no_job = is_proved(STRANGER, Path::new("/tmp"), Role::Server);
    assert!(!of_no_job);
    assert!(!is_proved(STRANGER + 1, &own, Role::Server), "a stranger's");
    assert!(!is_proved(STRANGER, &own, Role::Control), "another file");
}

#[test]
fn a_process_that_only_the_jobs_cgroup_knows_is_one_of_the_jobs_own() {
    let cgroup = made_cgroup("");
    let (mut node, mut journal) = recorded();
    (journal.cgroup, journal.supervisor) = (Some(cgroup.path().to_owned()), None);
    let inside = Some(cgroup.directory().unwrap());
    let mut sleeper = start(Path::new("/bin/sleep"), |spawn| spawn.cgroup = inside);
    let own = node.known_members(&journal);
    sleeper.kill(limit());
    remove_cgroup(&cgroup);
    let own: Vec<_> = own.iter().map(|one| one.process).collect();
    assert_eq!(own, [sleeper.id().unwrap()]);
}

#[test]
fn a_file_with_the_vendors_name_counts_in_the_jobs_cgroup_if_it_is_roots() {
    let cgroup = made_cgroup("-names");
    let (mut node, mut journal) = recorded();
    journal.cgroup = Some(cgroup.path().to_owned());
    let place = tempfile::tempdir().unwrap();
    let (program, other) = (place.path().join(SERVER), place.path().join("other"));
    let mut found = Vec::new();
    for (owner, mode, is_inside, is_replaced) in [
        (0, 0o755, true, false),
        (0, 0o755, false, false),
        (STRANGER, 0o755, true, false),
        (0, 0o775, true, false),
        (0, 0o757, true, false),
        (0, 0o755, true, true),
    ] {
        std::fs::copy("/bin/sleep", &program).unwrap();
        chown(&program, Some(owner), None).unwrap();
        set_permissions(&program, Permissions::from_mode(mode)).unwrap();
        let inside = is_inside.then(|| cgroup.directory().unwrap());
        let mut sleeper = start(&program, |spawn| spawn.cgroup = inside);
        if is_replaced {
            std::fs::copy("/bin/sleep", &other).unwrap();
            std::fs::rename(&other, &program).unwrap();
        }
        let known = node.roles(&journal, &[sleeper.id().unwrap()]);
        found.push(known.first().map(|(_, role)| *role));
        sleeper.kill(limit());
        std::fs::remove_file(&program).unwrap();
    }
    remove_cgroup(&cgroup);
    assert_eq!(found, [Some(Role::Server), None, None, None, None, None]);
}

/// Otherwise root would not see a user who makes starts fail, and would blame the node.
#[test]
fn a_user_is_here_as_long_as_a_thread_of_theirs_lives() {
    let _alone = alone();
    let (mut node, mut journal) = recorded();
    (journal.cgroup, journal.plan.record.uid) = (None, STRANGER + 3);
    assert!(!node.user_is_here(&journal), "before");
    let mut child = outlived_by_a_thread(journal.uid());
    assert!(node.user_is_here(&journal), "its first thread has ended");
    let process = Process::find(child.pid()).unwrap();
    child.signal(Signal::SIGKILL);
    assert!(process.wait_gone(limit()));
    assert!(!node.user_is_here(&journal), "all have");
    child.wait(limit()).unwrap();
}

/// Each process says that it is of job 78.
#[test]
fn a_schedulers_cgroup_tells_the_job_of_a_process_and_its_own_word_only_without_one() {
    let cgroup = made_cgroup("-jobs");
    let (mut node, shared) = recorded();
    let (mut found, mut of_others) = (Vec::new(), Vec::new());
    let places =
        "job_77/step_0 sEKNK/step_0 pbs_jobs.service/jobid/77.srv torque/77.srv/R0.t0 none";
    for below in places.split(' ') {
        let path = cgroup.path().join(below);
        std::fs::create_dir_all(&path).unwrap();
        let mut sleeper = start(Path::new("/bin/sleep"), |spawn| {
            spawn.env = vec![(JOB.into(), "78.srv".into())];
            spawn.cgroup = Some(Cgroup::open(&path).unwrap().unwrap().directory().unwrap());
            spawn.identity = of_user(STRANGER + 2);
        });
        let pid = sleeper.pid();
        let by_sluid = |sluid: &str| (sluid == "sEKNK").then(|| JobId::parse("77").unwrap());
        let job = tasks(STRANGER + 2, &[pid], &by_sluid).remove(0).job;
        let of = |uid: u32, job: &str| {
            let mut journal = shared.clone();
            let record = &mut journal.plan.record;
            (record.uid, record.job) = (uid, JobId::parse(job).unwrap());
            let is_slurms = ["77", "77.0", "77.1"].contains(&job);
            record.sluid = is_slurms.then(|| "sEKNK".to_owned());
            journal
        };
        of_others.extend(node.is_of_job(&of(STRANGER, "77"), pid));
        let mut ends = |job: &str| {
            let member = of(STRANGER + 2, job);
            node.processes_of(&shared, &member).contains(&pid)
        };
        let ends = "77 77.srv 78.srv 77.0 77.1 7".split(' ').map(&mut ends);
        found.push((job.unwrap(), ends.collect::<Vec<_>>()));
        sleeper.kill(limit());
        for path in path.ancestors().take_while(|path| *path != cgroup.path()) {
            std::fs::remove_dir(path).unwrap();
        }
    }
    remove_cgroup(&cgroup);
    // Another user's process is of no job.
    assert_eq!(of_others, [false; 0]);
    let expected = [
        // A step's end ends no client of its job's other steps.
        ("77", [true, false, false, true, false, false]),
        ("77", [true, false, false, true, false, false]),
        ("77.srv", [false, true, false, false, false, false]),
        ("77.srv", [false, true, false, false, false, false]),
        ("78.srv", [false, false, true, false, false, false]),
    ];
    let expected = expected.map(|(job, ends)| (job.to_owned(), ends.to_vec()));
    assert_eq!(found, expected);
}

/// Frames above a call of the driver, and below it frames that differ from thread to thread.
const IN_DRIVER: &str = "[<0>] rwsem_down_write_slowpath+0x2a1/0x5f0\n\
    [<0>] os_acquire_rwlock_write+0x35/0x40 [nvidia]\n[<0>] rm_ioctl+0x1/0x0 [nvidia_uvm]\n";
const ELSEWHERE: &str = "[<0>] folio_wait_bit_common+0x13d/0x350\n";

#[test]
fn what_waits_neither_in_state_d_nor_in_the_driver_is_left_out_and_alike_threads_are_told_once() {
    let thread = |(state, stack): (char, &str)| Thread {
        state,
        stack: stack.to_owned(),
    };
    let of = |threads: &[(char, &str)]| {
        let threads = threads.iter().copied().map(thread).collect();
        by_user([(1000, threads)].into_iter())
    };
    assert_eq!(of(&[('S', ELSEWHERE), ('S', "")]), []);
    let held = of(&[('S', IN_DRIVER), ('D', ELSEWHERE), ('S', IN_DRIVER)]);
    let above: String = IN_DRIVER.split_inclusive('\n').take(2).collect();
    assert_eq!(held[0].threads, [('D', ""), ('S', &above)].map(thread));
}
