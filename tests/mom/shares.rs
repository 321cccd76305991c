//! Shares of a GPU that OpenPBS counts: `mpsctl pbs install --shares`, and jobs with `mps_shares`.

use crate::jobs::{bare, begins, checks, client, ends, is_refused, openpbs, root, says};
use serde_json::{Value, json};
use tests::double::Builder;
use tests::mom::cluster::{Cluster, Job, OTHER_USER, Product};

const PLACE: &str = "free:shared:group=mps_gpu";
const CONFIG: &str = "[defaults]\nmem = \"auto\"\n";

fn plain(config: &str) -> Cluster {
    let c = openpbs(&["nodea"], config);
    let host = "resources_available.ngpus = 2\nsharing = default_shared\n";
    c.serve("vnodes/nodea", host);
    c.serve("vnodes/nodez", "resources_available.ncpus = 8\n");
    c.open_to_users();
    c
}

fn cluster(config: &str) -> Cluster {
    let mut c = plain(config);
    c.nodes[0].sh("mpsctl pbs install --shares 16");
    c.openpbs_starts(0);
    c.mark();
    c
}

fn job(c: &mut Cluster, account: &str, of_vnodes: &'static str) -> Job {
    Job {
        of_vnodes,
        ..c.job(account).stock(PLACE).tasks(1)
    }
}

/// The user's MPS on the second GPU, which a client of the job must use. Returns its daemon.
fn shared(c: &mut Cluster, job: &Job, memory_mib: u64) -> Value {
    let record = client(c, job);
    let directory = format!("/run/mpsd/shared/{}-{}/", job.user.1, c.gpus[0].uuids()[1]);
    let pipe = record["pipe_directory"].as_str().unwrap_or_default();
    assert!(pipe.starts_with(&directory), "{record}");
    assert_eq!(record["memory_limit_mib"], memory_mib, "{record}");
    record["daemon_pid"].clone()
}

#[test]
fn a_users_jobs_share_one_mps_on_the_gpu_of_their_vnode_and_each_has_its_shares_of_the_memory() {
    let mut c = cluster(CONFIG);
    let [first, second, other] = ["mps_shares=4", "mps_shares=2", "mps_shares=8"]
        .map(|shares| job(&mut c, "MPS=true", shares).on(&[&[1]]));
    let other = other.of(OTHER_USER);
    for job in [&first, &second, &other] {
        begins(&mut c, job);
    }
    let daemon = shared(&mut c, &first, 143_771 / 4);
    assert_eq!(shared(&mut c, &second, 143_771 / 8), daemon);
    assert_ne!(shared(&mut c, &other, 143_771 / 2), daemon);
    // A mom that starts again finds the same vnodes.
    let before = c.served("vnodes/nodea");
    c.openpbs_starts(0);
    assert_eq!(c.served("vnodes/nodea"), before);
    c.end(&first, 271);
    begins(&mut c, &first);
    assert_eq!(shared(&mut c, &first, 143_771 / 4), daemon);
    c.end(&first, 0);
    assert_eq!(shared(&mut c, &second, 143_771 / 8), daemon);
    assert_eq!(c.gpus[0].modes(), ["default", "default"]);
    c.end(&other, 0);
    ends(&mut c, &second);
}

#[test]
fn a_job_with_shares_and_without_mps_has_its_gpu_alone() {
    let mut c = cluster("");
    let uuid = c.gpus[0].uuids()[1].clone();
    for (account, of_vnodes, visible) in [
        ("", "mps_shares=4", json!(uuid)),
        ("MPS=off", "mps_shares=4", json!(uuid)),
        ("", "ngpus=1", Value::Null),
    ] {
        let job = job(&mut c, account, of_vnodes).on(&[&[1]]);
        begins(&mut c, &job);
        let record = client(&mut c, &job);
        bare(&record);
        assert_eq!(record["visible"], visible, "{account} {of_vnodes}");
        assert!(c.gpus[0].daemons().is_empty());
        ends(&mut c, &job);
    }
}

/// `qrun -H` brings a job to any vnode, so the compute mode stays.
#[test]
fn a_whole_gpu_is_that_of_its_vnode() {
    let mut c = cluster("");
    let job = job(&mut c, "MPS=true", "ngpus=1").on(&[&[1]]);
    begins(&mut c, &job);
    let record = client(&mut c, &job);
    let pipe = format!("/run/mpsd/jobs/{}/pipe", job.id);
    assert_eq!(record["pipe_directory"], json!(pipe), "{record}");
    assert_eq!(record["uuids"], json!([c.gpus[0].uuids()[1]]));
    assert_eq!(c.gpus[0].modes(), ["default", "default"]);
    ends(&mut c, &job);
    // Without shares nothing names it.
    c.nodes[0].sh("sed -i 's/^SHARES = .*/SHARES = 0/' /var/lib/mpsd/mpsd.py; mpsctl pbs install");
    says(&is_refused(&mut c, &job), &["a number of GPUs"]);
    c.end(&job, -1);
}

