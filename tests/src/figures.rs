//! How much was tried: lines that `cargo xtask matrices` adds up.

/// Says that `count` more of `name` were tried and none of them lost: a test that finds one lost fails before it.
pub fn tell(name: &str, count: u64) {
    println!("figure: {name} = {count}");
}
