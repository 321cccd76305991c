//! Answers as recorded, and as a user's own program may make them.

use super::*;

const GPUS: [&str; 2] = [
    "GPU-200b4359-5562-4e0e-ed46-88b581af6524",
    "GPU-7dbe9b56-f73b-eee7-0000-000000000000",
];
/// Recorded (driver 580).
const TABLE: &str = "\
PID       ID        SERVER         DEVICE                    NAMESPACE      COMMAND
877       11        691            GPU-200b4359-5562-4e0e    4026531836     /tmp/client
";

fn clients(pids: &[i32]) -> Vec<Client> {
    let client = |pid: &i32| Client {
        pid: *pid,
        server: 691,
        gpu: None,
    };
    pids.iter().map(client).collect()
}

fn placed(table: &str) -> Vec<Option<String>> {
    let gpus = GPUS.map(|gpu| GpuUuid::parse(gpu).unwrap());
    let mut clients = clients(&[877, 878]);
    place(&mut clients, table, &gpus);
    let gpu = |client: Client| client.gpu.map(|gpu| gpu.to_string());
    clients.into_iter().map(gpu).collect()
}

#[test]
fn a_client_is_placed_by_the_short_uuid_of_the_recorded_table() {
    assert_eq!(placed(TABLE), [Some(GPUS[0].to_owned()), None]);
}

#[test]
fn a_table_that_is_none_places_nobody() {
    for table in [
        "",
        "Server not found\n",
        "877\n",
        "877 11 691 GPU-\n",
        "877 11 691 G\n",
        "877 11 691 GPU-99999999-5562\n",
        "\u{1b}[2J877 11 691 GPU-200b4359-5562-4e0e\n",
        "99999999999999999999 11 691 GPU-200b4359-5562-4e0e\n",
    ] {
        assert_eq!(placed(table), [None, None], "{table:?}");
    }
}
