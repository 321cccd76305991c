//! How much was tried: lines that `cargo xtask matrices` adds up.

/// Says that `count` more of `name` were tried. A test that loses one fails before it comes here.
pub fn tell(name: &str, count: u64) {
    println!("figure: {name} = {count}");
}
