use super::*;

#[test]
fn ids_that_would_leave_the_directory_are_refused() {
    for raw in ["", "a/b", "..", "4711..srv", "4711\n", "/etc", &"x".repeat(256)] {
        assert!(JobId::parse(raw).is_err(), "{raw:?}");
    }
}

#[test]
fn usual_ids_name_their_own_directory() {
    for raw in ["4711", "4711.srv", "16[1].vm", "4711.3", "0.localhost"] {
        assert_eq!(JobId::parse(raw).unwrap().directory_name(), raw);
    }
}

#[test]
fn long_and_odd_ids_are_shortened_without_clashing() {
    let a = JobId::parse("123456.a-very-long-server-name.with-a-domain.example.org").unwrap();
    let b = JobId::parse("123456.a-very-long-server-name.with-a-domain.example.com").unwrap();
    assert_eq!(a.directory_name().len(), 24 + 1 + 12);
    assert_ne!(a.directory_name(), b.directory_name());
    assert!(
        JobId::parse("47 11@x")
            .unwrap()
            .directory_name()
            .starts_with("4711x-")
    );
    assert!(!JobId::parse(".hidden").unwrap().directory_name().starts_with('.'));
}

#[test]
fn steps_belong_to_their_job_only() {
    let job = JobId::parse("47").unwrap();
    for (id, yes) in [
        ("47", true),
        ("47.0", true),
        ("47.12", true),
        ("471", false),
        ("47.srv", false),
        ("4", false),
    ] {
        assert_eq!(JobId::parse(id).unwrap().belongs_to(&job), yes, "{id}");
    }
}

#[test]
fn a_step_has_its_whole_job() {
    for (id, whole) in [
        ("47.3", "47"),
        ("47", "47"),
        ("47.srv", "47.srv"),
        ("47.srv.12", "47.srv"),
        ("47[3].srv", "47[3].srv"),
    ] {
        let id = JobId::parse(id).unwrap();
        assert_eq!(id.whole().as_str(), whole);
        assert!(id.belongs_to(&id.whole()), "{id}");
    }
}
