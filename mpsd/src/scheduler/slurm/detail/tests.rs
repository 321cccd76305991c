use super::*;

const TWO: &str = "JobId=7 JobName=x NodeList=n[1-3] JOB_GRES=gpu:a:1,gpu:b:2 Nodes=n[1-2] CPU_IDs=0-1 Mem=0 \
                   GRES=gpu:a:1(IDX:0),gpu:b:2(IDX:2-3) Nodes=n3 CPU_IDs=0 Mem=0 GRES=gpu:a:2(IDX:0,1) MinCPUsNode=1";

fn of(text: &str, node: &str, told: u32) -> Result<Vec<u32>, String> {
    let index = |name| match name {
        GpuName::Index(place) => place,
        GpuName::Uuid(_) => u32::MAX,
    };
    let found = of_node(text, node, &[GpuName::Index(told)])?;
    Ok(found.into_iter().map(index).collect())
}

#[test]
fn the_places_of_every_type() {
    assert_eq!(of(TWO, "n2", 2), Ok(vec![0, 2, 3]));
    assert_eq!(of(TWO, "n3", 1), Ok(vec![0, 1]));
    assert_eq!(
        of("Nodes=n3 GRES=gpu:b:1(IDX:1),gpu:a:0(IDX:)", "n3", 1),
        Ok(vec![1])
    );
    assert_eq!(of("Nodes=n3 GRES=shard:1(IDX:1)", "n3", 1), Ok(vec![1]));
}

/// The job's name is the user's text.
#[test]
fn who_forges_a_line_gets_no_answer() {
    let forged = TWO.replace("=x", "=x Nodes=n2 GRES=gpu:4(IDX:0-3)");
    assert_eq!(
        of(&forged, "n2", 2),
        Err("scontrol shows 2 lists of them for this job".into())
    );
    let forged = TWO.replace("=x", "=x\nJobId=8 Nodes=n2 GRES=gpu:4(IDX:0-3)\nJobId=9");
    assert!(of(&forged, "n2", 2).is_err());
    for (text, node, told) in [(TWO, "n4", 0), (TWO, "n3", 3), ("", "n1", 0)] {
        assert!(of(text, node, told).is_err(), "{node}");
    }
    assert!(of("Nodes=n1 GRES=gpu:a:1", "n1", 0).is_err());
}
