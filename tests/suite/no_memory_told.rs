//! A GPU whose memory is the machine's (GB10, Thor): NVML answers "not supported" when it is asked how much there is.

use tests::place::{Place, fast};
use tests::stage::Ran;

/// A node with two of them.
fn place(extra: &str) -> Place {
    let node = fast(2).describe(|node| {
        for gpu in &mut node.gpu {
            "NVIDIA GB10".clone_into(&mut gpu.name);
            gpu.memory_told = false;
        }
    });
    Place::new(node, extra)
}

fn mpsctl(place: &Place, args: &[&str]) -> Ran {
    place.stage.run("mpsctl", args, &[])
}

#[test]
fn a_job_with_a_size_as_its_limit_has_its_mps_and_the_node_is_well() {
    let place = place("replicas = 4\n");
    let ran = place.torque("500.srv", "MPS=true,MPS_THREADS=50,MPS_MEM=4G", "0,1");
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let client = place.attached("500.srv", &["--hold", "30"], &[]);
    let status = mpsctl(&place, &["status", "--json"]);
    let told: serde_json::Value = serde_json::from_str(&status.out).expect("status");
    let job = &told["jobs"][0];
    assert_eq!(job["gpus"][0]["clients"][0]["pid"], client.0.id(), "{told}");
    let limits = job["daemons"][0]["limits"].as_array().expect("limits");
    assert!(
        limits.len() == 3 && limits.iter().all(|limit| limit["holds"] == true),
        "{told}"
    );
    drop(client);
    place.assert_ends_clean("500.srv", "a GPU without a size");
    let doctor = mpsctl(&place, &["doctor", "--node", "n1"]);
    for line in ["OK    NVML answers\n", "2 x NVIDIA GB10\n"] {
        assert!(doctor.out.contains(line), "{line}: {doctor:?}");
    }
    let advertise = mpsctl(&place, &["advertise", "slurm", "--node", "n1"]);
    assert_eq!(advertise.code, Some(0), "{advertise:?}");
}

#[test]
fn a_share_of_what_nobody_knows_is_the_users_refusal_and_never_the_nodes_fault() {
    let place = place("");
    let why = "NVML does not tell how much memory GPU 0 'NVIDIA GB10' has; allowed: ";
    for (account, words) in [
        ("MPS=true,MPS_MEM=25%", "MPS_MEM=25%: "),
        ("MPS=true,MPS_MEM=0=25%", "MPS_MEM=0=25%: "),
        ("MPS=true,MPS_REPLICAS=4", "MPS_REPLICAS=4: "),
    ] {
        let ran = place.torque("501.srv", account, "0");
        assert_eq!(ran.code, Some(1), "{ran:?}");
        assert!(ran.err.contains(&format!("{words}{why}")), "{ran:?}");
        place.assert_not_drained(account);
    }
}
