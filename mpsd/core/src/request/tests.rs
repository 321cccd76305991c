use super::words::LONGEST;
use super::*;
use crate::failure::Refusal;
use crate::text::one_line;

fn account(text: &str) -> Request {
    Request::from_account(text)
        .unwrap_or_else(|refusal| panic!("{text}: {refusal}"))
        .expect(text)
}

fn refusal(text: &str) -> String {
    match Request::from_account(text) {
        Err(refusal) => refusal.to_string(),
        Ok(read) => panic!("{text}: accepted as {read:?}"),
    }
}

/// Every option as this syntax names it.
fn all(syntax: Syntax) -> String {
    let names = Key::ALL.map(|key| syntax.token(key, None)).join(", ");
    assert!(
        names.starts_with("MPS, MPS_THREADS, ") || names.starts_with("mps, mps=threads, "),
        "{names}"
    );
    names
}

#[test]
fn what_is_not_ours_is_not_looked_at() {
    let long = format!("proj,{}", "x".repeat(10_000));
    let accounts = [
        "",
        "MPSLAB",
        "mps_physics",
        "MPS",
        "mps",
        "proj42",
        "MPS_THREADS",
        "xMPS=true",
        "MPS_=3",
        "MPS_LAB2=3",
        "MPS2=on",
        "MPS-THREADS=5",
        "MPSLAB=true",
        "\"MPS=true\"",
        "a=b",
        "=MPS",
        "proj MPS_physics2=maybe",
        "\0\u{1b}[31m",
        &long,
    ];
    for text in accounts {
        assert_eq!(Request::from_account(text), Ok(None), "{}", one_line(text, 40));
    }
    assert_eq!(Request::from_account(b"proj\xff\xfe,x=\x80"), Ok(None));
}

#[test]
fn account_tokens_in_canonical_form() {
    let cases = [
        ("MPS=true", "MPS=per-node"),
        ("proj42,MPS=true", "MPS=per-node"),
        (
            "proj1,MPS=true,MPS_THREADS=25,MPS_MEM=2G",
            "MPS=per-node,MPS_THREADS=25,MPS_MEM=2G",
        ),
        ("mps=YES;mps_threads=30:70", "MPS=per-node,MPS_THREADS=30:70"),
        (
            "  proj\tMps=Per_Gpu  MPS_mem=0=4G:1=2048M ",
            "MPS=per-gpu,MPS_MEM=0=4G:1=2G",
        ),
        ("MPS=per_node;;,MPS_MEM=25%", "MPS=per-node,MPS_MEM=25%"),
        (
            "MPS=1,MPS_THREADS=Auto,MPS_MEM=AUTO",
            "MPS=per-node,MPS_THREADS=auto,MPS_MEM=auto",
        ),
        ("MPS=on,MPS_MEM=2G:25%", "MPS=per-node,MPS_MEM=2G:25%"),
        ("MPS=on,MPS_REPLICAS=4", "MPS=per-node,MPS_REPLICAS=4"),
        (
            "MPS=on,MPS_PRIORITY=Below_Normal",
            "MPS=per-node,MPS_PRIORITY=below-normal",
        ),
        ("MPS=on,MPS_VERIFY=YES", "MPS=per-node,MPS_VERIFY=on"),
        ("MPS=on,MPS_VERIFY=0", "MPS=per-node,MPS_VERIFY=off"),
        ("MPS=NO", "MPS=off"),
        ("MPS=0,MPS_THREADS=25", "MPS=off,MPS_THREADS=25"),
        ("MPS=on,MPS=true", "MPS=per-node"),
        ("MPS=on,MPS_MEM=4G,mps_mem=4096M", "MPS=per-node,MPS_MEM=4G"),
        ("MPS_THREADS=12.59,MPS=on", "MPS=per-node,MPS_THREADS=12.5"),
        ("MPS=on\nMPS_THREADS=5", "MPS=per-node,MPS_THREADS=5"),
        (
            "MPS=on,MPS_MEM=gpu-200B4359-5562-4e0e-ed46-88b581af6524=1G",
            "MPS=per-node,MPS_MEM=GPU-200b4359-5562-4e0e-ed46-88b581af6524=1G",
        ),
    ];
    for (text, canonical) in cases {
        assert_eq!(account(text).to_string(), canonical, "{text}");
        assert_eq!(account(canonical), account(text), "{text}");
    }
}

