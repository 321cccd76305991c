use super::syntax::LONGEST;
use super::*;
use crate::failure::Refusal;
use crate::text::one_line;

/// The lines of a table, each split at its arrow.
fn rows(table: &'static str) -> impl Iterator<Item = (&'static str, &'static str)> {
    let lines = table.trim().lines().map(str::trim);
    let halves = lines.map(|line| line.split_once("->").unwrap());
    halves.map(|(text, read)| (text.trim(), read.trim()))
}

/// The request in its canonical form, or the refusal.
fn told(read: Result<Option<Request>, Refusal>) -> String {
    match read {
        Ok(request) => request.map_or_else(String::new, |request| request.to_string()),
        Err(refusal) => refusal.to_string(),
    }
}

/// Stand-ins in a table for long texts of what is allowed.
fn filled(message: &str, syntax: Syntax) -> String {
    let all = Key::ALL.map(|key| syntax.token(key, None)).join(", ");
    let texts = [
        ("{mode}", Mode::ALLOWED),
        ("{threads}", Threads::ALLOWED),
        ("{memory}", MemoryLimit::ALLOWED),
        ("{bool}", Key::Report.row().allowed),
        ("{all}", &all),
    ];
    let replaced = |text: String, (name, allowed): (&str, &str)| text.replace(name, allowed);
    texts.into_iter().fold(message.to_owned(), replaced)
}

/// Checks what each line of a table is read as.
fn assert_read(
    syntax: Syntax,
    read: impl Fn(&str) -> Result<Option<Request>, Refusal>,
    table: &'static str,
) {
    for (text, message) in rows(table) {
        assert_eq!(told(read(text)), filled(message, syntax), "{text}");
    }
}

fn account(text: &str) -> Request {
    text.parse()
        .unwrap_or_else(|refusal| panic!("{text}: {refusal}"))
}

#[test]
fn what_is_not_ours_is_not_looked_at() {
    let long = format!("proj,{}", "x".repeat(10_000));
    let accounts = "|MPSLAB|mps_physics|mps-lab|mps:physics|a/mps|xMPS=true|MPS_=3|MPS_LAB2=3|MPS2=on|\
                    MPS-LAB=5|THREADS=25|mem|=MPS|proj MPS_physics2=maybe|\0\u{1b}[31m";
    for text in accounts.split('|').chain([long.as_str()]) {
        let shown = one_line(text, 40);
        assert_eq!(Request::from_account(text), Ok(None), "{shown}");
    }
    assert_eq!(Request::from_account(b"proj\xff\xfe,x=\x80"), Ok(None));
    let flag = told(Request::from_account("--mps=physics"));
    assert!(flag.contains("not written as a request"), "{flag}");
}

#[test]
fn account_tokens_have_a_canonical_form() {
    let table = "
        proj1,MPS=true,MPS_THREADS=25,MPS_MEM=2G   -> MPS=per-node,MPS_THREADS=25,MPS_MEM=2G
        mps=YES;mps_threads=30:70                  -> MPS=per-node,MPS_THREADS=30:70
        proj\tMps=Per_Gpu  MPS_mem=4G:2048M        -> MPS=per-gpu,MPS_MEM=4G:2G
        MPS=per_node;;,MPS_MEM=25%                 -> MPS=per-node,MPS_MEM=25%
        MPS=1,MPS_THREADS=Auto,MPS_MEM=AUTO        -> MPS=per-node,MPS_THREADS=auto,MPS_MEM=auto
        MPS=on,MPS_PRIORITY=Below_Normal           -> MPS=per-node,MPS_PRIORITY=below-normal
        MPS=on,MPS_REPORT=YES                      -> MPS=per-node,MPS_REPORT=on
        MPS=on,MPS_REPORT=0                        -> MPS=per-node,MPS_REPORT=off
        MPS=NO,MPS_THREADS=25                      -> MPS=off,MPS_THREADS=25
        MPS=on,MPS=true                            -> MPS=per-node
        MPS=on,MPS_MEM=4G,mps_mem=4096M            -> MPS=per-node,MPS_MEM=4G
        MPS=Auto,MPS_MEM=4G                        -> MPS=auto,MPS_MEM=4G
        MPS=on,MPS_MEM=Job=25%,mps_mem=JOB=25%     -> MPS=per-node,MPS_MEM=job=25%
        MPS=per-gpu,MPS_BIND=closest               -> MPS=per-gpu,MPS_BIND=closest";
    assert_read(Syntax::Account, |text| Request::from_account(text), table);
}

