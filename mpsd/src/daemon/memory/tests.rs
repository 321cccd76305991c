use super::*;

fn watch(policy: MemoryOverLimit, limit: Option<u64>) -> MemoryWatch {
    let gpu = GpuUuid::parse("GPU-01").unwrap();
    MemoryWatch {
        gpus: vec![gpu.clone()],
        next: Instant::now(),
        policy,
        uid: 0,
        library: String::new(),
        limits: limit.map(|l| (gpu, l)).into_iter().collect(),
        next_limits: None,
        nvml: None,
        told: BTreeSet::new(),
        active: false,
    }
}

#[test]
fn only_what_no_context_explains_is_over() {
    let watch = watch(MemoryOverLimit::Log, Some(4096));
    let gpu = GpuUuid::parse("GPU-01").unwrap();
    let clients = [
        (1, gpu.clone(), 4096),
        (2, gpu.clone(), 4096 + OVERHEAD_MIB),
        (3, gpu.clone(), 9000),
    ];
    assert_eq!(watch.over(&clients), [(3, gpu, 9000, 4096)]);
}

#[test]
fn it_sleeps_without_a_client_and_where_it_is_switched_off() {
    let mut asleep = watch(MemoryOverLimit::Ignore, Some(1));
    asleep.wake();
    assert_eq!(asleep.period(), None);
    for limit in [Some(1), None] {
        let mut awake = watch(MemoryOverLimit::Log, limit);
        assert_eq!(awake.period(), None);
        awake.wake();
        assert!(awake.period().is_some_and(|period| period <= PERIOD));
    }
}
