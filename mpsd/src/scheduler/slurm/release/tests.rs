//! Releases as Slurm writes them, and files that are no plugin.

use super::*;

#[test]
fn releases_are_read_as_slurm_writes_them() {
    for (text, release) in [
        ("slurm-wlm 22.05.8\n", "22.05"),
        ("slurm 23.11.10-1", "23.11"),
        ("slurm 25.05.0-0rc1", "25.05"),
    ] {
        assert_eq!(Release::said(text).unwrap().to_string(), release);
    }
    for text in ["2205", "22.5", "22.13", "19.05", "a.b", ""] {
        assert!(Release::parse(text).is_err(), "{text}");
    }
}

#[test]
fn what_is_no_plugin_is_told_and_never_read_past_its_end() {
    assert_eq!(stamp(b""), None);
    assert_eq!(stamp(b"#!/bin/sh\n"), None);
    let own = std::fs::read("/proc/self/exe").unwrap();
    assert_eq!(stamp(&own), None, "a program has no such symbol");
    for cut in [64, 100, own.len() / 2] {
        assert_eq!(stamp(&own[..cut]), None, "{cut}");
    }
}
