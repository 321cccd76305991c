//! A GPU that uses the machine's memory (GB10, Thor): NVML answers "not supported" when it is asked
//! for the amount.

use tests::node_bed::{NodeBed, fast};

#[test]
fn a_job_with_a_size_as_its_limit_has_its_mps_and_the_node_is_well() {
    let node = fast(2).describe(|node| {
        for gpu in &mut node.gpu {
            "NVIDIA GB10".clone_into(&mut gpu.name);
            gpu.memory_told = false;
        }
    });
    let bed = NodeBed::new(node, "replicas = 4\n");
    bed.begin("500.srv", "MPS=true,MPS_THREADS=50,MPS_MEM=4G", "0,1");
    let client = bed.attached("500.srv", &["--hold", "30"], &[]);
    let told = bed.mpsctl(&["status", "--json"]).json();
    let job = &told["jobs"][0];
    assert_eq!(job["gpus"][0]["clients"][0]["pid"], client.pid(), "{told}");
    let limits = job["daemons"][0]["limits"].as_array().expect("limits");
    let holds: Vec<bool> = limits.iter().map(|limit| limit["holds"] == true).collect();
    assert_eq!(holds, [true; 3], "{told}");
    drop(client);
    bed.assert_ends_clean("500.srv", "a GPU without a size");
    let doctor = bed.mpsctl(&["doctor", "--node", "n1"]);
    doctor
        .prints("OK    NVML answers\n")
        .prints("2 x NVIDIA GB10\n");
    bed.mpsctl(&["advertise", "slurm", "--node", "n1"]).ok();
}
