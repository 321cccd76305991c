use super::*;

#[test]
fn an_id_may_hold_slashes_and_ends_at_nothing_else() {
    let gpu = GpuUuid::parse("GPU-74d43ed3-cdf7-e667-3644-bf5b4f46ed65").unwrap();
    let of = |text: &str| id_of(text, &gpu);
    assert_eq!(of(&format!("{gpu}/Dx4AAAA")).as_deref(), Some("Dx4AAAA"));
    assert_eq!(of(&format!("{gpu}/D/79e/DgwY=")).as_deref(), Some("D/79e/DgwY="));
    let long = "A".repeat(129);
    for id in ["", "a b", "a;b", "a\nb", "$(a)", long.as_str()] {
        assert_eq!(of(&format!("{gpu}/{id}")), None, "{id:?}");
    }
    assert_eq!(of("GPU-74d43ed3/Dx4AAAA"), None, "a part of the UUID");
    assert_eq!(of(gpu.as_str()), None);
}
