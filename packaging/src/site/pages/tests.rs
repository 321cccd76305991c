use super::*;

fn pages() -> Vec<Manual> {
    ["mpsd.8", "mpsd.toml.5"]
        .iter()
        .filter_map(|file| Manual::of(file))
        .collect()
}

#[test]
fn a_page_is_named_by_its_file() {
    assert_eq!(pages()[1].title(), "mpsd.toml(5)");
    assert_eq!(pages()[1].page(), "mpsd.toml.5");
    assert_eq!(Manual::of("README"), None);
}

#[test]
fn a_man_page_is_linked_where_it_stands_in_no_code() {
    let text = "See mpsd(8) and mpsd.toml(5), `man mpsd(8)`.\n```sh\n# mpsd(8)\n```\nmpsd(8)\n";
    assert_eq!(
        linked(text, "../", &pages()),
        "See [mpsd(8)](../reference/mpsd.8.md) and [mpsd.toml(5)](../reference/mpsd.toml.5.md), `man mpsd(8)`.\n\
         ```sh\n# mpsd(8)\n```\n[mpsd(8)](../reference/mpsd.8.md)\n"
    );
}
