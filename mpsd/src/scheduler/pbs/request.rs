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
mod tests {
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
}
