use super::*;

#[test]
fn every_row_says_what_its_parser_does() {
    for key in Key::ALL {
        let row = key.row();
        let read = |text: &str| Request::default().put(key, text);
        for word in row.words.iter().chain(&row.bare) {
            assert!(read(word).is_ok(), "{}: {word}", row.flag());
        }
        // The examples of the help line: what stands between backquotes.
        for word in row.help.split('`').skip(1).step_by(2) {
            assert!(read(word).is_ok(), "{}: {word}", row.flag());
        }
        assert!(!row.value.is_empty() && row.help.matches('`').count() % 2 == 0);
        assert!(row.more.is_empty() || row.more.ends_with('.'), "{}", row.more);
        let Err(invalid) = read("\u{1}") else {
            panic!("{}", row.flag())
        };
        assert_eq!(invalid.allowed, row.allowed, "{}", row.flag());
        // Slurm cuts longer names (spank.h, SPANK_OPTION_MAXLEN).
        assert!(row.flag().len() <= 75 && row.usage().starts_with("[mps] "));
    }
}