#[test]
fn a_refused_account_names_token_reason_and_what_is_allowed() {
    let table = "
        MPS=                    -> MPS=: unknown word; allowed: {mode}
        MPS=50                  -> MPS=50: unknown word (did you mean MPS_THREADS=50?); allowed: {mode}
        MPS=4G                  -> MPS=4G: unknown word (did you mean MPS_MEM=4G?); allowed: {mode}
        MPS=pergpu              -> MPS=pergpu: unknown word (did you mean MPS=per-gpu?); allowed: {mode}
        MPS=on,mps=off          -> mps=off: given twice with different values; allowed: one value
        MPS_THREADS=25          -> MPS_THREADS=25: MPS itself is not asked for: add MPS=on
        MPS=on,MPS_THREAD=25    -> MPS_THREAD=25: unknown key (did you mean MPS_THREADS?); allowed: {all}
        MPS=on,MPS_COLOUR=red   -> MPS_COLOUR=red: unknown key; allowed: {all}
        MPS=off,MPS_THREADS=101 -> MPS_THREADS=101: above 100; allowed: {threads}
        MPS=on,MPS_THREADS=30:auto  -> MPS_THREADS=30:auto: not a plain decimal number; allowed: {threads}
        MPS=on,MPS_MEM=0=4G:1=2G    -> MPS_MEM=0=4G:1=2G: there is no limit by GPU; allowed: {memory}
        MPS=on,MPS_MEM=job=4G:0=2G  -> MPS_MEM=job=4G:0=2G: unknown unit; allowed: {memory}
        MPS=on,MPS_MEM=job:4G       -> MPS_MEM=job:4G: not a plain decimal number with a unit; allowed: {memory}
        MPS=on,MPS_PRIORITY=bellow-normal -> MPS_PRIORITY=bellow-normal: unknown word (did you mean MPS_PRIORITY=below-normal?); allowed: normal, below-normal
        MPS=per-gpu,MPS_BIND=none             -> MPS_BIND=none: with a daemon for each GPU a task sees one; allowed: block, cyclic, closest
        MPS=auto,MPS_BIND=block               -> MPS_BIND=block: auto may give the job no MPS, and then nothing binds its tasks; allowed: MPS=on";
    assert_read(Syntax::Account, |text| Request::from_account(text), table);
}

#[test]
fn the_length_counts_only_where_a_token_is_ours() {
    let fits = format!("{},MPS=true", "p".repeat(LONGEST - ",MPS=true".len()));
    assert_eq!(account(&fits).mode, Mode::PerNode);
    let refused = told(Request::from_account(format!("p{fits}")));
    let why = "the account with MPS: 1025 bytes long; allowed: at most 1024 bytes";
    assert_eq!(refused, why);
    // Bytes that are not UTF-8 grow when they become text. The bytes count.
    let mut bytes = b"MPS=true,".to_vec();
    bytes.resize(LONGEST, 0xff);
    assert_eq!(told(Request::from_account(&bytes)), "MPS=per-node");
}

#[test]
fn a_message_is_one_short_printable_line() {
    let long = "9:".repeat(300);
    for value in ["\u{1b}[2J", "1\u{7}\u{202e}", &long, "25\u{8}", "\0"] {
        let keys = Key::ALL.map(|key| key.row().token()).into_iter();
        for key in keys.chain(["MPS_EVIL".to_owned()]) {
            let refusal = told(Request::from_account(format!("MPS=on,{key}={value}x")));
            assert!(!refusal.starts_with("MPS=per-node"), "{refusal}");
            let is_short = refusal.len() < 300 && !refusal.chars().any(char::is_control);
            assert!(is_short, "{refusal:?}");
        }
    }
    let bytes = told(Request::from_account(b"MPS=on,MPS_THREADS=\xff\xfe"));
    assert!(bytes.contains("not a plain decimal number"), "{bytes}");
}

