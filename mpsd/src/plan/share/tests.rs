use super::*;
use mpsd_core::ComputeMode;
use mpsd_core::config::Config;

fn gpu(index: u32, memory_mib: impl Into<Option<u64>>) -> Gpu {
    Gpu {
        index,
        uuid: GpuUuid::parse(&format!("GPU-0000000{index}")).unwrap(),
        name: "NVIDIA X".to_owned(),
        memory_mib: memory_mib.into(),
        mode: ComputeMode::Default,
        mig: mpsd_core::gpu::Mig::Off,
        capability: (9, 0),
        minor: None,
        cpus: None,
    }
}

/// The limits that an account comes to: threads, MiB of each GPU, threads by rank.
fn limits(
    config: &str,
    account: &str,
    memory: &[impl Into<Option<u64>> + Copy],
    tasks: Option<u32>,
) -> Result<String, String> {
    let settings = Config::parse(config).unwrap().for_node("n1", &[]).unwrap();
    let gpus: Vec<Gpu> = (0..)
        .zip(memory)
        .map(|(index, memory)| gpu(index, *memory))
        .collect();
    let asked = Request::from_account(account).unwrap().unwrap();
    let wanted = Wanted {
        asked: &asked,
        wording: Wording::Account,
        request: &settings.with_defaults(&asked),
        ceilings: &settings.ceilings,
        gpus: &gpus.iter().collect::<Vec<_>>(),
        tasks,
    };
    let share = wanted.share().map_err(|refusal| refusal.to_string())?;
    let threads = share
        .threads
        .map_or("all".to_owned(), |percent| percent.to_string());
    let memory: Vec<u64> = share.memory.iter().map(|(_, mib)| *mib).collect();
    let ranks: Vec<String> = share.rank_threads.iter().map(ToString::to_string).collect();
    Ok(format!("{threads} {memory:?} {}", ranks.join(":"))
        .trim_end()
        .to_owned())
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
        let refusal = limits(config, account, &[81_920, 81_920], None).unwrap_err();
        assert!(refusal.starts_with(message), "{refusal}");
    }
    for account in [
        "MPS=on,MPS_THREADS=50,MPS_MEM=10G",
        "MPS=on,MPS_REPLICAS=8",
        "MPS=on,MPS_MEM=12.5%,MPS_THREADS=1",
    ] {
        assert!(
            limits(config, account, &[81_920, 81_920], None).is_ok(),
            "{account}"
        );
    }
}

#[test]
fn what_is_no_number_of_the_user_is_lowered_to_the_ceiling() {
    let ceilings = "[ceilings]\nthreads = 50\nmem = \"10G\"\n";
    let with = |defaults: &str, account, tasks| {
        limits(&format!("{ceilings}{defaults}"), account, &[81_920, 4_096], tasks).unwrap()
    };
    // A GPU with less than the ceiling gives what it has.
    assert_eq!(with("", "MPS=on", None), "50 [10240, 4096]");
    assert_eq!(
        with("[defaults]\nthreads = \"20:80\"\nmem = \"99%\"", "MPS=on", None),
        "50 [10240, 4055] 20:50"
    );
    assert_eq!(
        with("[defaults]\nmem = \"99G\"", "MPS=on", None),
        "50 [10240, 4096]"
    );
    let auto = "MPS=on,MPS_THREADS=auto,MPS_MEM=auto";
    assert_eq!(with("", auto, Some(16)), "12.5 [5120, 256]");
    assert_eq!(with("", auto, Some(2)), "50 [10240, 2048]");
    assert_eq!(with("", "MPS=on,MPS_MEM=0=2G", None), "50 [2048, 4096]");
}

#[test]
fn a_ceiling_below_its_share_divides_a_gpu_by_more() {
    let gpus = [gpu(0, 81_920), gpu(1, 40_960)];
    let parts = |memory: [u64; 2]| {
        let memory = gpus.iter().zip(memory).map(|(gpu, mib)| (gpu.uuid.clone(), mib));
        let share = Share {
            threads: None,
            memory: memory.collect(),
            priority: None,
            rank_threads: Vec::new(),
            rank_memory: Vec::new(),
        };
        share.divides_memory_by(&gpus.iter().collect::<Vec<_>>())
    };
    assert_eq!(parts([40_960, 20_480]), Some(2), "the share of two tasks");
    // Under a ceiling of 10G: four tasks on one of them may keep it.
    assert_eq!(parts([10_240, 10_240]), Some(4));
}

/// GPU 0 tells no size, GPU 1 does.
#[test]
fn where_no_size_is_told_a_size_is_a_limit_and_a_share_is_refused() {
    let of = |config: &str, account: &str| limits(config, account, &[None, Some(81_920)], Some(4));
    let all = |memory: &[u64]| Ok(format!("all {memory:?}"));
    let size = "[ceilings]\nmem = \"10G\"\n";
    assert_eq!(of("", "MPS=on"), all(&[]));
    assert_eq!(of("", "MPS=on,MPS_MEM=4G"), all(&[4096, 4096]));
    assert_eq!(of("", "MPS=on,MPS_MEM=2G:4G"), all(&[4096, 4096]));
    assert_eq!(of("", "MPS=on,MPS_MEM=1=25%"), all(&[20_480]));
    assert_eq!(of(size, "MPS=on"), all(&[10_240, 10_240]));
    assert_eq!(of(size, "MPS=on,MPS_MEM=1=2G"), all(&[2048, 10_240]));
    let why = "NVML does not tell how much memory GPU 0 'NVIDIA X' has; allowed:";
    for (config, account, what) in [
        ("", "MPS=on,MPS_MEM=25%", "MPS_MEM=25%"),
        ("", "MPS=on,MPS_MEM=auto", "MPS_MEM=auto"),
        ("", "MPS=on,MPS_MEM=0=25%", "MPS_MEM=0=25%"),
        ("", "MPS=on,MPS_MEM=4G:25%", "MPS_MEM=4G:25%"),
        ("", "MPS=on,MPS_REPLICAS=4", "MPS_REPLICAS=4"),
        ("[defaults]\nmem = \"25%\"\n", "MPS=on", "MPS_MEM=25%"),
        (size, "MPS=on,MPS_MEM=25%", "MPS_MEM=25%"),
        (
            "[ceilings]\nmem = \"50%\"\n",
            "MPS=on",
            "this site's memory ceiling of 50%",
        ),
        (
            "[ceilings]\nmem = \"50%\"\n",
            "MPS=on,MPS_MEM=4G",
            "this site's memory ceiling of 50%",
        ),
        (
            "[ceilings]\nmem = \"50%\"\n",
            "MPS=on,MPS_MEM=1=2G",
            "this site's memory ceiling of 50%",
        ),
    ] {
        let refusal = of(config, account).unwrap_err();
        assert!(refusal.starts_with(&format!("{what}: {why}")), "{refusal}");
    }
}
