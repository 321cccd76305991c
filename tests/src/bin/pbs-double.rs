//! The commands of a PBS, chosen by the program's name. The directory `/var/srv/pbs` is the server.
//! Refusals, exit codes and texts are the recorded ones (docs/facts/pbs.md#pbsnodes): above all,
//! Torque's pbsnodes ends with 0 after a refusal.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tests::double::look::host;

const SERVER: &str = "/var/srv/pbs";

fn main() -> ExitCode {
    let mut words = std::env::args();
    let called = words.next().unwrap_or_default();
    let name = called.rsplit('/').next().unwrap_or_default();
    let arguments: Vec<String> = words.collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    log(name, &words);
    ExitCode::from(match name {
        "pbsnodes" => pbsnodes(&words),
        "qstat" => qstat(&words),
        "qalter" => qalter(&words),
        "printjob" => printjob(&words),
        "qmgr" => qmgr(&words),
        "momctl" => 0,
        "qsub" => qsub(&words),
        "qselect" => qselect(&words),
        "qdel" => qdel(&words),
        _ => 64,
    })
}

fn at(path: &str) -> PathBuf {
    Path::new(SERVER).join(path)
}

fn text(path: &str) -> Option<String> {
    let text = fs::read_to_string(at(path)).ok()?;
    Some(text.trim_end().to_owned())
}

fn print(path: &str) -> Option<()> {
    text(path).map(|all| println!("{all}"))
}

fn remove(path: &str) -> Option<()> {
    fs::remove_file(at(path)).ok()
}

fn keep(path: &str, text: &str) -> Option<()> {
    let file = at(path);
    fs::create_dir_all(file.parent()?).ok()?;
    fs::write(file, text).ok()
}

fn log(name: &str, words: &[&str]) {
    let mut file = fs::OpenOptions::new();
    let file = file.create(true).append(true).open(at("calls"));
    let mut file = file.expect("the log of calls");
    writeln!(file, "{} {name} {}", host(), words.join(" ")).expect("the log of calls");
}

fn torque() -> bool {
    text("product").as_deref() == Some("torque")
}

/// Whether this is root on the server's host, or a listed operator or manager.
fn is_operator() -> bool {
    let who = users::get_current_username().unwrap_or_default();
    let who = who.to_string_lossy();
    if who == "root" && text("server") == Some(host()) {
        return true;
    }
    let me = format!("{who}@{}", host());
    let is_me = |one: &str| one == me || one == format!("{who}@*");
    text("operators").is_some_and(|list| list.split([',', '\n']).any(is_me))
}

fn pbsnodes(words: &[&str]) -> u8 {
    let torque = torque();
    if let ["-H", host] = words {
        for (name, attributes) in vnodes() {
            if name.split('[').next() == Some(host) {
                println!("{name}\n     {}\n", attributes.replace('\n', "\n     "));
            }
        }
        return 0;
    }
    let (mut offline, mut online, mut note, mut names) = (false, false, None, Vec::new());
    let mut rest = words.iter();
    while let Some(word) = rest.next() {
        match (*word, torque) {
            ("-o", _) => offline = true,
            ("-c", true) | ("-r", false) => online = true,
            ("-c", false) => return 0,
            ("-N", true) | ("-C", false) => note = rest.next().copied(),
            (flag, _) if flag.starts_with('-') => {
                let flag = flag.trim_start_matches('-');
                eprintln!("pbsnodes: invalid option -- '{flag}'");
                return 1;
            }
            (name, _) => names.push(name),
        }
    }
    let names = names.into_iter();
    let codes = names.map(|name| one_node(name, offline, online, note));
    codes.max().unwrap_or(0)
}

fn vnodes() -> BTreeMap<String, String> {
    let files = fs::read_dir(at("vnodes")).into_iter().flatten().flatten();
    let names = files.map(|file| file.file_name().to_string_lossy().into_owned());
    let texts = names.map(|name| (text(&format!("vnodes/{name}")), name));
    let known = texts.filter_map(|(text, name)| Some((name, text?)));
    known.collect()
}

/// As a real one prints: a list has its other members in lines of their own.
fn print_nodes() {
    for (name, attributes) in vnodes() {
        println!("#\ncreate node {name}");
        let lines = attributes.lines();
        for line in lines.filter(|line| !line.starts_with("sharing")) {
            let (key, value) = line.split_once(" = ").unwrap_or((line, ""));
            for (n, one) in value.split(',').enumerate() {
                let sign = if n == 0 { "=" } else { "+=" };
                println!("set node {name} {key} {sign} {one}");
            }
        }
    }
}

fn change_node(name: &str, key: &str, value: Option<&str>) -> Option<()> {
    let file = format!("vnodes/{name}");
    let old = text(&file)?;
    let start = format!("{key} ");
    let kept = old.lines().filter(|line| !line.starts_with(&start));
    let new = value.map(|value| format!("{key} = {value}"));
    let lines: Vec<String> = kept.map(str::to_owned).chain(new).collect();
    keep(&file, &(lines.join("\n") + "\n"))
}

