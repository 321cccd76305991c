use super::*;
use ComputeMode::{Default, ExclusiveProcess, Prohibited};

fn job(id: &str) -> JobId {
    JobId::parse(id).unwrap()
}

#[test]
fn the_last_user_restores_what_was_found() {
    let mut account = Account::join(None, &job("1"), Default);
    account.set = Some(ExclusiveProcess);
    let mut account = Account::join(Some(account), &job("2"), ExclusiveProcess);
    assert_eq!(account.found, Default);
    assert_eq!(account.leave(&job("1"), ExclusiveProcess), Ok(None));
    assert_eq!(account.leave(&job("2"), ExclusiveProcess), Ok(Some(Default)));
    assert!(account.users.is_empty());
}

#[test]
fn a_mode_that_somebody_else_changed_is_left_alone_and_said() {
    let mut account = Account::join(None, &job("1"), Default);
    account.set = Some(ExclusiveProcess);
    let leave = account.leave(&job("1"), Prohibited);
    assert!(leave.unwrap_err().contains("PROHIBITED"));
}

#[test]
fn an_intent_that_never_took_place_restores_nothing() {
    let mut account = Account::join(None, &job("1"), Default);
    account.set = Some(ExclusiveProcess);
    assert_eq!(account.leave(&job("1"), Default), Ok(None));
    assert!(account.users.is_empty());
}

#[test]
fn only_a_lone_job_on_a_default_gpu_may_set() {
    let alone = Account::join(None, &job("1"), Default);
    assert!(alone.may_set(&job("1"), Default).is_ok());
    assert!(alone.may_set(&job("1"), Prohibited).is_err());
    let two = Account::join(Some(alone), &job("2"), Default);
    assert!(two.may_set(&job("2"), Default).is_err());
    assert!(
        Account::join(None, &job("1"), ExclusiveProcess)
            .may_set(&job("1"), ExclusiveProcess)
            .is_err()
    );
}

#[test]
fn leaving_twice_is_leaving_once() {
    let mut account = Account::join(Some(Account::join(None, &job("1"), Default)), &job("2"), Default);
    assert_eq!(account.leave(&job("1"), Default), Ok(None));
    let left = account.clone();
    assert_eq!(account.leave(&job("1"), Default), Ok(None));
    assert_eq!(account, left);
}
