//! What the queuejob hook is answered.

use super::*;

fn said(account: &str, resource: &str) -> String {
    read(&Asked {
        account: account.into(),
        resource: resource.into(),
    })
    .unwrap_or_else(|refusal| refusal.to_string())
}

#[test]
fn our_words_move_and_the_sites_stay() {
    assert_eq!(
        said("proj1,MPS=true,MPS_THREADS=25;MPS_MEM=2G lab", ""),
        r#"{"account":"proj1,lab","resource":"per-node+threads=25+mem=2G"}"#
    );
    assert_eq!(
        said("mps_physics", ""),
        r#"{"account":"mps_physics","resource":""}"#
    );
    assert_eq!(
        said("proj1", "on+mem=2G"),
        r#"{"account":"proj1","resource":"per-node+mem=2G"}"#
    );
    let moved = Request::from_resource("per-node+threads=25+mem=2G").unwrap();
    assert_eq!(
        Some(moved),
        Request::from_account("MPS=true,MPS_THREADS=25,MPS_MEM=2G").unwrap()
    );
}

#[test]
fn contradictions_and_typing_errors_are_refused() {
    assert!(
        read(&Asked {
            account: "MPS=true".into(),
            resource: "off".into()
        })
        .is_err()
    );
    assert!(said("MPS=true,MPS_THREADS=101", "").starts_with("MPS_THREADS=101: "));
}