/// Takes flags as Slurm gives them to the plugin: `key` without a value, or `key=value`.
fn flags(words: &[&str]) -> (Result<(), Refusal>, Flags) {
    let mut flags = Flags::default();
    let mut take = |word: &&str| {
        let (name, value) = word.split_once('=').unzip();
        let is_it = |key: &Key| key.row().flag() == name.unwrap_or(word);
        flags.take(Key::ALL.into_iter().find(is_it).unwrap(), value)
    };
    let taken = words.iter().map(&mut take).fold(Ok(()), Result::and);
    (taken, flags)
}

#[test]
fn a_wrong_flag_is_refused_by_name_when_it_arrives_and_with_all_the_others() {
    let table = "
        mps-threads=101    -> --mps-threads=101: above 100; allowed: {threads}
        mps-threads        -> --mps-threads: needs a value; allowed: {threads}
        mps-threads=       -> --mps-threads: needs a value; allowed: {threads}
        mps-threads=(null) -> --mps-threads: needs a value; allowed: {threads}
        mps=50             -> --mps=50: unknown word (did you mean --mps-threads=50?); allowed: {mode}";
    for (word, message) in rows(table) {
        let (taken, flags) = flags(&["mps", "mps-report=off", word]);
        let message = filled(message, Syntax::Flags);
        assert_eq!(taken.unwrap_err().to_string(), message);
        assert_eq!(told(flags.request()), message);
    }
    for word in ["mps-mem=4G", "mps-report"] {
        let (taken, flags) = flags(&[word]);
        assert_eq!(taken, Ok(()), "alone it is right: the others may follow");
        let message = format!("--{word}: MPS itself is not asked for: add --mps");
        assert_eq!(told(flags.request()), message);
    }
}

#[test]
fn flags_are_bounded_together() {
    let threads = format!("mps-threads=1{}", ":1".repeat(300));
    let memory = format!("mps-mem=1G{}", ":1G".repeat(180));
    let (taken, both) = flags(&["mps", &threads, &memory]);
    assert_eq!(taken, Ok(()));
    let told = told(both.request());
    let begin = "the --mps flags: 1170 bytes long";
    assert!(told.starts_with(begin), "{told}");
}

#[test]
fn flags_and_the_shapes_slurm_gives_them() {
    let table = "
                                     ->
        mps=(null)                   -> MPS=per-node
        mps=                         -> MPS=per-node
        mps=per_gpu mps-threads=30,70    -> MPS=per-gpu,MPS_THREADS=30:70
        mps-mem=4G,2G:1G mps             -> MPS=per-node,MPS_MEM=4G:2G:1G
        mps-report mps                   -> MPS=per-node,MPS_REPORT=on
        mps mps-report=no                -> MPS=per-node,MPS_REPORT=off
        mps mps-threads=5 mps-threads=6  -> MPS=per-node,MPS_THREADS=6
        mps=maybe mps=per-gpu            -> MPS=per-gpu
        mps=off mps-threads=5            -> MPS=off,MPS_THREADS=5";
    let read = |words: &str| {
        let words: Vec<&str> = words.split_whitespace().collect();
        flags(&words).1.request()
    };
    assert_read(Syntax::Flags, read, table);
}

#[test]
fn hostile_flags_reach_the_program_as_tokens_it_refuses() {
    let long = format!("mps={}", "x".repeat(5000));
    let hostile: [&[&str]; 6] = [
        &["mps", "mps-threads=101"],
        &["mps", "mps-threads"],
        &["mps", "mps-mem=4G,MPS=off"],
        &["mps=on;MPS_THREADS=1 \n\u{202e}x"],
        &[&long],
        &["mps-threads=50"],
    ];
    for words in hostile {
        let flags = flags(words).1;
        assert!(flags.request().is_err(), "{flags:?}");
        let raw = flags.raw();
        assert!(raw.is_ascii() && !raw.contains([' ', '\n', ';']), "{raw}");
        assert!(Request::from_account(&raw).is_err(), "{raw}");
    }
}