fn one_node(name: &str, offline: bool, online: bool, note: Option<&str>) -> u8 {
    let torque = torque();
    let file = format!("nodes/{name}");
    let Some(node) = text(&file) else {
        eprintln!("pbsnodes: Unknown node  - {name}");
        return u8::from(!torque);
    };
    let (mut state, why) = node.split_once('\n').unwrap_or((&node, ""));
    let mut why = why.to_owned();
    if !offline && !online && note.is_none() {
        let key = if torque { "note" } else { "comment" };
        println!("{name}\n     state = {state}\n     np = 8");
        if !why.is_empty() {
            println!("     {key} = {why}");
        }
        println!();
        return 0;
    }
    if !is_operator() {
        eprintln!("pbsnodes: Unauthorized Request  {name}");
        return u8::from(!torque);
    }
    if offline {
        state = "offline";
    }
    if online {
        state = "free";
    }
    if let Some(text) = note {
        let longest = match torque {
            true if text == "n" => 0,
            true => 255,
            false => 79,
        };
        why = text.chars().take(longest).collect();
    }
    u8::from(keep(&file, &format!("{state}\n{why}")).is_none())
}

fn qstat(words: &[&str]) -> u8 {
    let Some(id) = words.iter().find(|word| !word.starts_with('-')) else {
        return 0;
    };
    let Some(status) = text(&format!("jobs/{id}")) else {
        eprintln!("qstat: Unknown Job Id {id}");
        return 153;
    };
    println!("Job Id: {id}\n{status}\n");
    0
}

/// Puts the job into `queue/ID`, a word a line, then an empty line and the script. The test plays
/// the server.
fn qsub(words: &[&str]) -> u8 {
    if words == ["--version"] {
        match torque() {
            true => eprintln!("Version: 6.1.3\nCommit: b0e5a0d"),
            false => println!("pbs_version = 23.06.06"),
        }
        return 0;
    }
    let Ok(script) = std::io::read_to_string(std::io::stdin()) else {
        return 1;
    };
    let number = fs::read_dir(at("queue")).map_or(0, Iterator::count);
    let id = format!("{number}.{}", text("server").unwrap_or_default());
    let job = format!("{}\n\n{script}", words.join("\n"));
    let kept = keep(&format!("jobs/{id}"), "    job_state = Q");
    let kept = kept.and(keep(&format!("queue/{id}"), &job));
    if at("qsub-hangs").exists() {
        // The job is in the queue, but the server's answer does not come back. The caller ends
        // this.
        std::thread::sleep(std::time::Duration::from_secs(120));
    }
    println!("{id}");
    u8::from(kept.is_none())
}

fn qselect(words: &[&str]) -> u8 {
    let ["-N", name] = words else {
        return 2;
    };
    for entry in fs::read_dir(at("queue")).into_iter().flatten().flatten() {
        let job = fs::read_to_string(entry.path()).unwrap_or_default();
        if job.starts_with(&format!("-N\n{name}\n")) {
            println!("{}", entry.file_name().to_string_lossy());
        }
    }
    0
}

fn qdel(words: &[&str]) -> u8 {
    let id = words.first().copied().unwrap_or_default();
    let deleted = keep(&format!("deleted/{id}"), "");
    let deleted = deleted.and(keep(&format!("jobs/{id}"), "    job_state = C"));
    u8::from(deleted.is_none())
}

/// `-W comment="TEXT" JOB`, for operators only.
fn qalter(words: &[&str]) -> u8 {
    let ["-W", attribute, id] = words else {
        return 2;
    };
    let quoted = |text: &str| Some(text.strip_prefix('"')?.strip_suffix('"')?.to_owned());
    let Some(comment) = attribute.strip_prefix("comment=").and_then(quoted) else {
        return 2;
    };
    if !is_operator() {
        eprintln!("qalter: Unauthorized Request  MSG=operation not permitted {id}");
        return 159;
    }
    u8::from(keep(&format!("comments/{id}"), &comment).is_none())
}

fn printjob(words: &[&str]) -> u8 {
    let Some(Ok(text)) = words.first().map(fs::read_to_string) else {
        eprintln!("printjob: cannot open {words:?}");
        return 1;
    };
    print!("{text}");
    0
}

