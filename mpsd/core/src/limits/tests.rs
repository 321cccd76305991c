use super::*;

#[test]
fn a_share_is_read_in_tenths_and_never_rounded_up() {
    let cases = [
        ("1", 10, "1"),
        ("1.0", 10, "1"),
        ("12.5", 125, "12.5"),
        ("12.59", 125, "12.5"),
        ("99.99999999999999999", 999, "99.9"),
        ("100", 1000, "100"),
        ("100.000", 1000, "100"),
        ("025", 250, "25"),
    ];
    for (text, tenths, shown) in cases {
        let percent: Percent = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(
            (percent.tenths(), percent.to_string().as_str()),
            (tenths, shown),
            "{text}"
        );
    }
}

#[test]
fn what_is_not_a_share_says_why() {
    let cases = [
        ("0", "below 1"),
        ("0.99", "below 1"),
        ("101", "above 100"),
        ("100.05", "above 100"),
        ("100.00000000000000001", "above 100"),
        ("99999999999999999999999999", "above 100"),
        ("abc", "not a plain decimal number"),
        ("NaN", "not a plain decimal number"),
        ("inf", "not a plain decimal number"),
        ("1e1", "not a plain decimal number"),
        ("+25", "not a plain decimal number"),
        ("-25", "not a plain decimal number"),
        ("25%%", "not a plain decimal number"),
        ("%", "not a plain decimal number"),
        ("0%", "below 1"),
        ("25.", "not a plain decimal number"),
        (".5", "not a plain decimal number"),
        ("1.2.3", "not a plain decimal number"),
        (" 25", "not a plain decimal number"),
        ("", "not a plain decimal number"),
        ("٢٥", "not a plain decimal number"),
    ];
    for (text, why) in cases {
        assert_eq!(text.parse::<Percent>().unwrap_err().why, why, "{text}");
    }
}

#[test]
fn a_share_may_be_written_with_its_sign() {
    for (text, tenths) in [("25%", 250), ("12.5%", 125), ("100%", 1000)] {
        assert_eq!(text.parse(), Ok(Percent(tenths)), "{text}");
    }
}

#[test]
fn an_amount_is_binary_and_whole_mebibytes() {
    let cases = [
        ("4G", 4096, "4G"),
        ("4GiB", 4096, "4G"),
        ("4gib", 4096, "4G"),
        ("900M", 900, "900M"),
        ("900mib", 900, "900M"),
        ("1.5G", 1536, "1536M"),
        ("0.0015G", 1, "1M"),
        ("2048M", 2048, "2G"),
        ("1T", 1 << 20, "1T"),
        ("1024T", 1 << 30, "1024T"),
    ];
    for (text, mebibytes, shown) in cases {
        let amount: Amount = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(
            (amount, amount.to_string().as_str()),
            (Amount::Mebibytes(mebibytes), shown),
            "{text}"
        );
    }
    assert_eq!("25%".parse(), Ok(Amount::Percent(Percent(250))));
}

#[test]
fn what_is_not_an_amount_says_why() {
    let cases = [
        ("4", "a size needs a unit"),
        ("0G", "less than 1M"),
        ("0.5M", "less than 1M"),
        ("3X", "unknown unit"),
        ("3K", "unknown unit"),
        ("2GB", "decimal units are not accepted: write 2G"),
        ("4gb", "decimal units are not accepted: write 4G"),
        ("1.5mb", "decimal units are not accepted: write 1.5M"),
        ("0000000000004GB", "decimal units are not accepted"),
        ("25%%", "not a plain decimal number"),
        ("1025T", "above 1024T"),
        ("99999999999999999999T", "above 1024T"),
        ("G", "not a plain decimal number with a unit"),
        ("-4G", "not a plain decimal number with a unit"),
        ("", "not a plain decimal number with a unit"),
        ("4 G", "unknown unit"),
        ("0%", "below 1"),
        ("101%", "above 100"),
    ];
    for (text, why) in cases {
        assert_eq!(text.parse::<Amount>().unwrap_err().why, why, "{text}");
    }
}

#[test]
fn shares_of_a_gpu() {
    assert_eq!(Percent::part_of(3), Percent(333));
    assert_eq!(Percent::part_of(48), Percent(20));
    assert_eq!(Percent::part_of(5000), Percent(10));
    assert_eq!(Percent::part_of(0), Percent::WHOLE);
    assert_eq!(Percent::auto(1), Percent::WHOLE);
    assert_eq!(Percent::auto(2), Percent::WHOLE);
    assert_eq!(Percent::auto(8), Percent(250));
    assert_eq!(Percent::auto(3), Percent(666));
    assert_eq!(Amount::Percent(Percent(333)).mebibytes_of(Some(1000)), Some(333));
    assert_eq!(Amount::Percent(Percent(10)).mebibytes_of(Some(10)), Some(1));
    assert_eq!(
        Amount::Percent(Percent::WHOLE).mebibytes_of(Some(u64::MAX)),
        Some(u64::MAX)
    );
    assert_eq!(Amount::Percent(Percent::WHOLE).mebibytes_of(None), None);
    for total in [Some(10), None] {
        assert_eq!(Amount::Mebibytes(900).mebibytes_of(total), Some(900));
    }
}

#[test]
fn every_share_and_amount_survives_its_own_text() {
    for tenths in 10..=1000 {
        let percent = Percent::from_tenths(tenths).unwrap();
        assert_eq!(percent.to_string().parse(), Ok(percent));
        assert_eq!(
            Amount::Percent(percent).to_string().parse(),
            Ok(Amount::Percent(percent))
        );
    }
    for shift in 0..=30 {
        for mebibytes in [1u64 << shift, (1 << shift) + 1, (1 << shift) - 1] {
            let amount = Amount::Mebibytes(mebibytes.clamp(1, 1 << 30));
            assert_eq!(amount.to_string().parse(), Ok(amount));
        }
    }
}

#[test]
fn a_priority_has_two_words_and_the_vendors_number() {
    assert_eq!("normal".parse(), Ok(Priority::Normal));
    assert_eq!("Below_Normal".parse(), Ok(Priority::BelowNormal));
    assert_eq!(
        (Priority::Normal.number(), Priority::BelowNormal.number()),
        (0, 1)
    );
    for word in ["high", "0", "1", "belownormal", ""] {
        assert_eq!(
            word.parse::<Priority>().unwrap_err().why,
            "unknown word",
            "{word}"
        );
    }
}
