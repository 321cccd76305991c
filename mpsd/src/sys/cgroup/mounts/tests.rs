use super::*;

fn parse(text: &[u8]) -> Vec<Mount> {
    of(mountinfo::parse(text))
}

#[test]
fn the_three_layouts_of_the_world() {
    let unified = b"29 22 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
    assert_eq!(
        parse(unified),
        [Mount {
            path: "/sys/fs/cgroup".into(),
            version: Version::Unified
        }]
    );
    let hybrid = b"31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
        35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
        40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,name=systemd\n\
        41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n\
        42 31 0:38 / /mnt/again rw,relatime - cgroup2 cgroup2 rw\n";
    let found: Vec<_> = parse(hybrid).into_iter().map(|mount| mount.path).collect();
    assert_eq!(
        found,
        [
            PathBuf::from("/sys/fs/cgroup/unified"),
            "/sys/fs/cgroup/systemd".into()
        ]
    );
    let v1 = b"35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
    assert_eq!(parse(v1), []);
    assert_eq!(parse(b"garbage\n\n1 2 3\n"), []);
    let odd = b"29 22 0:26 / /mnt/a\\040b\\ rw - cgroup2 none rw\n";
    assert_eq!(parse(odd)[0].path, PathBuf::from("/mnt/a b\\"));
}
