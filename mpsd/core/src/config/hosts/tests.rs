use super::*;

#[test]
fn names_in_and_out_of_a_list() {
    let cases = [
        (
            "gpu[001-100],x1",
            "gpu001 gpu100 x1 gpu042.cluster.example",
            "gpu1 gpu000 gpu101 gpu0001 x11 x gpu",
        ),
        ("n[8-12]", "n8 n10 n12", "n08 n7 n13 n"),
        ("n[08-100]", "n08 n99 n100", "n8 n008 n101"),
        ("r[1-4]n[0-7]", "r1n0 r4n7", "r5n0 r1n8 r1n r1"),
        ("a[1,3,5-6]b", "a1b a3b a5b a6b", "a2b a4b a1 b"),
        ("x1", "x1 x1.domain", "x X1 x12"),
        ("x1.domain", "x1.domain", "x1 x1.other"),
        ("n[1-2][0-9]", "n10 n29", "n9 n30 n100"),
        (
            "[0-18446744073709551615]",
            "0 7 18446744073709551615",
            "x 99999999999999999999999",
        ),
    ];
    for (list, inside, outside) in cases {
        let hosts = HostList::try_from(list.to_owned()).unwrap();
        for name in inside.split(' ') {
            assert!(hosts.contains(name), "{name} in {list}");
        }
        for name in outside.split(' ') {
            assert!(!hosts.contains(name), "{name} not in {list}");
        }
    }
}

#[test]
fn what_is_no_list() {
    let bad = [
        "",
        "a,,b",
        "gpu[",
        "gpu[1",
        "gpu]",
        "gpu[]",
        "gpu[2-1]",
        "gpu[a-b]",
        "gpu[001-9]",
        "gpu[1-2-3]",
        "g pu",
        "../x",
        "[1][1][1][1][1]",
    ];
    for list in bad {
        assert!(HostList::try_from(list.to_owned()).is_err(), "{list}");
    }
}