#[test]
fn a_refused_account_names_token_reason_and_what_is_allowed() {
    let threads = Threads::ALLOWED;
    let memory = MemoryLimit::ALLOWED;
    let cases = [
        (
            "MPS=maybe",
            format!("MPS=maybe: unknown word; allowed: {}", Mode::ALLOWED),
        ),
        ("MPS=", format!("MPS=: unknown word; allowed: {}", Mode::ALLOWED)),
        (
            "MPS=on=5",
            format!("MPS=on=5: unknown word; allowed: {}", Mode::ALLOWED),
        ),
        (
            "MPS=on,MPS_THREADS=0",
            format!("MPS_THREADS=0: below 1; allowed: {threads}"),
        ),
        (
            "MPS=on,MPS_THREADS=101",
            format!("MPS_THREADS=101: above 100; allowed: {threads}"),
        ),
        (
            "MPS=on,MPS_THREADS=abc",
            format!("MPS_THREADS=abc: not a plain decimal number; allowed: {threads}"),
        ),
        (
            "MPS=on,MPS_THREADS=NaN",
            format!("MPS_THREADS=NaN: not a plain decimal number; allowed: {threads}"),
        ),
        (
            "MPS=on,MPS_THREADS=30::70",
            format!("MPS_THREADS=30::70: not a plain decimal number; allowed: {threads}"),
        ),
        (
            "MPS=on,MPS_THREADS=30:auto",
            format!("MPS_THREADS=30:auto: not a plain decimal number; allowed: {threads}"),
        ),
        (
            "MPS=on,MPS_MEM=3X",
            format!("MPS_MEM=3X: unknown unit; allowed: {memory}"),
        ),
        (
            "MPS=on,MPS_MEM=4",
            format!("MPS_MEM=4: a size needs a unit; allowed: {memory}"),
        ),
        (
            "MPS=on,MPS_MEM=0G",
            format!("MPS_MEM=0G: less than 1M; allowed: {memory}"),
        ),
        (
            "MPS=on,MPS_MEM=0=4G:2G",
            format!("MPS_MEM=0=4G:2G: names a GPU for some limits only; allowed: {memory}"),
        ),
        (
            "MPS=on,MPS_MEM=0=4G:00=2G",
            format!("MPS_MEM=0=4G:00=2G: names GPU 0 twice; allowed: {memory}"),
        ),
        (
            "MPS=on,MPS_MEM=0=auto",
            format!("MPS_MEM=0=auto: not a plain decimal number with a unit; allowed: {memory}"),
        ),
        (
            "MPS=on,MPS_MEM=MIX-77f46ec1=4G",
            "MPS_MEM=MIX-77f46ec1=4G: names no GPU; allowed: the GPU's number within the job, from 0, or its UUID (GPU-... or \
             MIG-...)"
                .to_owned(),
        ),
        (
            "MPS_THREADS=25",
            "MPS_THREADS=25: MPS itself is not asked for: add MPS=on".to_owned(),
        ),
        (
            "MPS=on,MPS_THREAD=25",
            format!(
                "MPS_THREAD=25: unknown key (did you mean MPS_THREADS?); allowed: {}",
                all(Syntax::Account)
            ),
        ),
        (
            "MPS=on,MPS_COLOUR=red",
            format!("MPS_COLOUR=red: unknown key; allowed: {}", all(Syntax::Account)),
        ),
        (
            "MPS=50",
            format!("MPS=50: unknown word (did you mean MPS_THREADS=50?); allowed: {}", Mode::ALLOWED),
        ),
        (
            "MPS=4G",
            format!("MPS=4G: unknown word (did you mean MPS_MEM=4G?); allowed: {}", Mode::ALLOWED),
        ),
        (
            "MPS=pergpu",
            format!("MPS=pergpu: unknown word (did you mean MPS=per-gpu?); allowed: {}", Mode::ALLOWED),
        ),
        (
            "MPS=on,mps=off",
            "mps=off: given twice with different values; allowed: one value".to_owned(),
        ),
        (
            "MPS=on,MPS_REPLICAS=0",
            "MPS_REPLICAS=0: below 1; allowed: a whole number from 1 to 60".to_owned(),
        ),
        (
            "MPS=on,MPS_REPLICAS=61",
            "MPS_REPLICAS=61: above 60; allowed: a whole number from 1 to 60".to_owned(),
        ),
        (
            "MPS=on,MPS_REPLICAS=2.5",
            "MPS_REPLICAS=2.5: not a whole number; allowed: a whole number from 1 to 60".to_owned(),
        ),
        (
            "MPS=on,MPS_SMS=16.5",
            format!("MPS_SMS=16.5: not a whole number; allowed: {}", Sms::ALLOWED),
        ),
        (
            "MPS=on,MPS_SMS=16:0",
            format!("MPS_SMS=16:0: below 1; allowed: {}", Sms::ALLOWED),
        ),
        (
            "MPS=on,MPS_SMS=16,MPS_THREADS=25",
            "MPS_SMS=16: excludes MPS_THREADS=25; allowed: multiprocessors of each rank's own, or shares".to_owned(),
        ),
        (
            "MPS=on,MPS_SMS=16,MPS_REPLICAS=4",
            "MPS_SMS=16: excludes MPS_REPLICAS=4; allowed: multiprocessors of each rank's own, or shares".to_owned(),
        ),
        (
            "MPS=on,MPS_PRIORITY=high",
            "MPS_PRIORITY=high: unknown word; allowed: normal, below-normal".to_owned(),
        ),
        (
            "MPS=on,MPS_PRIORITY=bellow-normal",
            "MPS_PRIORITY=bellow-normal: unknown word (did you mean MPS_PRIORITY=below-normal?); allowed: normal, \
             below-normal"
                .to_owned(),
        ),
        (
            "MPS=on,MPS_VERIFY=2",
            "MPS_VERIFY=2: unknown word; allowed: true, yes, on, 1; false, no, off, 0".to_owned(),
        ),
        (
            "MPS=off,MPS_THREADS=101",
            format!("MPS_THREADS=101: above 100; allowed: {threads}"),
        ),
    ];
    for (text, message) in cases {
        assert_eq!(refusal(text), message, "{text}");
    }
}