#[test]
fn the_resource_speaks_the_same_words() {
    let table = "
        on+mem=job=24G                     -> MPS=per-node,MPS_MEM=job=24G
        mem=4G:2G+per-gpu                  -> MPS=per-gpu,MPS_MEM=4G:2G
        mps=on+MPS_THREADS=25+mps-report=1 -> MPS=per-node,MPS_THREADS=25,MPS_REPORT=on
                                           -> mps=: unknown word; allowed: {mode}
        on+threads=101                     -> mps=threads=101: above 100; allowed: {threads}
        threads=25                         -> mps=threads=25: MPS itself is not asked for: write mps=on+threads=25
        on+off                             -> mps=off: given twice with different values; allowed: one value
        on+thread=25                       -> mps=thread=25: unknown key (did you mean mps=threads?); allowed: {all}";
    let read = |text: &str| Request::from_resource(text).map(Some);
    assert_read(Syntax::Resource, read, table);
    let long = told(read(&"on+".repeat(400)));
    assert!(long.contains("1200 bytes long"), "{long}");
}

#[test]
fn account_and_resource_add_up_or_contradict() {
    let table = "
        MPS=on,MPS_THREADS=25 & on+mem=4G     -> MPS=per-node,MPS_THREADS=25,MPS_MEM=4G
        MPS=off & on                          -> MPS=off in the account: contradicts mps=per-node in the mps resource
        MPS=on,MPS_THREADS=25 & on+threads=30 -> MPS_THREADS=25 in the account: contradicts threads=30";
    for (both, message) in rows(table) {
        let (one, other) = both.split_once(" & ").unwrap();
        let merged = Request::merge(account(one), Request::from_resource(other).unwrap());
        let told = told(merged.map(Some));
        assert!(told.starts_with(message), "{told}");
    }
}

#[test]
fn a_request_may_be_given_as_the_flags_of_a_command_line() {
    let table = "
        --mps=per-gpu --mps-threads=30,70     -> MPS=per-gpu,MPS_THREADS=30:70
        --mps --mps-mem 4G  --mps-report      -> MPS=per-node,MPS_MEM=4G,MPS_REPORT=on
        --mps=on --mps=off                    -> MPS=off
        --mps-threads=25        -> --mps-threads=25: MPS itself is not asked for: add --mps
        --mps --mps-thread=25   -> --mps-thread: unknown flag (did you mean --mps-threads?); allowed: {all}
        --mps 50                -> 50: not a flag (did you mean --mps-threads=50?); allowed: {all}
        --gres=gpu:1            -> --gres: unknown flag; allowed: {all}";
    let read = |text: &str| Request::from_flags(text).map(Some);
    assert_read(Syntax::Flags, read, table);
}

#[test]
fn a_word_that_can_only_be_meant_for_us_is_refused() {
    let table = r#"
        proj,mps                -> mps | MPS=on
        MPS = true              -> MPS | MPS=on
        MPS:true                -> MPS:true | MPS=true
        --mps                   -> --mps | MPS=on
        --mps-threads=25        -> --mps-threads=25 | MPS_THREADS=25
        "MPS=true"              -> "MPS=true" | MPS=true
        MPS_THREADS             -> MPS_THREADS | MPS_THREADS=P
        MPS_MEM:4G              -> MPS_MEM:4G | MPS_MEM=4G
        MPS=true,THREADS=25     -> THREADS=25 | MPS_THREADS=25
        proj,mem=4G;mps=on      -> mem=4G | MPS_MEM=4G
        MPS=true,MPS-THREADS=25 -> MPS-THREADS=25 | MPS_THREADS=25"#;
    for (account, word) in rows(table) {
        let (word, meant) = word.split_once(" | ").unwrap();
        let refusal = Request::from_account(account).expect_err(account);
        assert_eq!(refusal.what, word, "{account}");
        let meant = format!("(did you mean {meant}?)");
        assert!(refusal.why.ends_with(&meant), "{account}: {}", refusal.why);
        assert!(!refusal.allowed.is_empty(), "{account}");
    }
}

