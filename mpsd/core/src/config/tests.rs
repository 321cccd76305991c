use super::*;

const SHIPPED: &str = include_str!("../../../../etc/mpsd/mpsd.toml");

fn settings(text: &str) -> Settings {
    settings_of("n1", text)
}

fn settings_of(node: &str, text: &str) -> Settings {
    Settings::parse(text, node).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn error(text: &str) -> String {
    match Settings::parse(text, "n1") {
        Err(error) => error.to_string(),
        Ok(_) => panic!("accepted: {text}"),
    }
}

/// The shipped file with its defaults, and below them its examples, made active.
fn uncommented() -> String {
    let active = |line: &str| match line.strip_prefix('#') {
        Some(rest) if rest.starts_with(|c: char| c.is_ascii_lowercase() || c == '[') => {
            rest.to_owned()
        }
        _ => line.to_owned(),
    };
    SHIPPED.lines().map(active).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_shipped_file_changes_nothing_and_documents_every_key() {
    let empty = settings("");
    assert_eq!(settings(SHIPPED), empty);
    for origin in &empty.origins {
        let (table, key) = origin.key.split_once('.').unwrap_or(("", origin.key));
        let text = match table {
            "" => SHIPPED,
            table => SHIPPED.split_once(&format!("\n[{table}]\n")).unwrap().1,
        };
        let is_its = |line: &&str| line.starts_with(&format!("#{key} = "));
        let line = text.lines().find(is_its).expect(origin.key);
        if let Some(value) = &origin.value {
            assert_eq!(line, format!("#{key} = {value}"), "the documented default");
        }
    }
}

#[test]
fn the_shipped_examples_are_what_they_say() {
    let gpu = settings_of("gpu042", &uncommented());
    assert_eq!(gpu.compute_mode, ComputeModeRule::Keep);
    let found = (gpu.replicas, gpu.ceilings.memory);
    assert_eq!(found, (Some(7), "70G".parse().ok()));
    let other = settings_of("other", &uncommented());
    let rules = (other.compute_mode, other.replicas);
    assert_eq!(rules, (ComputeModeRule::Exclusive, Some(4)));
    assert_eq!(other.slurm.auto_constraint.as_deref(), Some("mps"));
}

const SECTIONS: &str = r#"
compute_mode = "keep"
control = "/opt/%n/mps"
max_clients = 60
defaults.threads = 25

[[node]]
hosts = "gpu[001-100],x1"
max_clients = 16
run_dir = "/tmp/%n/run"

[[node]]
hosts = "gpu[007-009]"
max_clients = 32
defaults.threads = "30:70"

[[node]]
hosts = "gpu007"
compute_mode = "exclusive"
"#;

#[test]
fn later_sections_override_earlier_ones() {
    for (node, clients, mode) in [
        ("login", 60, ComputeModeRule::Keep),
        ("gpu001", 16, ComputeModeRule::Keep),
        ("gpu008", 32, ComputeModeRule::Keep),
        ("gpu007", 32, ComputeModeRule::Exclusive),
    ] {
        let settings = settings_of(node, SECTIONS);
        let found = (settings.max_clients, settings.compute_mode);
        assert_eq!(found, (Some(clients), mode), "{node}");
    }
}

#[test]
fn paths_take_the_nodes_name_and_values_tell_their_line() {
    let settings = settings_of("gpu007.cluster.example", SECTIONS);
    let [run, control] = ["tmp", "opt"].map(|top| format!("/{top}/gpu007.cluster.example"));
    assert_eq!(settings.paths.run(), Path::new(&run).join("run"));
    assert_eq!(settings.control, Path::new(&control).join("mps"));
    let of = |key: &str| settings.origins.iter().find(|origin| origin.key == key);
    for (key, value, line) in [
        ("max_clients", "32", Some(14)),
        ("defaults.threads", "\"30:70\"", Some(15)),
        ("compute_mode", "\"exclusive\"", Some(19)),
        ("state_dir", "\"/var/lib/mpsd\"", None),
    ] {
        let value = Some(value.to_owned());
        assert_eq!(of(key), Some(&Origin { key, value, line }));
    }
    let shown = settings.explain(Path::new("/etc/mpsd/mpsd.toml"));
    for said in [
        "max_clients = 32 ",
        "# /etc/mpsd/mpsd.toml:14\n",
        "replicas is not set ",
    ] {
        assert!(shown.contains(said), "{shown}");
    }
    let long = "n".repeat(300);
    for name in "|.|..|a/b|-x|n 1|n\u{e9}".split('|').chain([&*long]) {
        assert!(Settings::parse("", name).is_err(), "{name}");
    }
}

#[test]
fn an_error_names_file_line_column_and_what_is_known() {
    let table = r#"
        max_client = 4 -> 1:1: unknown key 'max_client' (did you mean 'max_clients'?); known: run_dir, state_dir, control,
        |[slurm]|  requeu = true -> 3:3: unknown key 'requeu' (did you mean 'requeue'?); known: exec, conf, requeue, requeue_limit,
        [slrum] -> 1:2: unknown key 'slrum' (did you mean 'slurm'?); known: run_dir
        requeue_limit = 3 -> 1:1: unknown key 'requeue_limit' (did you mean 'slurm.requeue_limit'?); known: run_dir
        compute_mode = "keap" -> 1:16: compute_mode: unknown word 'keap' (did you mean 'keep'?), expected 'exclusive' or 'keep'
        compute_mode = "both" -> 1:16: compute_mode: unknown word 'both', expected 'exclusive' or 'keep'
        max_clients = "many" -> 1:15: max_clients: invalid type: string "many", expected a whole number
        max_clients = 0 -> 1:15: max_clients: 0 is out of range; allowed: 1 to 1024
        slurm.requeue = 1 -> 1:17: slurm.requeue: invalid type: integer '1', expected true or false
        defaults.threads = 101 -> 1:20: defaults.threads: above 100; allowed: a number from 1 to 100
        defaults.threads = nan -> 1:20: defaults.threads: not a plain decimal number
        defaults.mem = 4 -> 1:16: defaults.mem: a size needs a unit; allowed: 4G
        ceilings.threads = "30:70" -> 1:20: ceilings.threads: not a plain decimal number
        replicas = 61 -> 1:12: replicas: 61 is out of range; allowed: 1 to 60
        deadline_s = 2.5 -> 1:14: deadline_s: invalid type: floating point '2.5', expected a whole number
        run_dir = "run" -> 1:11: run_dir: not an absolute path without '..'
        run_dir = "/run/../etc" -> 1:11: run_dir: not an absolute path without '..'
        run_dir = "/run/%h" -> 1:11: run_dir: '%' is followed by something else than 'n'
        nvml = "lib/x.so" -> 1:8: nvml: not an absolute path without '..', nor a library's name
        hosts = "x" -> 1:9: belongs into a [[node]] section
        [[node]]|replicas = 4 -> 1:1: a [[node]] section needs hosts
        [[node]]|hosts = "a[" -> 2:9: 'a[' is no host list
        [[node]]|hosts = "a"|thread = 1 -> 3:1: unknown key 'thread' (did you mean 'defaults.threads'?)
        [[node]]|hosts = "a"|[[node.node]]|hosts="b" -> 3:1: a [[node]] section within another
        max_clients = 4|max_clients = 5 -> 2:1: duplicate key 'max_clients': each key and each [table] stands once
        [slurm]|[pbs]|[slurm] -> 3:2: duplicate key 'slurm':
        [slurm]|compute_mode = "keep" -> 2:1: unknown key 'compute_mode' (did you mean 'compute_mode' above the first [table]?)
        a b -> 1:3:
        compute_mode = keep -> 1:16: compute_mode: string values must be quoted, expected literal string; allowed: as in 'compute_mode = "exclusive"'
        [slurm] # x|requeue = maybe -> 2:11: slurm.requeue: string values must be quoted, expected literal string; allowed: as in 'requeue = true'
        [[node]]|hosts = "a"|max_clients = many -> 3:15: max_clients: string values must be quoted, expected literal string; allowed: as in 'max_clients = 48'
        [[node]]|hosts = a -> 2:9: string values must be quoted
        slurm = 3 -> 1:9: slurm is a table
        [node]|hosts = "a" -> 1:2: node is written as [[node]]
        node = [3] -> 1:9: [[node]] is a table
        "".run_dir = "/x" -> 1:1: unknown key ''
        "a\u001b[2J" = 1 -> 1:1: unknown key 'a?[2J'
        slurm.auto_partitions = ["a", "b c"] -> 1:31: slurm.auto_partitions: not a name; allowed: letters
        slurm.auto_partitions = "a" -> 1:25: slurm.auto_partitions: invalid type: string "a", expected a list in brackets
        wrong = 1|deadline_s = 0|[ceilings]|mem = 4 -> 1:1: unknown key 'wrong'
        replicas = 0|deadline_s = 0 -> 1:12: replicas: 0 is out of range"#;
    for row in table.trim().lines() {
        let (text, message) = row.trim().split_once(" -> ").unwrap();
        let text = &text.replace('|', "\n");
        let error = error(text);
        let expected = format!("/etc/mpsd/mpsd.toml:{message}");
        let is_good = error.starts_with(&expected) && !error.contains('\n');
        assert!(is_good, "{text}\n  is {error}\n not {expected}");
    }
}

#[test]
fn only_roots_file_is_obeyed() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("mpsd.toml");
    let missing = Settings::load(&path, "n").unwrap_err().to_string();
    assert!(missing.contains("mpsd.toml': ENOENT"), "{missing}");
    let mode =
        |mode| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    std::fs::write(&path, "max_clients = 7").unwrap();
    mode(0o644);
    let settings = Settings::load(&path, "n").unwrap();
    assert_eq!(settings.max_clients, Some(7));
    mode(0o664);
    assert!(Settings::load(&path, "n").is_err(), "writable by the group");
    mode(0o644);
    std::fs::write(&path, "#".repeat(LONGEST + 1)).unwrap();
    assert!(Settings::load(&path, "n").is_err(), "too long");
    std::fs::write(&path, b"# \xff").unwrap();
    let binary = Settings::load(&path, "n").unwrap_err().to_string();
    assert!(binary.ends_with("is not UTF-8 text"), "{binary}");
    assert!(Settings::load(dir.path(), "n").is_err(), "a directory");
}

#[test]
fn the_job_comes_before_the_defaults() {
    let config = "defaults = {threads = 12.5, mem = \"4G\", report = true, bind = \"block\"}";
    let filled = "MPS=per-node,MPS_THREADS=12.5,MPS_MEM=4G,MPS_BIND=block,MPS_REPORT=on";
    let own = "MPS=per-node,MPS_THREADS=12.5,MPS_MEM=8G,MPS_BIND=block,MPS_REPORT=off";
    for (account, whole) in [
        ("MPS=on", filled),
        ("MPS=on,MPS_MEM=8G,MPS_REPORT=no", own),
        ("MPS=off", "MPS=off"),
    ] {
        let request: crate::Request = account.parse().unwrap();
        assert_eq!(settings(config).with_defaults(&request).to_string(), whole);
    }
    let ceiling = settings("ceilings.threads = 50").ceilings.threads;
    assert_eq!(ceiling, crate::Percent::from_tenths(500));
}

#[test]
fn a_file_with_errors_still_names_its_directories() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("mpsd.toml");
    let named = |text: &str| {
        std::fs::write(&path, text).unwrap();
        directories_alone(&path, "n1").run_dir
    };
    let own = "run_dir = \"/run/%n/mps\"\n";
    let errors = r#"max_clients = 999999
no_such_key = 1
compute_mode = "other"
deadline_s =
x x
control = "/unclosed
[[node]]|hosts = 3
[slurm]|x
[[["#;
    for error in errors.lines().map(|error| error.replace('|', "\n")) {
        let found = named(&format!("{own}{error}\n"));
        assert_eq!(found, Path::new("/run/n1/mps"), "{error}");
    }
    let of_section = named("x x\n[[node]]\nhosts = \"n1\"\nrun_dir = \"/run/a\"\n");
    assert_eq!(of_section, Path::new("/run/a"));
    for none in ["run_dir = \"/run/../etc\"\n", ""] {
        assert_eq!(named(none), Settings::usual().run_dir);
    }
}