#[test]
fn replicas_exclude_what_they_stand_for() {
    let message = refusal("MPS=on,MPS_REPLICAS=4,MPS_THREADS=25");
    assert!(
        message.starts_with("MPS_REPLICAS=4: excludes MPS_THREADS=25; allowed: "),
        "{message}"
    );
    let message = refusal("MPS=off,MPS_MEM=4G,MPS_REPLICAS=4");
    assert!(
        message.starts_with("MPS_REPLICAS=4: excludes MPS_MEM=4G; allowed: "),
        "{message}"
    );
    assert!(Request::from_account("MPS=on,MPS_REPLICAS=4,MPS_PRIORITY=normal,MPS_VERIFY=on").is_ok());
}

#[test]
fn the_length_counts_only_where_a_token_is_ours() {
    let fits = format!("{},MPS=true", "p".repeat(LONGEST - ",MPS=true".len()));
    assert_eq!(account(&fits).mode, Mode::PerNode);
    assert_eq!(
        refusal(&format!("p{fits}")),
        "the account with MPS: 1025 bytes long; allowed: at most 1024 bytes"
    );
    let message = refusal(&format!("MPS=true,{}", "x".repeat(10_000)));
    assert!(message.contains("10009 bytes long"), "{message}");
    // Bytes that are not UTF-8 grow when they are made text; it is the bytes that count.
    let mut bytes = b"MPS=true,".to_vec();
    bytes.resize(LONGEST, 0xff);
    assert_eq!(
        Request::from_account(&bytes).unwrap().unwrap().mode,
        Mode::PerNode
    );
}

#[test]
fn a_message_is_one_short_printable_line() {
    for value in ["\u{1b}[2J", "1\u{7}\u{202e}", &"9:".repeat(300), "25\u{8}", "\0"] {
        for key in [
            "MPS",
            "MPS_THREADS",
            "MPS_MEM",
            "MPS_VERIFY",
            "MPS_REPLICAS",
            "MPS_PRIORITY",
            "MPS_EVIL",
        ] {
            let Err(refusal) = Request::from_account(format!("MPS=on,{key}={value}x")) else {
                panic!("{key} accepted");
            };
            let message = refusal.to_string();
            assert!(
                !message.chars().any(char::is_control) && message.len() < 300,
                "{message:?}"
            );
        }
    }
    let bytes = Request::from_account(b"MPS=on,MPS_THREADS=\xff\xfe")
        .unwrap_err()
        .to_string();
    assert!(bytes.contains("not a plain decimal number"), "{bytes}");
}

