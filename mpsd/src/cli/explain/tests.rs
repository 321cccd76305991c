use super::*;

/// What NVIDIA's programs wrote.
const TRANSCRIPT: &str = include_str!("../../../../docs/facts/mps-580-transcript.txt");

fn explained(what: &str) -> Result<String, Failure> {
    let what = Some(what.into());
    Explain { what }.run()
}

#[test]
fn every_error_of_mps_is_known_by_number_and_by_both_names() {
    for (code, runtime, driver) in [
        (46, "DevicesUnavailable", "DEVICE_UNAVAILABLE"),
        (100, "NoDevice", "NO_DEVICE"),
        (805, "MpsConnectionFailed", "MPS_CONNECTION_FAILED"),
        (806, "MpsRpcFailure", "MPS_RPC_FAILURE"),
        (807, "MpsServerNotReady", "MPS_SERVER_NOT_READY"),
        (808, "MpsMaxClientsReached", "MPS_MAX_CLIENTS_REACHED"),
        (809, "MpsMaxConnectionsReached", "MPS_MAX_CONNECTIONS_REACHED"),
        (810, "MpsClientTerminated", "MPS_CLIENT_TERMINATED"),
    ] {
        let text = explained(&code.to_string()).unwrap();
        assert!(text.contains(&format!("CUDA error {code}")), "{text}");
        let names = [format!("cudaError{runtime}"), format!("CUDA_ERROR_{driver}")];
        assert_eq!(names.map(|name| explained(&name).unwrap()), [text.clone(), text]);
    }
    let refused = explained("811").unwrap_err().to_string();
    assert!(refused.contains("nor a file; allowed: 46, 100, "), "{refused}");
}

#[test]
fn every_source_is_a_section_of_the_facts() {
    for row in ROWS {
        let (file, section) = row.source.split_once('#').unwrap();
        let path = format!("{}/../docs/facts/{file}", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(path).unwrap();
        let anchor = |title: &str| {
            title
                .to_lowercase()
                .replace([',', '\'', '.'], "")
                .replace(' ', "-")
        };
        let mut titles = text.lines().filter_map(|line| line.strip_prefix("## "));
        assert!(
            titles.any(|title| anchor(title) == section),
            "{}: {}",
            row.name,
            row.source
        );
        let lower = |word: &&str| **word == word.to_ascii_lowercase();
        assert!(row.words.iter().all(lower), "{}", row.name);
    }
}

#[test]
fn the_vendors_own_lines_are_explained_and_its_healthy_ones_are_not() {
    let lines = read(TRANSCRIPT.as_bytes()).unwrap();
    let text = of_log(&lines);
    for name in [
        "out of memory under a limit (CUDA error 2)\n",
        "the server died (CUDA error 806)\n",
        "server not ready (CUDA error 807)\n",
        "client ended by terminate_client (CUDA error 810)\n",
        "no daemon\n",
        "a second daemon\n",
        "  line:   CLIENT spin error 806 cudaErrorMpsRpcFailure (and ",
    ] {
        assert!(text.contains(name), "{name} is not in {text}");
    }
    assert!(
        !text.contains("a fatal GPU error"),
        "nothing fatal was provoked: {text}"
    );
    let healthy = |line: &&str| line.contains("set_default_") || line.contains("NEW SERVER");
    for line in TRANSCRIPT.lines().filter(healthy) {
        assert!(of_line(line).is_none(), "{line}");
    }
}

#[test]
fn lines_of_logs_and_programs_are_found_and_made_fit_for_a_terminal() {
    let nccl = "NCCL: several ranks on one GPU";
    for (line, name) in [
        (
            "[x Control 1] User did not send valid credentials",
            Some("valid credentials"),
        ),
        (
            "[x Control 1] Failed to start server using uid 1002",
            Some("a daemon of another user"),
        ),
        (
            "CUDA error: all CUDA-capable devices are busy or unavailable",
            Some("GPU busy"),
        ),
        (
            "[x Server 5] Client 8349 caused a fatal error on its device",
            Some("a fatal GPU error"),
        ),
        ("[x Control 5] Server status: FAULT", Some("a fatal GPU error")),
        (
            "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000",
            Some(nccl),
        ),
        (
            "NCCL WARN Multiple Ranks are using the same GPU/Partition.",
            Some(nccl),
        ),
        (
            "CUDA out of memory. Tried to allocate",
            Some("out of memory under a limit"),
        ),
        (
            "==PROF== Connected to process 4711 (/home/alice/simulate)",
            Some("Nsight Compute"),
        ),
        ("get_default_client_priority", None),
        ("status 806 of 900 done", None),
        ("", None),
    ] {
        assert_eq!(of_line(line).map(|row| row.name), name, "{line}");
    }
    let text = of_log(&["\x1b[2J Duplicate GPU detected".to_owned()]);
    assert!(text.contains("?[2J Duplicate"), "{text}");
    assert_eq!(of_log(&[]), "nothing in it is known here\n");
    let long = format!("{}\nDuplicate GPU detected\n", "x".repeat(100_000));
    assert_eq!(read(long.as_bytes()).unwrap(), ["Duplicate GPU detected"]);
}
