use super::*;

#[test]
fn the_stamp_is_major_and_minor() {
    assert_eq!(version(None), 0x16_05_00);
    assert_eq!(version(Some("26.05")), 0x1a_05_00);
    assert_eq!(version(Some("23.11")), 0x17_0b_00);
}
