//! How much was tried: what `cargo test -p tests --test suite -- --nocapture` prints.

/// Says that `count` more of `name` were tried. A test that loses one fails before it comes here.
pub fn tell(name: &str, count: u64) {
    println!("figure: {name} = {count}");
}