/// Of several `-c` only the last counts (recorded).
fn qmgr(words: &[&str]) -> u8 {
    let last = words.iter().rposition(|word| *word == "-c");
    let Some(line) = last.and_then(|at| words.get(at + 1)) else {
        return 64;
    };
    let parts: Vec<&str> = line.split_whitespace().collect();
    if !matches!(parts.first(), Some(&("list" | "export" | "print"))) && !is_operator() {
        eprintln!("qmgr obj= svr=default: Unauthorized Request");
        return 1;
    }
    // Recorded: any host but the server's, even if root is an operator there.
    if parts.get(1) == Some(&"hook") && text("hooks-denied").is_some() {
        let host = host();
        eprintln!("root@{host} is unauthorized to access hooks data from server pbsserver");
        return 1;
    }
    // Recorded: this many creations after a deletion find the name still taken.
    let pending = text("hooks-pending").map_or(0, |count| count.parse::<u32>().unwrap_or(0));
    if let (["create", "hook", name], 1..) = (parts.as_slice(), pending) {
        let _ = keep("hooks-pending", &(pending - 1).to_string());
        eprintln!(
            "qmgr obj={name} svr=default: hook name '{name}' is pending delete, try another name"
        );
        return 1;
    }
    let done = match parts.as_slice() {
        ["list", "server"] => {
            println!("Server x");
            if let Some(list) = text("operators") {
                println!("    operators = {}", list.replace('\n', ","));
            }
            Some(())
        }
        ["list", "hook", name] => {
            text(&format!("hooks/{name}.HK")).map(|all| println!("Hook {name}\n{all}"))
        }
        ["export", "hook", name, "application/x-config", "default"] => {
            print(&format!("hooks/{name}.CF"))
        }
        ["export", "hook", name, "application/x-python", "default"] => {
            print(&format!("hooks/{name}.PY"))
        }
        ["list", "resource", name] => print(&format!("resources/{name}")),
        ["create", "resource", name, kind] => keep(&format!("resources/{name}"), kind),
        ["delete", "resource", name] => remove(&format!("resources/{name}")),
        ["print", "node", "@default"] => {
            print_nodes();
            Some(())
        }
        // Recorded: a vnode with jobs stays.
        ["delete", "node", name] if text(&format!("busy/{name}")).is_none() => {
            remove(&format!("vnodes/{name}"))
        }
        ["set", "node", name, key, "=", value] => change_node(name, key, Some(value)),
        ["unset", "node", name, key] => change_node(name, key, None),
        ["create", "hook", name] => {
            let new = "    enabled = false\n    alarm = 30\n";
            keep(&format!("hooks/{name}.HK"), new)
        }
        ["import", "hook", name, kind, "default", file] if *kind == "application/x-python" => {
            let body = fs::read_to_string(file).ok();
            body.and_then(|body| keep(&format!("hooks/{name}.PY"), &body))
        }
        ["set", "hook", name, key, "=", ..] => set_hook(
            name,
            key,
            line.split_once('=').map_or("", |(_, value)| value.trim()),
        ),
        ["delete", "hook", name] => {
            remove(&format!("hooks/{name}.HK")).and_then(|()| remove(&format!("hooks/{name}.PY")))
        }
        ["set", "server", "operators", "+=", who] => {
            let list = text("operators").unwrap_or_default();
            keep("operators", &format!("{list}\n{who}"))
        }
        _ => None,
    };
    if let (Some(()), ["create" | "import" | "set" | "delete", "hook", name, ..]) =
        (done, parts.as_slice())
    {
        send_to_mom(name);
    }
    let object = parts.get(2).unwrap_or(&"");
    let is_unknown = || text(&format!("hooks/{object}.HK")).is_none();
    if done.is_none() && parts.get(1) == Some(&"hook") && is_unknown() {
        // Read: hook_func.c.
        eprintln!("qmgr obj={object} svr=default: hook not found");
    } else if done.is_none() {
        eprintln!("qmgr obj={object} svr=default: Unknown or invalid: {line}");
    }
    u8::from(done.is_none())
}

/// The mom's copy: `NAME=VALUE` lines, and the hook's text. It comes late by `hooks-late` seconds:
/// 4 (recorded).
fn send_to_mom(name: &str) {
    let late = text("hooks-late");
    for kind in ["HK", "PY"] {
        let to = format!("/var/spool/pbs/mom_priv/hooks/{name}.{kind}");
        let copy = late.as_ref().map_or(to.clone(), |_| format!("{to}.late"));
        if let Some(late) = &late {
            let moves = format!("exec >/dev/null 2>&1; sleep {late}; mv {copy} {to}");
            let mut later = std::process::Command::new("setsid");
            let _ = later.args(["--fork", "sh", "-c", &moves]).status();
        }
        let _ = match text(&format!("hooks/{name}.{kind}")) {
            Some(text) if kind == "HK" => {
                let lines = text.lines().map(str::trim);
                let lines = lines.map(|line| line.replacen(" = ", "=", 1) + "\n");
                fs::write(copy, lines.collect::<String>())
            }
            Some(text) => fs::write(copy, text),
            None => fs::remove_file(copy),
        };
    }
}

fn set_hook(name: &str, key: &str, value: &str) -> Option<()> {
    let file = format!("hooks/{name}.HK");
    let old = text(&file)?;
    let is_other = |line: &&str| line.split('=').next().map(str::trim) != Some(key);
    let kept = old.lines().filter(is_other);
    let kept: String = kept.map(|line| format!("{line}\n")).collect();
    let value = match key {
        "enabled" => value.to_lowercase(),
        _ => value.trim_matches('"').to_owned(),
    };
    keep(&file, &format!("{kept}    {key} = {value}"))
}
