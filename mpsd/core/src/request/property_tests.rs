use super::*;
use crate::bind::{Bind, BindMode, DeviceNames};
use crate::limits::{Amount, Percent, Priority};

fn percent(text: &str) -> Percent {
    text.parse().unwrap()
}

/// A small generator in place of a dependency: every combination of some values of every field.
fn every_request() -> Vec<Request> {
    let uuid = "GPU-200b4359-5562-4e0e-ed46-88b581af6524";
    let amounts = [
        Amount::Mebibytes(1),
        Amount::Mebibytes(4096),
        Amount::Mebibytes(1 << 30),
        Amount::Percent(percent("33.3")),
    ];
    let mut threads = vec![
        None,
        Some(Threads::Auto),
        Some(Threads::PerRank(vec![
            percent("30"),
            percent("70.5"),
            percent("1"),
        ])),
    ];
    threads.extend(["1", "12.5", "100"].map(|text| Some(Threads::Uniform(percent(text)))));
    let mut memory = vec![
        None,
        Some(MemoryLimit::Auto),
        Some(MemoryLimit::PerRank(amounts.to_vec())),
    ];
    memory.extend(amounts.map(|amount| Some(MemoryLimit::Uniform(amount))));
    let selectors = [
        GpuSelector::Index(0),
        GpuSelector::Index(u32::MAX),
        uuid.parse().unwrap(),
    ];
    memory.push(Some(MemoryLimit::PerGpu(
        selectors.into_iter().zip(amounts).collect(),
    )));
    let mut all = Vec::new();
    for mode in [Mode::Off, Mode::PerNode, Mode::PerGpu] {
        for priority in [None, Some(Priority::Normal), Some(Priority::BelowNormal)] {
            for verify in [None, Some(true), Some(false)] {
                let plain = Request {
                    priority,
                    verify,
                    ..Request::new(mode)
                };
                let binds = [None, Some(Bind::of(BindMode::Auto)), "closest+peers".parse().ok()];
                for (bind, visible) in binds.into_iter().zip([Some(DeviceNames::Ordinal), None, None]) {
                    let bound = Request {
                        bind: bind.filter(|bind| mode != Mode::PerGpu || !bind.peers),
                        visible,
                        ..plain.clone()
                    };
                    let words = bound.in_resource_words();
                    assert_eq!(Request::from_resource(&words), Ok(bound.clone()), "{words}");
                    all.push(bound);
                }
                all.extend([1, 60].map(|replicas| Request {
                    replicas: Some(replicas),
                    ..plain.clone()
                }));
                all.extend(["16", "8:16:32"].map(|sms| Request {
                    sms: sms.parse().ok(),
                    ..plain.clone()
                }));
                for threads in &threads {
                    let with = |memory: &Option<MemoryLimit>| Request {
                        threads: threads.clone(),
                        memory: memory.clone(),
                        ..plain.clone()
                    };
                    all.extend(memory.iter().map(with));
                }
            }
        }
    }
    all
}

#[test]
fn every_request_survives_its_own_text() {
    let all = every_request();
    assert!(all.len() > 1000, "{}", all.len());
    for request in all {
        let text = request.to_string();
        assert_eq!(Request::from_account(&text), Ok(Some(request.clone())), "{text}");
        assert_eq!(
            Request::from_account(format!("proj;{text} more")),
            Ok(Some(request.clone())),
            "{text}"
        );
        let json = serde_json::to_string(&request).unwrap();
        assert_eq!(serde_json::from_str::<Request>(&json).unwrap(), request, "{json}");
    }
}

#[test]
fn no_text_makes_the_parser_panic() {
    // Every string of up to four of these pieces: the grammar's own, out of order.
    let pieces = [
        "MPS",
        "MPS_THREADS",
        "_MEM",
        "=",
        ",",
        ":",
        "%",
        "0",
        "9.",
        "G",
        "auto",
        "\u{ff}",
        "-",
        "MIG-",
        "\t",
    ];
    for first in pieces {
        for second in pieces {
            for third in pieces {
                for fourth in pieces {
                    let text = [first, second, third, fourth].concat();
                    let texts = [
                        text.clone(),
                        format!("MPS=on,MPS_MEM={text}"),
                        format!("MPS=on,MPS_THREADS={text}"),
                    ];
                    for text in texts {
                        if let Ok(Some(request)) = Request::from_account(&text) {
                            assert_eq!(request.to_string().parse(), Ok(request), "{text}");
                        }
                        let _ = Request::from_resource(&text).map(|request| request.to_string());
                    }
                }
            }
        }
    }
}
