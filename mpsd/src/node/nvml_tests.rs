use super::*;

fn process(pid: u32, memory: UsedGpuMemory) -> ProcessInfo {
    ProcessInfo {
        pid,
        used_gpu_memory: memory,
        gpu_instance_id: None,
        compute_instance_id: None,
    }
}

#[test]
fn a_client_in_both_lists_is_one_process() {
    let server = process(7, UsedGpuMemory::Used(66 << 20));
    let client = process(8, UsedGpuMemory::Used(3 << 30));
    let untold = process(9, UsedGpuMemory::Unavailable);
    let list = merged(&[server, client.clone()], &[client, untold]);
    let list = list.iter();
    let list = list.map(|one| (one.pid, one.memory, one.mps_client));
    let expected = [
        (7, Some(66 << 20), false),
        (8, Some(3 << 30), true),
        (9, None, true),
    ];
    assert_eq!(list.collect::<Vec<_>>(), expected);
}

#[test]
fn what_an_error_proves() {
    let about = |cause| {
        let failed = Err::<(), _>(cause).of("nvmlDeviceGetComputeMode", "GPU 3");
        failed.unwrap_err()
    };
    assert_eq!(about(Cause::GpuLost).evidence, Some(Evidence::GpuLost));
    assert_eq!(about(Cause::DriverNotLoaded).evidence, Some(Evidence::Nvml));
    let message = about(Cause::GpuLost).to_string();
    let begin = "GPU 3: nvmlDeviceGetComputeMode: device fell off the bus";
    assert!(message.starts_with(begin), "{message}");
    // Something ran out, was waited for, or is unknown.
    for cause in [
        Cause::InUse,
        Cause::InsufficientMemory,
        Cause::Timeout,
        Cause::OperatingSystem,
        Cause::LibraryNotFound,
        Cause::NoData,
        Cause::Unknown,
        Cause::UnexpectedVariant(27),
    ] {
        let error = about(cause);
        assert_eq!(error.evidence, None, "{error}");
    }
    let scarce = about(Cause::UnexpectedVariant(INSUFFICIENT_RESOURCES));
    assert_eq!(scarce.evidence, None);
    assert!(scarce.why.ends_with("insufficient resources"), "{scarce}");
}

#[test]
fn a_library_that_is_not_there_or_not_roots_is_named() {
    for name in [
        "/nonexistent/libnvidia-ml.so.1",
        "libnvidia-ml-that-is-not-there.so.1",
    ] {
        let missing = Nvml::load(name).unwrap_err();
        assert_eq!(missing.evidence, Some(Evidence::VendorProgram));
        let text = missing.to_string();
        assert!(text.contains(name) && !text.contains('\n'), "{text}");
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("libnvidia-ml.so.1");
    std::fs::write(&path, "not a library").unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o666);
    std::fs::set_permissions(&path, mode).unwrap();
    let refused = Nvml::load(path.to_str().unwrap()).unwrap_err().to_string();
    assert!(refused.contains("libnvidia-ml.so.1' "), "{refused}");
}

/// The real loader, and a library of 1 PiB: there is no address space for it.
#[test]
fn a_library_that_there_is_no_memory_for_proves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("libnvidia-ml.so.1");
    let mut elf = [b"\x7fELF\x02\x01\x01".as_slice(), &[0; 9]].concat();
    // Numbers of so many bytes.
    let mut add = |width: usize, numbers: &[u64]| {
        let bytes = numbers
            .iter()
            .flat_map(|n| n.to_le_bytes().into_iter().take(width));
        elf.extend(bytes);
    };
    add(
        2,
        &[
            3,
            if cfg!(target_arch = "aarch64") {
                183
            } else {
                62
            },
        ],
    );
    add(4, &[1]);
    // Entry, program headers, section headers.
    add(8, &[0, 64, 0]);
    add(4, &[0]);
    add(2, &[64, 56, 2, 64, 0, 0]);
    // A segment that is loaded, and the dynamic one: type and flags, then place, address twice,
    // sizes, alignment.
    for (kind, at, in_memory) in [(1, 0, 1 << 50), (2, 2048, 64)] {
        add(4, &[kind, 6]);
        add(8, &[at, at, at, 64, in_memory, 4096]);
    }
    elf.resize(4096, 0);
    std::fs::write(&path, elf).unwrap();
    let error = Nvml::load(path.to_str().unwrap()).unwrap_err();
    assert_eq!(error.evidence, None, "{error}");
    let why = error.to_string();
    assert!(why.contains("failed to map segment"), "{why}");
}

#[test]
fn a_gpu_is_found_on_the_bus_by_the_drivers_own_files() {
    let gpus = tempfile::tempdir().unwrap();
    // Recorded of driver 580.159.04.
    let information = |uuid: &str| {
        format!(
            "Model: \t\t NVIDIA H200\nIRQ:   \t\t 41\nGPU UUID: \t {uuid}\nVideo BIOS: \t 96.00.a5.00.1a\nBus Type: \t PCIe\n\
             Bus Location: \t 0000:00:06.0\nDevice Minor: \t 0\n"
        )
    };
    let first = "GPU-3ea58d0c-f30d-995c-4fef-0ba272ecfd56";
    let second = "GPU-187287f1-1987-72d3-4970-63dd039c1b15";
    // The driver has not initialised the third.
    let third = "GPU-????????-????-????-????-????????????";
    for (place, uuid) in (6..).zip([first, second, third]) {
        let place = gpus.path().join(format!("0000:00:0{place}.0"));
        std::fs::create_dir(&place).unwrap();
        std::fs::write(place.join("information"), information(uuid)).unwrap();
    }
    let place = |uuid: &str| place_of(&GpuUuid::parse(uuid).unwrap(), gpus.path());
    assert_eq!(place(first).as_deref(), Some("0000:00:06.0"));
    assert_eq!(place(second).as_deref(), Some("0000:00:07.0"));
    assert_eq!(place("GPU-187287f1-1987-72d3-4970-63dd039c1b16"), None);
    let none = gpus.path().join("none");
    assert_eq!(place_of(&GpuUuid::parse(first).unwrap(), &none), None);
}