#[test]
fn qsub_keeps_the_shares_of_a_job_on_one_gpu_beside_others() {
    let mut c = cluster("");
    for (select, place, expected) in [
        ("1:ncpus=2:mps_shares=4", "", PLACE),
        ("ncpus=2:mps_shares=16", "pack", "pack:shared:group=mps_gpu"),
        ("1:mps_shares=4", "excl", "excl:group=mps_gpu"),
        (
            "1:mps_shares=4",
            "free:group=rack",
            "free:group=rack:shared",
        ),
        ("2:mps_shares=4", "scatter", "scatter:shared"),
        ("1:mps_shares=4+1:mps_shares=4", "scatter", "scatter:shared"),
        ("1:ncpus=2:ngpus=1", "free", "free"),
        ("1:ncpus=2", "free", "free"),
    ] {
        let job = Job {
            select: select.into(),
            ..c.job("").stock(place)
        };
        let hooked = c.hook(&job, 0, "queuejob");
        assert!(hooked.accepted(), "{select}: {}", hooked.message);
        let found = hooked.resources["place"].as_deref();
        assert_eq!(found, Some(expected), "{select} {place}");
        assert_eq!(hooked.log, [], "{select}");
    }
    let job = Job {
        select: "1:mps_shares=4+2:mps_shares=17".into(),
        ..c.job("")
    };
    let why = "mps_shares=17: a GPU has 16 shares; allowed: 1 to 16 in a chunk, or ngpus";
    says(&c.hook(&job, 0, "queuejob").message, &[why]);
    // Only '--queuejob' moves our words, and is kept.
    for (option, account) in [
        ("", "MPS=on"),
        ("--queuejob", ""),
        ("", ""),
        ("--queuejob=off", "MPS=on"),
        ("", "MPS=on"),
    ] {
        c.nodes[0].sh(&format!("mpsctl pbs install {option}"));
        let job = Job {
            select: "1:mps_shares=4".into(),
            ..c.job("MPS=on").stock("free")
        };
        let hooked = c.hook(&job, 0, "queuejob");
        assert_eq!(hooked.account.unwrap_or_default(), account, "{option}");
        let place = hooked.resources["place"].as_deref();
        assert_eq!(place, Some(PLACE), "{option}");
    }
}

fn nodes(c: &Cluster) -> Vec<(String, String)> {
    let files = std::fs::read_dir(c.server().join("vnodes")).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    let all = names.map(|name| {
        let text = c.served(&format!("vnodes/{name}"));
        let mut lines: Vec<&str> = text.lines().collect();
        lines.sort_unstable();
        (name, lines.join("\n"))
    });
    let mut all: Vec<_> = all.collect();
    all.sort();
    all
}

#[test]
fn uninstall_takes_back_what_install_and_the_moms_made_of_the_gpus() {
    let mut c = plain("");
    let before = nodes(&c);
    let resources = "resources: \"ncpus, mem, ngpus, mps_shares\"";
    let words = ["created resource 'mps_shares'", "SIGHUP", resources];
    root(&mut c, 0, "mpsctl pbs install --shares 16", &words);
    assert_eq!(c.served("resources/mps_shares"), "type=long,flag=nh");
    assert_eq!(c.served("resources/mps_gpu"), "type=string_array,flag=h");
    assert_eq!(nodes(&c), before, "until the mom starts");
    let [a, b] = [0, 1].map(|at| c.gpus[0].uuids()[at].clone());
    for _ in 0..2 {
        c.openpbs_starts(0);
        let after = nodes(&c);
        let vnode = |name: &str, resources: &str, sharing: &str| {
            let lines = resources.split(", ");
            let lines = lines.map(|line| format!("resources_available.{line}\n"));
            let text = lines.collect::<String>() + "sharing = " + sharing;
            (name.to_owned(), text)
        };
        let of_gpu = |uuid: &str| {
            let resources =
                format!("mem = 0kb, mps_gpu = {uuid}, mps_shares = 16, ncpus = 0, ngpus = 1");
            vnode(&format!("nodea[{uuid}]"), &resources, "default_excl")
        };
        let of_host = format!("mps_gpu = {a},{b}, ngpus = 0");
        let host = vnode("nodea", &of_host, "default_shared");
        assert_eq!(after, [host, of_gpu(&a), of_gpu(&b), before[1].clone()]);
        // A later install, as after an upgrade, keeps the shares and what it knows.
        let text = c.nodes[0].sh("mpsctl pbs install");
        assert!(!text.contains("wrote '"), "{text}");
    }
    std::fs::create_dir(c.server().join("busy")).unwrap();
    c.serve(&format!("busy/nodea[{a}]"), "a job");
    root(
        &mut c,
        1,
        "mpsctl pbs uninstall",
        &[&format!("delete node nodea[{a}]")],
    );
    std::fs::remove_dir_all(c.server().join("busy")).unwrap();
    c.serve("resources/mps_shares", "type=long,flag=nh");
    c.nodes[0].sh("mpsctl pbs uninstall");
    assert_eq!(nodes(&c), before);
    let resources = ["mps_shares", "mps_gpu"].map(|name| c.served(&format!("resources/{name}")));
    assert_eq!(resources, ["", ""]);
    assert_eq!(c.nodes[0].read("/var/lib/mpsd/pbs-ngpus"), None);
    // A host without ngpus has none afterwards.
    c.serve("vnodes/nodea", "sharing = default_shared\n");
    let before = nodes(&c);
    c.nodes[0].sh("mpsctl pbs install --shares 4");
    c.openpbs_starts(0);
    assert_ne!(nodes(&c), before);
    c.nodes[0].sh("mpsctl pbs uninstall");
    assert_eq!(nodes(&c), before);
}

