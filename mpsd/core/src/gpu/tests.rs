use super::*;

/// docs/facts/mps-control.md#clients
#[test]
fn the_driver_decides_how_many_clients_a_gpu_takes() {
    let gpu = |capability| Gpu {
        index: 0,
        uuid: GpuUuid::parse("GPU-0").unwrap(),
        name: "NVIDIA X".to_owned(),
        memory_mib: Some(1024),
        mode: ComputeMode::Default,
        mig: Mig::Off,
        capability,
        minor: None,
        cpus: None,
    };
    let (pascal, volta) = (gpu((6, 1)), gpu((7, 0)));
    for (driver, clients) in [
        ("", 48),
        ("535.161.08", 48),
        ("580.159.04", 48),
        ("590.44.01", 60),
        ("615.12", 60),
        ("x", 48),
    ] {
        let node = Inventory {
            migs: Vec::new(),
            gpus: Vec::new(),
            driver: driver.to_owned(),
        };
        assert_eq!(node.clients(&volta, None), clients, "{driver}");
        assert_eq!(node.clients(&volta, Some(100)), 100, "{driver}");
        assert_eq!(node.clients(&pascal, None), 16, "{driver}");
        assert_eq!(node.clients(&pascal, Some(8)), 8, "{driver}");
    }
}

#[test]
fn a_uuid_cannot_name_another_file() {
    assert!(GpuUuid::parse("GPU-200b4359-5562-4e0e-ed46-88b581af6524").is_ok());
    for raw in ["", "GPU-", "GPU-../x", "0", "GPU-12/34"] {
        assert!(GpuUuid::parse(raw).is_err(), "{raw}");
    }
}

#[test]
fn a_mig_device_is_named_by_its_uuid_and_by_place_in_limits() {
    let mig = GpuUuid::parse("MIG-77f46ec1-8bf6-5b2c-8f3e-4ae5dd0b3a4c").unwrap();
    assert!(mig.is_mig());
    assert_eq!(mig.in_limits(), "0");
    let gpu = GpuUuid::parse("GPU-200b4359").unwrap();
    assert_eq!((gpu.is_mig(), gpu.in_limits()), (false, "GPU-200b4359"));
    let old = GpuUuid::parse("MIG-GPU-200b4359-5562-4e0e-ed46-88b581af6524/1/0").unwrap_err();
    assert!(old.to_string().contains("drivers before 470"), "{old}");
}

#[test]
fn a_mig_device_takes_its_part_of_the_clients() {
    let of = |mig| {
        let gpu = Gpu {
            index: 0,
            uuid: GpuUuid::parse("MIG-0").unwrap(),
            name: String::new(),
            memory_mib: None,
            mode: ComputeMode::Default,
            mig,
            capability: (9, 0),
            minor: None,
            cpus: None,
        };
        Inventory::default().clients(&gpu, None)
    };
    assert_eq!(of(Mig::Device { slices: 3, of: 7 }), 20);
    assert_eq!(of(Mig::Device { slices: 1, of: 7 }), 6);
    assert_eq!(of(Mig::Device { slices: 7, of: 7 }), 48);
    assert_eq!(of(Mig::Off), 48);
}
