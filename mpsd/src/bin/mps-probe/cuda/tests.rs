use super::*;

#[test]
fn a_uuid_is_written_as_nvml_writes_it() {
    let bytes: [u8; 16] = [
        0x20, 0x0b, 0x43, 0x59, 0x55, 0x62, 0x4e, 0x0e, 0xed, 0x46, 0x88, 0xb5, 0x81, 0xaf, 0x65, 0x24,
    ];
    let uuid = sys::CUuuid {
        bytes: bytes.map(|byte| byte as _),
    };
    assert_eq!(uuid_text(&uuid), "GPU-200b4359-5562-4e0e-ed46-88b581af6524");
}

#[test]
fn every_mps_error_has_words_of_its_own() {
    let words: Vec<_> = (805..=810).map(meaning).collect();
    for (place, word) in words.iter().enumerate() {
        assert!(!words[place + 1..].contains(word), "{word} is said of two errors");
        assert_ne!(*word, meaning(1));
    }
}