#[test]
fn check_tells_what_the_server_and_the_scheduler_lack() {
    let mut c = plain("");
    c.nodes[0].sh("mpsctl pbs install --shares 16");
    let words = ["FAIL  the server has no vnode of GPU", "SIGHUP"];
    checks(&mut c, 2, &words);
    c.openpbs_starts(0);
    let ok = "OK    each of 2 GPUs is a vnode with 16 mps_shares";
    checks(&mut c, 0, &[ok]);
    let host = c.served("vnodes/nodea");
    c.serve("vnodes/nodea", &host.replace("ngpus = 0", "ngpus = 2"));
    let twice = "FAIL  the server counts this node's GPUs twice: qmgr -c 'set node nodea resources_available.ngpus = 0'";
    checks(&mut c, 2, &[twice]);
    c.serve("vnodes/nodea", &host);
    let sched_config = |c: &mut Cluster, resources: &str| {
        let directory = "/var/spool/pbs/sched_priv";
        c.nodes[0].sh(&format!(
            "mkdir -p {directory}; echo 'resources: \"{resources}\"' >{directory}/sched_config"
        ));
    };
    sched_config(&mut c, "ncpus, ngpus");
    let line = "FAIL  the scheduler counts mps_shares once 'resources:'";
    checks(&mut c, 2, &[ok, line]);
    sched_config(&mut c, "ncpus, ngpus, mps_shares");
    checks(&mut c, 0, &[ok]);
    // One of the vnodes has another number, or is gone.
    let uuid = c.gpus[0].uuids()[1].clone();
    let vnode = format!("vnodes/nodea[{uuid}]");
    c.serve(&vnode, &c.served(&vnode).replace("= 16", "= 8"));
    let line = format!("FAIL  the server has no vnode of GPU {uuid}");
    checks(&mut c, 2, &[&line]);
    let text = c.served(&vnode).replace("= 8", "= 16");
    c.serve(&vnode, &text.replace("mps_gpu", "other"));
    checks(&mut c, 2, &[&line]);
    c.serve(&vnode, &(text + "state = state-unknown,Stale\n"));
    checks(&mut c, 2, &[&line]);
}

/// Its vnodes would have no mps_gpu, and the scheduler would take a job's shares from several.
#[test]
fn a_mom_that_does_not_know_the_resources_yet_makes_no_vnode() {
    let mut c = plain("");
    c.nodes[0].sh("mpsctl pbs install --shares 16");
    std::fs::remove_file(c.server().join("resources/mps_gpu")).unwrap();
    assert_eq!(c.openpbs_starts(0).vnodes.len(), 1);
}

#[test]
fn a_gpu_in_mig_mode_has_no_shares() {
    let divided = |builder: Builder| builder.fast().divided(0, 2);
    let mut c = Cluster::with(Product::OpenPbs, &["nodea"], divided, "");
    c.nodes[0].sh("mpsctl pbs install --shares 16");
    let vnodes = c.openpbs_starts(0).vnodes;
    let names: Vec<&str> = vnodes.keys().map(String::as_str).collect();
    let second = format!("nodea[{}]", c.gpus[0].uuids()[1]);
    assert_eq!(names, ["nodea", &second]);
}

/// pbs_cgroups gives GPUs out by itself, whatever vnode a job has.
#[test]
fn gpus_that_pbs_cgroups_gives_out_have_no_shares() {
    let mut c = plain("");
    c.nodes[0].sh("mpsctl pbs install --shares 16");
    let copies = "/var/spool/pbs/mom_priv/hooks/pbs_cgroups";
    c.nodes[0].write(&format!("{copies}.HK"), "alarm=90\n", 0o600);
    c.nodes[0].write(&format!("{copies}.PY"), "", 0o600);
    for (enabled, vnodes) in [(true, 1), (false, 3)] {
        let config = format!("{{\"cgroup\": {{\"devices\": {{\"enabled\": {enabled}}}}}}}");
        c.nodes[0].write(&format!("{copies}.CF"), &config, 0o600);
        assert_eq!(c.openpbs_starts(0).vnodes.len(), vnodes, "{enabled}");
        let (_, text) = c.nodes[0].try_sh("mpsctl pbs check");
        let is_told = text.contains("WARN  no GPU here has mps_shares");
        assert_eq!(is_told, enabled, "{text}");
    }
}
