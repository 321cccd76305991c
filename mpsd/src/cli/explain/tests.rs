use super::*;

/// What NVIDIA's programs wrote.
const TRANSCRIPT: &str = include_str!("../../../../docs/facts/mps-580-transcript.txt");

fn explained(what: &str) -> String {
    Explain {
        what: Some(what.into()),
    }
    .run()
    .unwrap()
}

#[test]
fn every_error_of_mps_is_known_by_number_and_by_both_names() {
    for (code, runtime, driver) in [
        (46, "cudaErrorDevicesUnavailable", "CUDA_ERROR_DEVICE_UNAVAILABLE"),
        (100, "cudaErrorNoDevice", "CUDA_ERROR_NO_DEVICE"),
        (
            805,
            "cudaErrorMpsConnectionFailed",
            "CUDA_ERROR_MPS_CONNECTION_FAILED",
        ),
        (806, "cudaErrorMpsRpcFailure", "CUDA_ERROR_MPS_RPC_FAILURE"),
        (
            807,
            "cudaErrorMpsServerNotReady",
            "CUDA_ERROR_MPS_SERVER_NOT_READY",
        ),
        (
            808,
            "cudaErrorMpsMaxClientsReached",
            "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED",
        ),
        (
            809,
            "cudaErrorMpsMaxConnectionsReached",
            "CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED",
        ),
        (
            810,
            "cudaErrorMpsClientTerminated",
            "CUDA_ERROR_MPS_CLIENT_TERMINATED",
        ),
    ] {
        let text = explained(&code.to_string());
        assert!(
            text.contains(&format!("CUDA error {code}")) && text.contains("  remedy: "),
            "{text}"
        );
        assert_eq!((&explained(runtime), &explained(driver)), (&text, &text));
    }
    let refused = Explain {
        what: Some("811".into()),
    }
    .run()
    .unwrap_err()
    .to_string();
    assert!(
        refused.starts_with("'811': neither an error that is known here nor a file; allowed: 46, 100, "),
        "{refused}"
    );
}

#[test]
fn every_source_is_a_section_of_the_facts() {
    for row in ROWS {
        let (file, section) = row.source.split_once('#').unwrap();
        let text =
            std::fs::read_to_string(format!("{}/../docs/facts/{file}", env!("CARGO_MANIFEST_DIR"))).unwrap();
        let anchor = |title: &str| {
            title
                .to_lowercase()
                .replace([',', '\'', '.'], "")
                .replace(' ', "-")
        };
        let there = text
            .lines()
            .filter_map(|line| line.strip_prefix("## "))
            .any(|title| anchor(title) == section);
        assert!(there, "{}: no section {}", row.name, row.source);
        assert!(
            row.words.iter().all(|word| *word == word.to_ascii_lowercase()),
            "{}",
            row.name
        );
        for text in [row.cause, row.remedy] {
            assert!(
                !text.ends_with('.') && !text.contains('\n'),
                "{}: {text}",
                row.name
            );
        }
    }
}

#[test]
fn the_vendors_own_lines_are_explained_and_its_healthy_ones_are_not() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    std::fs::write(&log, TRANSCRIPT).unwrap();
    let text = explained(log.to_str().unwrap());
    let names: Vec<&str> = text.lines().filter(|line| !line.starts_with(' ')).collect();
    let wanted = [
        "out of memory under a limit (CUDA error 2)",
        "the server died (CUDA error 806)",
        "server not ready (CUDA error 807)",
        "client ended by terminate_client (CUDA error 810)",
        "no daemon",
        "a second daemon",
    ];
    for name in wanted {
        assert!(names.contains(&name), "{name} is not among {names:#?}");
    }
    assert!(
        !names.contains(&"a fatal GPU error"),
        "nothing fatal was provoked: {text}"
    );
    assert!(
        text.contains("  line:   CLIENT spin error 806 cudaErrorMpsRpcFailure (and "),
        "{text}"
    );
    for line in TRANSCRIPT
        .lines()
        .filter(|line| line.contains("set_default_") || line.contains("NEW SERVER"))
    {
        assert!(of_line(line).is_none(), "{line}");
    }
}

#[test]
fn what_logs_and_programs_write_is_found_and_made_fit_for_a_terminal() {
    for (line, name) in [
        (
            "[x Control 1] User did not send valid credentials",
            "valid credentials",
        ),
        (
            "[x Control 1] Failed to start server using uid 1002, error: Operation not permitted",
            "a daemon of another user",
        ),
        (
            "RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable",
            "GPU busy",
        ),
        (
            "[x Server 5] Client 8349 caused a fatal error on its device",
            "a fatal GPU error",
        ),
        ("[x Control 5] Server status: FAULT", "a fatal GPU error"),
        (
            "ncclInvalidUsage: Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000",
            "NCCL: several ranks on one GPU",
        ),
        (
            "NCCL WARN Multiple Ranks are using the same GPU/Partition. Set NCCL_MULTI_RANK_GPU_ENABLE=1 to enable",
            "NCCL: several ranks on one GPU",
        ),
        (
            "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate",
            "out of memory under a limit",
        ),
    ] {
        assert_eq!(of_line(line).map(|row| row.name), Some(name), "{line}");
    }
    for line in ["get_default_client_priority", "status 806 of 900 done", ""] {
        assert!(of_line(line).is_none(), "{line}");
    }
    let text = of_log(&["\x1b[2J Duplicate GPU detected".to_owned()]);
    assert!(
        !text.contains('\x1b') && text.contains("?[2J Duplicate"),
        "{text}"
    );
    assert_eq!(of_log(&[]), "nothing in it is known here\n");
    let long = format!("{}\nDuplicate GPU detected\n", "x".repeat(100_000));
    assert_eq!(read(long.as_bytes()).unwrap(), ["Duplicate GPU detected"]);
}

#[test]
fn a_log_of_the_profiler_says_how_it_is_told_of_mps() {
    let log = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(
        &log,
        "==PROF== Connected to process 4711 (/home/alice/simulate)\n",
    )
    .unwrap();
    let text = explained(log.path().to_str().unwrap());
    assert!(
        text.starts_with("Nsight Compute\n") && text.contains("--mps=control"),
        "{text}"
    );
}
