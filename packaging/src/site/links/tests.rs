use super::*;

/// A site of two pages in a directory of its own, with `link` on the first.
fn site(name: &str, link: &str) -> Result<usize> {
    let dir = std::env::temp_dir().join(format!("mpsd-links-{}-{name}", std::process::id()));
    fs::create_dir_all(dir.join("a")).unwrap();
    fs::write(
        dir.join("index.html"),
        format!("<p id=\"top\"><a href=\"{link}\">x</a>"),
    )
    .unwrap();
    fs::write(
        dir.join("a/b.html"),
        "<h2 class=\"Sh\" id=\"NAME\"><a href=\"../index.html#top\">",
    )
    .unwrap();
    let followed = follow(&dir);
    fs::remove_dir_all(&dir).unwrap();
    followed
}

#[test]
fn a_link_that_leads_nowhere_is_named() {
    for link in ["a/b.html", "a/b.html#NAME", "./a/b.html?q=1#NAME", "#top", "#"] {
        assert_eq!(site("good", link).unwrap(), 2, "{link}");
    }
    assert_eq!(site("out", "https://example.org/x").unwrap(), 1);
    for link in ["a/c.html", "a/b.html#OTHER", "#bottom", "b.html"] {
        let why = site("bad", link).unwrap_err().to_string();
        assert!(why.contains(&format!("index.html: '{link}'")), "{link}: {why}");
    }
}
