use super::*;
use crate::config::Config;
use crate::gpu::{ComputeMode, GpuUuid};

fn settings(text: &str) -> Settings {
    Config::parse(text).unwrap().for_node("n1", &[]).unwrap()
}

fn gpu(index: u32, memory_mib: u64) -> Gpu {
    Gpu {
        index,
        uuid: GpuUuid::parse(&format!("GPU-0000000{index}")).unwrap(),
        name: "NVIDIA X".to_owned(),
        memory_mib,
        mode: ComputeMode::Default,
        mig: false,
        capability: (9, 0),
        minor: None,
    }
}

fn resolved(config: &str, account: &str, memory: &[u64], tasks: Option<u32>) -> Result<String, String> {
    let gpus: Vec<Gpu> = memory
        .iter()
        .zip(0..)
        .map(|(memory, index)| gpu(index, *memory))
        .collect();
    let gpus: Vec<&Gpu> = gpus.iter().collect();
    let request = Request::from_account(account).unwrap().unwrap();
    let asker = Asker {
        gpus: &gpus,
        tasks,
        wording: Wording::Account,
    };
    let resolved = settings(config).resolve(&request, &asker);
    resolved
        .map(|request| request.to_string())
        .map_err(|refusal| refusal.to_string())
}

#[test]
fn the_job_comes_before_the_defaults() {
    let config = "[defaults]\nthreads = 25\nmem = \"4G\"\npriority = \"below-normal\"\nverify = true";
    let with = |account| resolved(config, account, &[80_000], None).unwrap();
    let all = "MPS=per-node,MPS_THREADS=25,MPS_MEM=4G,MPS_PRIORITY=below-normal,MPS_VERIFY=on";
    assert_eq!(with("MPS=on"), all);
    assert_eq!(
        with("MPS=on,MPS_MEM=8G,MPS_VERIFY=no,MPS_PRIORITY=normal"),
        "MPS=per-node,MPS_THREADS=25,MPS_MEM=8G,MPS_PRIORITY=normal,MPS_VERIFY=off"
    );
    assert_eq!(
        with("MPS=on,MPS_REPLICAS=2"),
        "MPS=per-node,MPS_REPLICAS=2,MPS_PRIORITY=below-normal,MPS_VERIFY=on"
    );
    assert_eq!(with("MPS=off"), "MPS=off");
}

#[test]
fn a_number_above_the_ceiling_is_refused() {
    let config = "[ceilings]\nthreads = 50\nmem = \"10G\"";
    let cases = [
        (
            "MPS=on,MPS_THREADS=80",
            "MPS_THREADS=80: the thread percentage is above this site's ceiling of 50; allowed: 1 to 50",
        ),
        (
            "MPS=on,MPS_THREADS=30:50.1",
            "MPS_THREADS=30:50.1: the thread percentage is above",
        ),
        (
            "MPS=off,MPS_THREADS=80",
            "MPS_THREADS=80: the thread percentage is above",
        ),
        (
            "MPS=on,MPS_REPLICAS=1",
            "MPS_REPLICAS=1: the thread percentage is above this site's ceiling of 50; allowed: at least 2 replicas",
        ),
        (
            "MPS=on,MPS_REPLICAS=4",
            "MPS_REPLICAS=4: the memory limit is above this site's ceiling of 10G; allowed: more replicas",
        ),
        (
            "MPS=on,MPS_MEM=11G",
            "MPS_MEM=11G: the memory limit is above this site's ceiling of 10G; allowed: at most 10G",
        ),
        (
            "MPS=on,MPS_MEM=2G:11G",
            "MPS_MEM=2G:11G: the memory limit is above",
        ),
        ("MPS=on,MPS_MEM=1=11G", "MPS_MEM=1=11G: the memory limit is above"),
        ("MPS=on,MPS_MEM=13%", "MPS_MEM=13%: the memory limit is above"),
    ];
    for (account, message) in cases {
        let refusal = resolved(config, account, &[81_920, 81_920], None).unwrap_err();
        assert!(refusal.starts_with(message), "{refusal}");
    }
    for account in [
        "MPS=on,MPS_THREADS=50,MPS_MEM=10G",
        "MPS=on,MPS_REPLICAS=8",
        "MPS=on,MPS_MEM=12.5%,MPS_THREADS=1",
    ] {
        assert!(
            resolved(config, account, &[81_920, 81_920], None).is_ok(),
            "{account}"
        );
    }
    // A share of a GPU not known yet is compared on the node.
    assert!(resolved(config, "MPS=on,MPS_MEM=13%", &[], None).is_ok());
    assert!(resolved(config, "MPS=on,MPS_MEM=11G", &[], None).is_err());
}

#[test]
fn what_is_no_number_of_the_user_is_lowered_to_the_ceiling() {
    let ceilings = "[ceilings]\nthreads = 50\nmem = \"10G\"\n";
    let with = |defaults: &str, account, tasks| {
        resolved(&format!("{ceilings}{defaults}"), account, &[81_920, 4_096], tasks).unwrap()
    };
    assert_eq!(
        with("", "MPS=on", None),
        "MPS=per-node,MPS_THREADS=50,MPS_MEM=10G"
    );
    assert_eq!(
        with("[defaults]\nthreads = \"20:80\"\nmem = \"99%\"", "MPS=on", None),
        "MPS=per-node,MPS_THREADS=20:50,MPS_MEM=10G"
    );
    assert_eq!(
        with("", "MPS=on,MPS_THREADS=auto,MPS_MEM=auto", Some(16)),
        "MPS=per-node,MPS_THREADS=auto,MPS_MEM=auto"
    );
    assert_eq!(
        with("", "MPS=on,MPS_THREADS=auto,MPS_MEM=auto", Some(2)),
        "MPS=per-node,MPS_THREADS=50,MPS_MEM=GPU-00000000=10G:GPU-00000001=2G"
    );
    assert_eq!(
        with("", "MPS=on,MPS_MEM=0=2G", None),
        "MPS=per-node,MPS_THREADS=50,MPS_MEM=0=2G:GPU-00000001=10G"
    );
    assert_eq!(settings(ceilings).ceilings.threads, Percent::from_tenths(500));
    assert_eq!(
        settings("defaults.threads = 12.5").defaults.threads,
        Some(Threads::Uniform(Percent::from_tenths(125).unwrap()))
    );
}
