//! A whole job under the real programs, against the simulated node.

use tests::double::NodeDouble;
use tests::stage::Stage;

fn stage(gpus: usize) -> Stage {
    let node = NodeDouble::builder()
        .gpus(gpus, "NVIDIA H200")
        .build()
        .expect("node");
    Stage::new(node, "")
}

#[test]
fn a_job_gets_its_mps_and_leaves_no_trace() {
    let stage = stage(1);
    let ran = stage.torque("4711.srv", "MPS=true,MPS_THREADS=25,MPS_MEM=4G");
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let pipe = stage.job("4711.srv").join("pipe");
    let env = vec![("CUDA_MPS_PIPE_DIRECTORY".to_owned(), pipe.display().to_string())];
    let client = stage.client(&[] as &[&str], &env);
    assert_eq!(client.code, Some(0), "{client:?}");
    let record: serde_json::Value =
        serde_json::from_str(client.out.lines().next().unwrap_or("")).expect("record");
    assert_eq!(record["under_mps"], true, "{record}");
    assert_eq!(record["sms"], 32, "{record}");
    let end = stage.torque_end("4711.srv");
    assert_eq!(end.code, Some(0), "{end:?}");
    stage.assert_clean();
}
