//! The job's user as this node knows him.

use crate::job::User;
use crate::scheduler::UserRef;
use mpsd_core::failure::Undetermined;
use mpsd_core::text;
use mpsd_core::{Failure, Refusal};

/// Looks `user` up in the directory service.
///
/// # Errors
/// Undetermined when the user is not known here; a refusal for root.
pub fn find_user(user: &UserRef) -> Result<User, Failure> {
    let found = match user {
        UserRef::Name(name) => users::get_user_by_name(name),
        UserRef::Uid(uid) => users::get_user_by_uid(*uid),
    };
    let Some(found) = found else {
        let why = "not known on this node (directory service down, or another node's user)";
        return Err(Undetermined::new(text::user(user), why).into());
    };
    if found.uid() == 0 {
        let why = "MPS runs under the job's own user id, and never as root";
        return Err(Refusal::new("user 'root'", why, "an ordinary user's job").into());
    }
    Ok(User {
        name: found.name().to_string_lossy().into_owned(),
        uid: found.uid(),
        gid: found.primary_group_id(),
    })
}
