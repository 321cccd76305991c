use super::*;

#[test]
fn only_a_gpu_of_its_own_has_peers() {
    let peers = "Closest+Peers".parse::<Bind>().unwrap();
    assert_eq!((peers.how, peers.peers), (How::Closest, true));
    assert_eq!(peers.to_string(), "closest+peers");
    for wrong in [
        "none+peers",
        "auto+peers",
        "+peers",
        "block+",
        "block+peers+peers",
        "socket",
    ] {
        assert!(wrong.parse::<Bind>().is_err(), "{wrong}");
    }
}
