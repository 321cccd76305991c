use super::*;

fn parse(line: &str) -> Result<Arguments, String> {
    Arguments::parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
}

#[test]
fn an_empty_line_means_the_installed_paths() {
    assert_eq!(parse("").unwrap(), Arguments::default());
}

#[test]
fn each_key_is_taken() {
    let arguments = parse("scope=step config=/c prologue=/p epilogue=/e").unwrap();
    assert_eq!(
        arguments,
        Arguments {
            config: "/c".into(),
            prologue: "/p".into(),
            epilogue: "/e".into(),
            scope: Scope::Step
        }
    );
}

#[test]
fn what_is_not_understood_is_named() {
    for line in [
        "conf=/c",
        "scope=all",
        "config=etc/x",
        "config",
        "scope=job scope=step",
        "/etc/mpsd.toml",
    ] {
        let error = parse(line).unwrap_err();
        let word = line.rsplit(' ').next().unwrap();
        assert!(error.contains(&format!("'{word}'")), "{error}");
        assert!(error.contains("scope=both|job|step"), "{error}");
    }
}