type Given<'a> = &'a [(Key, Option<&'a str>)];

/// The flags as they arrive, and what they come to.
fn flags(given: Given<'_>) -> (Result<(), Refusal>, Flags) {
    let mut flags = Flags::default();
    let taken = given.iter().map(|(key, value)| flags.take(*key, *value));
    (taken.fold(Ok(()), Result::and), flags)
}

#[test]
fn a_wrong_flag_is_refused_by_name_when_it_arrives_and_with_all_the_others() {
    let threads = Threads::ALLOWED;
    let cases = [
        (
            Key::Threads,
            Some("101"),
            format!("--mps-threads=101: above 100; allowed: {threads}"),
        ),
        (
            Key::Threads,
            None,
            format!("--mps-threads: needs a value; allowed: {threads}"),
        ),
        (
            Key::Threads,
            Some(""),
            format!("--mps-threads: needs a value; allowed: {threads}"),
        ),
        (
            Key::Mode,
            Some("maybe"),
            format!("--mps=maybe: unknown word; allowed: {}", Mode::ALLOWED),
        ),
        (
            Key::Mode,
            Some("50"),
            format!(
                "--mps=50: unknown word (did you mean --mps-threads=50?); allowed: {}",
                Mode::ALLOWED
            ),
        ),
        (
            Key::Mem,
            Some("4"),
            format!(
                "--mps-mem=4: a size needs a unit; allowed: {}",
                MemoryLimit::ALLOWED
            ),
        ),
        (
            Key::Replicas,
            Some("61"),
            "--mps-replicas=61: above 60; allowed: a whole number from 1 to 60".to_owned(),
        ),
        (
            Key::Verify,
            Some("perhaps"),
            "--mps-verify=perhaps: unknown word; allowed: true, yes, on, 1; false, no, off, 0".to_owned(),
        ),
    ];
    for (key, value, message) in cases {
        let mut all = flags(&[(Key::Mode, None), (Key::Verify, Some("off"))]).1;
        assert_eq!(
            all.take(key, value).unwrap_err().to_string(),
            message,
            "{key:?} {value:?}"
        );
        let Demand::Wrong(again) = all.demand() else {
            panic!("{key:?} {value:?}")
        };
        assert_eq!(again.to_string(), message);
    }
    for (key, value, word) in [
        (Key::Mem, Some("4G"), "--mps-mem=4G"),
        (Key::Verify, None, "--mps-verify"),
    ] {
        let (taken, flags) = flags(&[(key, value)]);
        assert_eq!(taken, Ok(()), "alone it is right: the others may follow");
        let Demand::Wrong(refusal) = flags.demand() else {
            panic!()
        };
        let message = format!("{word}: MPS itself is not asked for: add --mps");
        assert_eq!(refusal.to_string(), message);
    }
}

#[test]
fn flags_are_bounded_each_and_together() {
    let long = "1:".repeat(600);
    let (taken, _) = flags(&[(Key::Mode, None), (Key::Threads, Some(&long))]);
    assert!(
        taken
            .unwrap_err()
            .to_string()
            .starts_with("the --mps flags: 1213 bytes long")
    );
    let half = format!("1{}", ":1".repeat(300));
    let (taken, both) = flags(&[
        (Key::Mode, None),
        (Key::Threads, Some(&half)),
        (Key::Mem, Some(&"1G:".repeat(200))),
    ]);
    assert!(taken.is_err() && matches!(both.demand(), Demand::Wrong(_)));
    let many = format!("1G{}", ":1G".repeat(180));
    let (taken, both) = flags(&[
        (Key::Mode, None),
        (Key::Threads, Some(&half)),
        (Key::Mem, Some(&many)),
    ]);
    assert_eq!(taken, Ok(()));
    let Demand::Wrong(refusal) = both.demand() else {
        panic!()
    };
    assert!(
        refusal
            .to_string()
            .starts_with("the --mps flags: 1170 bytes long"),
        "{refusal}"
    );
}

#[test]
fn flags_and_the_shapes_slurm_gives_them() {
    let cases: [(Given<'_>, &str); 11] = [
        (&[(Key::Mode, None)], "MPS=per-node"),
        (&[(Key::Mode, Some("(null)"))], "MPS=per-node"),
        (&[(Key::Mode, Some(""))], "MPS=per-node"),
        (
            &[(Key::Mode, Some("per_gpu")), (Key::Threads, Some("30,70"))],
            "MPS=per-gpu,MPS_THREADS=30:70",
        ),
        (
            &[(Key::Mem, Some("0=4G,1=2G:2=1G")), (Key::Mode, None)],
            "MPS=per-node,MPS_MEM=0=4G:1=2G:2=1G",
        ),
        (
            &[(Key::Mode, None), (Key::Verify, Some("(null)"))],
            "MPS=per-node,MPS_VERIFY=on",
        ),
        (
            &[(Key::Verify, None), (Key::Mode, None)],
            "MPS=per-node,MPS_VERIFY=on",
        ),
        (
            &[(Key::Mode, None), (Key::Verify, Some("no"))],
            "MPS=per-node,MPS_VERIFY=off",
        ),
        (
            &[(Key::Mode, None), (Key::Replicas, Some("8"))],
            "MPS=per-node,MPS_REPLICAS=8",
        ),
        (
            &[
                (Key::Mode, None),
                (Key::Threads, Some("5")),
                (Key::Threads, Some("6")),
            ],
            "MPS=per-node,MPS_THREADS=6",
        ),
        (
            &[(Key::Mode, Some("maybe")), (Key::Mode, Some("per-gpu"))],
            "MPS=per-gpu",
        ),
    ];
    for (given, canonical) in cases {
        let Demand::On(request) = flags(given).1.demand() else {
            panic!("{given:?}")
        };
        assert_eq!(request.to_string(), canonical, "{given:?}");
    }
    let off: [Given<'_>; 2] = [
        &[(Key::Mode, Some("off")), (Key::Threads, Some("5"))],
        &[(Key::Mode, None), (Key::Mode, Some("off"))],
    ];
    for given in off {
        assert_eq!(flags(given).1.demand(), Demand::Off);
    }
    assert_eq!(Flags::default().demand(), Demand::Nothing);
}

#[test]
fn hostile_flags_reach_the_program_as_tokens_it_refuses() {
    let long = "x".repeat(5000);
    let hostile: [Given<'_>; 6] = [
        &[(Key::Mode, None), (Key::Threads, Some("101"))],
        &[(Key::Mode, None), (Key::Threads, None)],
        &[(Key::Mode, None), (Key::Mem, Some("4G,MPS=off"))],
        &[(Key::Mode, Some("on;MPS_THREADS=1 \n\u{202e}x"))],
        &[(Key::Mode, Some(&long))],
        &[(Key::Threads, Some("50"))],
    ];
    for given in hostile {
        let flags = flags(given).1;
        assert!(matches!(flags.demand(), Demand::Wrong(_)), "{flags:?}");
        let raw = flags.raw();
        assert!(raw.is_ascii() && !raw.contains([' ', '\n', ';']), "{raw}");
        assert!(Request::from_account(&raw).is_err(), "{raw}");
    }
}

#[test]
fn the_resource_speaks_the_same_words() {
    let cases = [
        ("on", "MPS=per-node"),
        ("on+threads=25+mem=4G", "MPS=per-node,MPS_THREADS=25,MPS_MEM=4G"),
        ("mem=0=4G:1=2G+per-gpu", "MPS=per-gpu,MPS_MEM=0=4G:1=2G"),
        (
            "mps=on+MPS_THREADS=25+mps-verify=1",
            "MPS=per-node,MPS_THREADS=25,MPS_VERIFY=on",
        ),
        ("off", "MPS=off"),
    ];
    for (text, canonical) in cases {
        assert_eq!(
            Request::from_resource(text).unwrap().to_string(),
            canonical,
            "{text}"
        );
    }
    let refused = [
        ("", format!("mps=: unknown word; allowed: {}", Mode::ALLOWED)),
        (
            "on+threads=101",
            format!("mps=threads=101: above 100; allowed: {}", Threads::ALLOWED),
        ),
        (
            "threads=25",
            "mps=threads=25: MPS itself is not asked for: write mps=on+threads=25".to_owned(),
        ),
        (
            "on+off",
            "mps=off: given twice with different values; allowed: one value".to_owned(),
        ),
        (
            "on+thread=25",
            format!(
                "mps=thread=25: unknown key (did you mean mps=threads?); allowed: {}",
                all(Syntax::Resource)
            ),
        ),
    ];
    for (text, message) in refused {
        assert_eq!(
            Request::from_resource(text).unwrap_err().to_string(),
            message,
            "{text}"
        );
    }
    assert!(
        Request::from_resource(&"on+".repeat(400))
            .unwrap_err()
            .to_string()
            .contains("1200 bytes long")
    );
}

#[test]
fn account_and_resource_add_up_or_contradict() {
    let merge = |one: &str, other: &str| Request::merge(account(one), Request::from_resource(other).unwrap());
    assert_eq!(
        merge("MPS=on,MPS_THREADS=25", "on+mem=4G").unwrap().to_string(),
        "MPS=per-node,MPS_THREADS=25,MPS_MEM=4G"
    );
    let contradictions = [
        (
            "MPS=off",
            "on",
            "MPS=off in the account: contradicts mps=per-node in the mps resource",
        ),
        (
            "MPS=on,MPS_THREADS=25",
            "on+threads=30",
            "MPS_THREADS=25 in the account: contradicts threads=30",
        ),
        (
            "MPS=on,MPS_REPLICAS=4",
            "on+threads=30",
            "MPS_REPLICAS=4: excludes MPS_THREADS=30",
        ),
    ];
    for (one, other, message) in contradictions {
        let refusal = merge(one, other).unwrap_err().to_string();
        assert!(refusal.starts_with(message), "{refusal}");
    }
}

#[test]
fn a_task_with_one_daemon_for_each_gpu_cannot_see_another() {
    for bind in ["none", "cyclic+peers"] {
        let refused = Request::from_account(format!("MPS=per-gpu,MPS_BIND={bind}")).unwrap_err();
        assert!(
            refused.to_string().contains(&format!("MPS_BIND={bind}")),
            "{refused}"
        );
    }
    assert!(Request::from_account("MPS=per-gpu,MPS_BIND=closest").is_ok());
}

#[test]
fn a_request_may_be_given_as_the_flags_of_a_command_line() {
    for (text, canonical) in [
        ("--mps", "MPS=per-node"),
        (
            "--mps=per-gpu --mps-threads=30,70",
            "MPS=per-gpu,MPS_THREADS=30:70",
        ),
        (
            "  --mps --mps-mem 4G  --mps-verify",
            "MPS=per-node,MPS_MEM=4G,MPS_VERIFY=on",
        ),
        ("--mps=on --mps=off", "MPS=off"),
    ] {
        assert_eq!(
            Request::from_flags(text).unwrap().to_string(),
            canonical,
            "{text}"
        );
    }
    for (text, message) in [
        (
            "--mps-threads=25",
            "--mps-threads=25: MPS itself is not asked for: add --mps",
        ),
        (
            "--mps --mps-thread=25",
            "--mps-thread: unknown flag (did you mean --mps-threads?); allowed: --mps, ",
        ),
        (
            "--mps 50",
            "50: not a flag (did you mean --mps-threads=50?); allowed: --mps, ",
        ),
        ("--gres=gpu:1", "--gres: unknown flag; allowed: --mps, "),
        (
            "--mps=50",
            "--mps=50: unknown word (did you mean --mps-threads=50?); allowed: ",
        ),
    ] {
        let refused = Request::from_flags(text).unwrap_err().to_string();
        assert!(refused.starts_with(message), "{text}: {refused}");
    }
}

#[test]
fn a_lone_name_in_an_account_is_told_and_asks_for_nothing() {
    for account in ["MPS", "proj1,MPS", "MPS;x", "a MPS b"] {
        assert_eq!(Request::from_account(account), Ok(None), "{account}");
        let told = Request::almost_asked(account).unwrap_or_else(|| panic!("{account}"));
        assert!(told.contains("MPS=on"), "{told}");
    }
    for account in [
        "mps",
        "MPSLAB",
        "mps_physics",
        "proj-MPS",
        "MPS=on",
        "MPS,MPS=off",
        "",
    ] {
        assert_eq!(Request::almost_asked(account), None, "{account}");
    }
}
