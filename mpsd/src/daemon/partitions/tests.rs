//! Answers as the documentation prints them, and as programs that talk to the real daemon expect them.

use super::*;
use mpsd_core::GpuUuid;

const GPU: &str = "GPU-74d43ed3-cdf7-e667-3644-bf5b4f46ed65";

fn partition(rank: u32, chunks: u32) -> Partition {
    Partition {
        rank,
        gpu: GpuUuid::parse(GPU).unwrap(),
        sms: chunks * 8,
        chunks,
        id: String::new(),
    }
}

fn ids(answers: &str) -> Result<Vec<String>, Unready> {
    let made = made(&[partition(0, 5), partition(1, 2)], answers)?;
    Ok(made.into_iter().map(|one| one.id).collect())
}

#[test]
fn each_answer_is_followed_by_one_that_always_comes() {
    assert_eq!(
        commands(&[partition(0, 5), partition(1, 2)]),
        format!(
            "sm_partition add {GPU} 5\nget_default_active_thread_percentage\nsm_partition add {GPU} \
             2\nget_default_active_thread_percentage\n"
        )
    );
}

#[test]
fn ids_are_read_in_both_forms_and_may_hold_slashes() {
    let plain = format!("{GPU}/Dx4AAA\n100.0\n{GPU}/B/x4/AA\n100.0\n");
    assert_eq!(ids(&plain).unwrap(), ["Dx4AAA", "B/x4/AA"]);
    let worded = format!("Partition {GPU}/Dx4AAA created\n100.0\nPartition {GPU}/B/x4/AA created\n100.0\n");
    assert_eq!(ids(&worded).unwrap(), ["Dx4AAA", "B/x4/AA"]);
}

#[test]
fn what_does_not_fit_is_the_users_and_all_else_fails() {
    let no_room = format!(
        "{GPU}/Dx4AAA\n100.0\nFailed to fulfill the requested SM partition of 2 chunks, error \
         CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION\n100.0\n"
    );
    let refused = ids(&no_room).unwrap_err();
    assert!(matches!(refused, Unready::Refused { .. }), "{refused}");
    assert_eq!(
        refused.to_string(),
        format!(
            "MPS_SMS: {GPU} has no 16 multiprocessors left for rank 1; allowed: fewer in all: partitions share nothing"
        )
    );
    let same = format!("{GPU}/Dx4AAA\n100.0\n{GPU}/Dx4AAA\n100.0\n");
    let foreign = format!("GPU-0/Dx4AAA\n100.0\n{GPU}/B\n100.0\n");
    let several = format!("{GPU}/Dx4AAA\n{GPU}/B\n100.0\n100.0\n");
    for answers in [
        "",
        "100.0\n100.0\n",
        "Unknown command \"sm_partition\"\n100.0\n",
        &same,
        &foreign,
        &several,
    ] {
        let failed = ids(answers).unwrap_err();
        assert!(matches!(failed, Unready::Failed(_)), "{answers}: {failed}");
    }
}

fn checked(listing: &str) -> Result<(), Unready> {
    let mut all = [partition(0, 5), partition(1, 2)];
    all[0].id = "Dx4AAA".to_owned();
    all[1].id = "B/x4/AA".to_owned();
    check(&all, listing)
}

/// docs/facts/mps-control.md#static-partitions
#[test]
fn a_listing_is_read_with_and_without_its_dashes() {
    let dashes = "GPU Partition free used free used clients\nchunk chunk SM SM\nGPU-74d43ed3 - 3 7 24 68 -\nGPU-74d43ed3 Dx4AAA - 5 \
                  - 40 -\nGPU-74d43ed3 B/x4/AA - 2 - 28 Yes\n";
    checked(dashes).unwrap();
    checked(&dashes.replace(" -", "")).unwrap();
}

#[test]
fn a_partition_that_is_not_as_asked_for_is_none() {
    let good = "GPU-74d43ed3 Dx4AAA - 5 - 40 No\nGPU-74d43ed3 B/x4/AA - 2 - 16 No\n";
    checked(good).unwrap();
    for wrong in [
        good.replace("B/x4/AA", "B/x4/AB"),
        good.replace("- 2 -", "- 1 -"),
        good.replace("GPU-74d43ed3 B", "GPU-74d43ed4 B"),
        good.replace(" - 16", ""),
        String::new(),
    ] {
        let failed = checked(&wrong).unwrap_err();
        assert!(matches!(failed, Unready::Failed(_)), "{wrong}: {failed}");
    }
    let small = checked(&good.replace("- 16", "- 4")).unwrap_err();
    assert!(matches!(small, Unready::Refused { .. }), "{small}");
}
