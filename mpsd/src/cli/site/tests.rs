//! What an administrator is shown of the configuration.

use super::*;
use mpsd_core::{ComputeMode, Gpu, GpuUuid};
use std::os::unix::fs::PermissionsExt;

#[test]
fn show_names_node_value_and_line() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("mpsd.toml");
    let text =
        "[[node]]\nhosts = \"n[1-9]\"\nmax_clients = 60\n[[node]]\nproduct = \"X\"\nmax_clients = 16\n";
    std::fs::write(&config, text).unwrap();
    std::fs::set_permissions(&config, std::fs::Permissions::from_mode(0o644)).unwrap();
    let show = |node: Option<&str>, products: &[&str]| {
        let products = products.iter().map(|product| (*product).to_owned()).collect();
        Show {
            node: node.map(str::to_owned),
            products,
        }
        .run(&config, "n3.domain", false)
        .unwrap()
    };
    let here = show(None, &[]);
    assert!(
        here.starts_with("# node 'n3.domain'\nrun_dir = \"/run/mpsd\""),
        "{here}"
    );
    assert!(
        here.contains("\nmax_clients = 60 ") && here.contains("mpsd.toml:3\n"),
        "{here}"
    );
    assert!(show(Some("n4"), &["X"]).contains("\nmax_clients = 16 "));
    assert!(show(Some("other"), &[]).contains("\nmax_clients is not set "));
}

#[test]
fn each_gpu_has_its_own_products_replicas() {
    let config = Config::parse("replicas = 2\n[[node]]\nproduct = \"B\"\nreplicas = 7").unwrap();
    let gpu = |index: u32, name: &str| Gpu {
        index,
        uuid: GpuUuid::parse(&format!("GPU-{index}")).unwrap(),
        name: name.to_owned(),
        memory_mib: Some(1024),
        mode: ComputeMode::Default,
        mig: mpsd_core::gpu::Mig::Off,
        capability: (9, 0),
        minor: None,
        cpus: None,
    };
    let inventory = Inventory {
        gpus: vec![gpu(0, "A"), gpu(1, "B")],
        driver: "590.48.01".to_owned(),
        migs: Vec::new(),
    };
    let offers = offers(&config, "n", &inventory).unwrap();
    let each: Vec<_> = offers
        .iter()
        .map(|offer| (offer.replicas, offer.clients))
        .collect();
    assert_eq!(each, [(Some(2), 60), (Some(7), 60)]);
}