#[test]
fn a_refusal_becomes_one_sentence_of_auto() {
    for (refusal, why) in [
        ("MPS: no GPU", "no GPU"),
        ("MPS_MEM=9G: x", "MPS_MEM=9G: x"),
    ] {
        let expected = format!("auto: no MPS, because {why}");
        assert_eq!(Mode::auto_without(refusal), expected);
    }
}

#[test]
fn a_project_that_the_site_names_is_no_request() {
    let projects = ["mps".to_owned(), "MPS:on".to_owned()];
    let read = |account| Request::from_account_of(account, &projects);
    assert_eq!(read("mps"), Ok(None));
    assert_eq!(read("MPS:on;lab"), Ok(None));
    assert_eq!(read("mps,MPS=on"), Ok(Some(account("MPS=on"))));
    assert!(read("MPS").is_err(), "another spelling");
    assert!(read("mps:true").is_err(), "more than the project");
}

/// Every text with a part of each list. `|` separates the parts of a list.
fn combined(lists: &[&str], joint: &str) -> Vec<String> {
    let longer = |all: Vec<String>, list: &&str| {
        let ends = |start| {
            list.split('|')
                .map(move |end| format!("{start}{joint}{end}"))
        };
        all.iter().flat_map(ends).collect()
    };
    lists.iter().fold(vec![String::new()], longer)
}

#[test]
fn every_request_survives_its_own_text() {
    let options = [
        "MPS=off|MPS=per-node|MPS=per-gpu|MPS=auto",
        "|MPS_THREADS=auto|MPS_THREADS=30:70.5:1|MPS_THREADS=1|MPS_THREADS=12.5|MPS_THREADS=100",
        "|MPS_MEM=auto|MPS_MEM=1M:4G:33.3%|MPS_MEM=1024T|MPS_MEM=33.3%|MPS_MEM=job=9%",
        "|MPS_PRIORITY=normal|MPS_PRIORITY=below-normal",
        "|MPS_REPORT=on|MPS_REPORT=off",
        "|MPS_BIND=auto,MPS_VISIBLE=ordinal|MPS_BIND=closest",
    ];
    // Options that exclude each other make no request.
    let all = combined(&options, ",").into_iter();
    let all: Vec<Request> = all.filter_map(|text| text.parse().ok()).collect();
    assert!(all.len() > 2000, "{}", all.len());
    for request in all {
        let text = request.to_string();
        let embedded = format!("proj;{text} more");
        for account in [&text, &embedded] {
            let read = Request::from_account(account);
            assert_eq!(read.unwrap().as_ref(), Some(&request), "{text}");
        }
        let words = request.in_resource_words();
        let read = Request::from_resource(&words).unwrap();
        assert_eq!(read, request, "{words}");
        let json = serde_json::to_string(&request).unwrap();
        let read: Request = serde_json::from_str(&json).unwrap();
        assert_eq!(read, request, "{json}");
    }
}

#[test]
fn no_text_makes_the_parser_panic() {
    // Every string of four of these pieces: the grammar's own, out of order.
    let pieces = "|MPS|MPS_THREADS|_MEM|=|,|:|%|0|9.|G|auto|\u{ff}|-|MIG-|\t";
    for text in combined(&[pieces; 4], "") {
        for start in ["", "MPS=on,MPS_MEM=", "MPS=on,MPS_THREADS="] {
            let text = format!("{start}{text}");
            if let Ok(Some(request)) = Request::from_account(&text) {
                assert_eq!(request.to_string().parse(), Ok(request), "{text}");
            }
            let _ = Request::from_resource(&text).map(|request| request.to_string());
        }
    }
}
