use super::*;

#[test]
fn a_uuid_cannot_name_another_file() {
    assert!(GpuUuid::parse("GPU-200b4359-5562-4e0e-ed46-88b581af6524").is_ok());
    for raw in ["", "GPU-", "GPU-../x", "0", "GPU-12/34"] {
        assert!(GpuUuid::parse(raw).is_err(), "{raw}");
    }
    let mig = GpuUuid::parse("MIG-77f46ec1-8bf6-5b2c-8f3e-4ae5dd0b3a4c").unwrap_err();
    assert!(mig.to_string().contains("MIG device"), "{mig}");
}
