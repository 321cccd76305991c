//! What the commands of a PBS print of a job, a server, a hook.

/// The value of `NAME = VALUE` in what `qstat -f` and `printjob` print. Torque's qstat goes on after 80 columns in
/// lines that begin with a tab and hold no name. A name that stands there twice is no answer: a user can write a
/// newline and a false line into his own variables.
pub(crate) fn status(text: &str, name: &str) -> Option<String> {
    let named = |line: &str| {
        line.split_once('=')
            .filter(|(key, _)| key.trim() == name)
            .map(|(_, v)| v.trim().to_owned())
    };
    if text.lines().filter_map(named).count() != 1 {
        return None;
    }
    let mut lines = text.lines();
    let mut value = lines.by_ref().find_map(named)?;
    for line in lines.take_while(|line| line.starts_with('\t') && !line.contains(" = ")) {
        value.push_str(line.trim());
    }
    Some(value)
}
