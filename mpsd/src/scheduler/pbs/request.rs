//! What the queuejob hook asks: the request in the resource's words, and the account without it.

use super::verbs::Asked;
use mpsd_core::failure::Refusal;
use mpsd_core::request::Request;
use std::os::unix::ffi::OsStrExt;

/// One line of JSON: `resource` (empty: not asked), `account`, and a `note` where the account almost asks.
pub(super) fn read(asked: &Asked) -> Result<String, Refusal> {
    let account = asked.account.as_bytes();
    let by_account = Request::from_account(account)?;
    let by_resource = if asked.resource.is_empty() {
        None
    } else {
        Some(Request::from_resource(&asked.resource)?)
    };
    let request = match (by_account, by_resource) {
        (Some(one), Some(other)) => Some(Request::merge(one, other)?),
        (one, other) => one.or(other),
    };
    let text = String::from_utf8_lossy(account);
    let rest = text
        .split([',', ';', ' ', '\t', '\n'])
        .filter(|token| !token.is_empty() && is_the_sites(token));
    let rest: Vec<&str> = rest.collect();
    let note = match &request {
        Some(_) => None,
        None => Request::almost_asked(account),
    };
    let resource = request
        .map(|request| request.in_resource_words())
        .unwrap_or_default();
    let mut answer = serde_json::json!({ "resource": resource, "account": rest.join(",") });
    if let Some(note) = note {
        answer["note"] = note.into();
    }
    Ok(answer.to_string())
}

fn is_the_sites(token: &str) -> bool {
    matches!(Request::from_account(token), Ok(None))
}

#[cfg(test)]
mod tests;
