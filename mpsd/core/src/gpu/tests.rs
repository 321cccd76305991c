use super::*;

/// docs/facts/mps-control.md#clients
#[test]
fn the_driver_decides_how_many_clients_a_gpu_takes() {
    let gpu = |capability| Gpu {
        index: 0,
        uuid: GpuUuid::parse("GPU-0").unwrap(),
        name: "NVIDIA X".to_owned(),
        memory_mib: 1024,
        mode: ComputeMode::Default,
        mig: false,
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
    let mig = GpuUuid::parse("MIG-77f46ec1-8bf6-5b2c-8f3e-4ae5dd0b3a4c").unwrap_err();
    assert!(mig.to_string().contains("MIG device"), "{mig}");
}
