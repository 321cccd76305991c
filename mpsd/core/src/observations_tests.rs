use super::*;

#[test]
fn of_each_job_the_most_is_known_and_the_oldest_makes_room() {
    let gpu = GpuUuid::parse("GPU-01").unwrap();
    let job = |name: &str| JobId::parse(name).unwrap();
    let mut seen = Observations::default();
    let mut take = |name: &str, held_mib| {
        seen.take_job(&job(name), &gpu, [held_mib, 4096]);
    };
    take("7", 900);
    for n in 100..99 + MOST_JOBS {
        take(&n.to_string(), 1);
    }
    take("7", 800);
    take("8", 1);
    let read = Observations::parse(seen.line().as_bytes()).unwrap();
    let most = |name| read.of_job(&job(name), &gpu).map(|of| of.held_mib);
    let found = ["7", "7.0", "8", "100"].map(most);
    assert_eq!(found, [Some(900), Some(900), Some(1), None]);
    assert_eq!(seen.jobs.len(), MOST_JOBS);
    let other = GpuUuid::parse("GPU-02").unwrap();
    assert_eq!(seen.of_job(&job("7"), &other), None);
}

#[test]
fn observations_come_back_as_they_were_written() {
    let mut observations = Observations::default();
    let gpu = GpuUuid::parse("GPU-01").unwrap();
    observations.take_memory(&gpu, &[200, 400]);
    observations.take_memory(&gpu, &[900]);
    observations.last_words.push("server 7 died".to_owned());
    keep(&mut observations.refused, Refused { pid: 9, beside: 48 });
    let read = Observations::parse(observations.line().as_bytes());
    assert_eq!(read, Some(observations.clone()));
    let most = &observations.gpus[0];
    assert_eq!((most.most_clients, most.most_memory_mib), (2, 900));
    assert_eq!(most.most_client_mib, 900);
    // A longer line stood there before.
    let text = observations.line() + "old\": 1}";
    assert_eq!(Observations::parse(text.as_bytes()), Some(observations));
}

#[test]
fn a_job_that_joins_is_told_what_came_after_it() {
    let before = Observations {
        mpsd: 7,
        clients: 3,
        fatal: vec![1],
        last_words: vec!["old".to_owned()],
        ..Observations::default()
    };
    let mut now = before.clone();
    now.enter(9, 2);
    now.fatal.push(9);
    now.last_words.push("new".to_owned());
    let seen = now.clone().since(&before);
    assert_eq!((seen.clients, &seen.fatal[..]), (1, &[9][..]));
    assert_eq!(seen.last_words, ["new"]);
    // Another mpsd began at nothing.
    let mut again = now.clone();
    again.mpsd = 8;
    assert_eq!(again.clone().since(&before), again);
    assert_eq!(before.clone().since(&now).last_words, Vec::<String>::new());
    let both = seen.and(now);
    assert_eq!(both.last_words, ["new", "old", "new"]);
    let forged = Observations {
        clients: u64::MAX,
        most_clients: u64::MAX,
        ..Observations::default()
    };
    let both = both.and(forged);
    assert_eq!((both.clients, both.most_clients), (u64::MAX, u64::MAX));
}

#[test]
fn what_a_user_may_write_is_bounded_and_printable() {
    let many = (0..1000).map(|n| format!("{n}\u{1b}[2J\n{}", "x".repeat(5000)));
    let lost = DaemonLost {
        pid: 1,
        how: "\u{7}\n".repeat(1000),
    };
    let hostile = Observations {
        last_words: many.collect(),
        fatal: vec![1; 1000],
        pids: vec![1; 10_000],
        killed: vec![Killed { pid: 1, signal: 9 }; 1000],
        daemons_lost: vec![lost; 1000],
        ..Observations::default()
    };
    let observations = Observations::parse(hostile.line().as_bytes()).unwrap();
    assert!(observations.last_words.len() == MOST && observations.fatal.len() == MOST);
    assert!(observations.pids.len() == MOST_PIDS && observations.killed.len() == MOST);
    let clean = |text: &String| !text.contains(char::is_control) && text.chars().count() <= 503;
    assert!(observations.last_words.iter().all(clean));
    assert_eq!(observations.daemons_lost.len(), MOST);
    let mut lost = observations.daemons_lost.iter();
    assert!(lost.all(|one| clean(&one.to_string())));
    let none = r#"|{|null|7|{"clients": -1}|{"gpus": [{"uuid": "/etc"}]}"#;
    for none in none.split('|').chain(["\u{0}"]) {
        assert_eq!(Observations::parse(none.as_bytes()), None, "{none:?}");
    }
}

#[test]
fn what_a_user_may_write_about_its_use_is_bounded_and_plausible() {
    let gpu = |n: u32| {
        format!(
            r#"{{"uuid":"GPU-{n:08}","busy":[{}null],"busy_percent":255,"sm_percent":101,"samples":{max},
            "energy_mj":{max},"energy_ms":0}}"#,
            "200,".repeat(5000),
            max = u64::MAX
        )
    };
    let gpus: Vec<String> = (0..300).map(gpu).collect();
    let clients = "9,".repeat(5000);
    let text = format!(
        r#"{{"usage":{{"step_ms":{},"clients":[{clients}1],"gpus":[{}]}}}}"#,
        u64::MAX,
        gpus.join(",")
    );
    let text = text.replace('\n', "");
    let usage = Observations::parse(text.as_bytes()).unwrap().usage.unwrap();
    assert_eq!(usage.clients.len(), usage::BUCKETS);
    assert_eq!(usage.gpus.len(), MOST_GPUS);
    assert_eq!(usage.length_ms(), u64::MAX);
    let gpu = &usage.gpus[0];
    assert_eq!(gpu.busy, [Some(100); usage::BUCKETS]);
    assert_eq!([gpu.busy_percent, gpu.used_percent()], [Some(100); 2]);
    assert_eq!(gpu.watts(), None, "no time");
    let line = Observations {
        usage: Some(usage),
        ..Observations::default()
    }
    .line();
    assert!(line.len() < LONGEST, "{}", line.len());
}

#[test]
fn of_the_clients_the_youngest_are_known() {
    let mut observations = Observations::default();
    for pid in 1..=600 {
        observations.enter(pid, 3);
    }
    assert_eq!((observations.clients, observations.most_clients), (600, 3));
    assert_eq!(observations.pids.len(), MOST_PIDS);
    let known = [600, 1, 601].map(|pid| observations.is_client(pid));
    assert_eq!(known, [true, false, false]);
    assert!(observations.line().len() < LONGEST / 2);
}
