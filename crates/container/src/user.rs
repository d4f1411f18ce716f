//! As whom a process runs: numbers, or names that the image itself knows.

use crate::image::open_beneath;
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use vellum_pool::regular_file;

/// The largest file of users or groups that is read.
const FILE_MAX: u64 = 4 << 20;

/// A user with its groups.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct User {
    pub(super) uid: u32,
    pub(super) gid: u32,
    /// Other groups, sorted.
    pub(super) groups: Vec<u32>,
    /// Its home directory, where the image knows one.
    pub(super) home: Option<String>,
}

impl User {
    /// Whether its ids are below `count`, as in a namespace of so many; one that is not.
    pub(super) fn within(&self, count: u32) -> Result<(), u32> {
        let beyond =
            [self.uid, self.gid].into_iter().chain(self.groups.iter().copied()).find(|id| *id >= count);
        beyond.map_or(Ok(()), Err)
    }
}

/// What the image knows of users: the texts of its `/etc/passwd` and `/etc/group`.
#[derive(Clone, Debug, Default)]
pub(super) struct UserDatabase {
    passwd: String,
    group: String,
}

impl UserDatabase {
    /// Of the tree at `root`. A file that is not there, or is none, knows nobody.
    pub(super) fn in_tree(root: &Path) -> Self {
        let text = |name: &str| {
            let root = File::open(root).ok()?;
            let file =
                open_beneath(&root, &[OsStr::new("etc"), OsStr::new(name)], regular_file::FLAGS).ok()?;
            let mut bytes = Vec::new();
            regular_file::checked(file).ok()?.take(FILE_MAX).read_to_end(&mut bytes).ok()?;
            Some(String::from_utf8_lossy(&bytes).into_owned())
        };
        Self { passwd: text("passwd").unwrap_or_default(), group: text("group").unwrap_or_default() }
    }

    /// What `USER[:GROUP]` means, each a name or a number. Nothing at all means root.
    pub(super) fn resolve(&self, text: &str) -> Result<User, String> {
        let (user, group) = match text.split_once(':') {
            Some((user, group)) => (user, Some(group).filter(|group| !group.is_empty())),
            None => (text, None),
        };
        let user = if user.is_empty() { "0" } else { user };
        let number = number(user);
        let line = self
            .passwd
            .lines()
            .map(fields)
            .find(|line| line.first() == Some(&user) || number.is_some() && field(line, 2) == number);
        let uid = match (&line, number) {
            (Some(line), _) => {
                field(line, 2).ok_or_else(|| format!("user {user} has no number in /etc/passwd"))?
            }
            (None, Some(uid)) => uid,
            (None, None) => return Err(format!("no user {user} in the image's /etc/passwd; give a number")),
        };
        let mut found = User { uid, ..User::default() };
        if let Some(line) = &line {
            found.gid = field(line, 3).unwrap_or(0);
            found.home = line.get(5).filter(|home| home.starts_with('/')).map(|home| (*home).to_owned());
        }
        match group {
            Some(group) => found.gid = self.group(group)?,
            None => {
                let name = line.as_ref().and_then(|line| line.first()).copied().unwrap_or(user);
                found.groups = self.groups_of(name);
                found.groups.retain(|gid| *gid != found.gid);
            }
        }
        Ok(found)
    }

    fn group(&self, group: &str) -> Result<u32, String> {
        let line = self.group.lines().map(fields).find(|line| line.first() == Some(&group));
        line.and_then(|line| field(&line, 2))
            .or_else(|| number(group))
            .ok_or_else(|| format!("no group {group} in the image's /etc/group; give a number"))
    }

    fn groups_of(&self, name: &str) -> Vec<u32> {
        let member =
            |line: &Vec<&str>| line.get(3).is_some_and(|all| all.split(',').any(|one| one.trim() == name));
        let lines = self.group.lines().map(fields).filter(member);
        let mut groups: Vec<u32> = lines.filter_map(|line| field(&line, 2)).collect();
        groups.sort_unstable();
        groups.dedup();
        groups
    }
}

fn fields(line: &str) -> Vec<&str> {
    line.trim_end().split(':').collect()
}

fn field(line: &[&str], at: usize) -> Option<u32> {
    line.get(at).and_then(|text| number(text))
}

/// An id; the highest number means nobody and nothing.
fn number(text: &str) -> Option<u32> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|id| digits && *id != u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::fs;

    fn user_database() -> UserDatabase {
        UserDatabase {
            passwd: "root:x:0:0:root:/root:/bin/sh\nweb:x:33:34:Web:/var/www:/bin/sh\nbad:x:x:0::/:\n7:x:1007:1007::/seven:\n".into(),
            group: "root:x:0:\nweb:x:34:\nvideo:x:44:root,web\ndisk:x:6:web\n".into(),
        }
    }

    #[test]
    fn names_and_numbers() {
        let user = |uid, gid, groups: &[u32], home: Option<&str>| User {
            uid,
            gid,
            groups: groups.into(),
            home: home.map(str::to_owned),
        };
        for (text, found) in [
            ("", user(0, 0, &[44], Some("/root"))),
            ("0", user(0, 0, &[44], Some("/root"))),
            ("root", user(0, 0, &[44], Some("/root"))),
            ("web", user(33, 34, &[6, 44], Some("/var/www"))),
            ("33", user(33, 34, &[6, 44], Some("/var/www"))),
            ("web:disk", user(33, 6, &[], Some("/var/www"))),
            ("web:", user(33, 34, &[6, 44], Some("/var/www"))),
            ("5000", user(5000, 0, &[], None)),
            ("5000:6000", user(5000, 6000, &[], None)),
            (":6", user(0, 6, &[], Some("/root"))),
            ("7", user(1007, 1007, &[], Some("/seven"))),
        ] {
            assert_eq!(user_database().resolve(text), Ok(found), "{text}");
        }
        for bad in ["nobody", "web:nobody", "-1", "4294967295", "0x1", "bad", "web:4294967296", "+1"] {
            assert!(user_database().resolve(bad).is_err(), "{bad}");
        }
        assert!(
            UserDatabase::default().resolve("1000").is_ok()
                && UserDatabase::default().resolve("root").is_err()
        );
    }

    #[test]
    fn all_ids_must_be_mapped() {
        let user = User { uid: 5, gid: 6, groups: vec![7, 9], home: None };
        for (count, within) in [(10, Ok(())), (9, Err(9)), (7, Err(7)), (6, Err(6)), (5, Err(5))] {
            assert_eq!(user.within(count), within);
        }
    }

    #[test]
    fn only_the_images_own_files_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        fs::create_dir_all(root.join("etc")).unwrap();
        fs::create_dir_all(root.join("real")).unwrap();
        fs::write(dir.path().join("passwd"), "evil:x:1:1::/:\n").unwrap();
        std::os::unix::fs::symlink("../../passwd", root.join("etc/passwd")).unwrap();
        assert!(UserDatabase::in_tree(&root).resolve("evil").is_err());
        fs::remove_file(root.join("etc/passwd")).unwrap();
        fs::write(root.join("real/passwd"), "good:x:5:6::/:\n").unwrap();
        std::os::unix::fs::symlink("/real/passwd", root.join("etc/passwd")).unwrap();
        assert_eq!(UserDatabase::in_tree(&root).resolve("good").unwrap().uid, 5);
        fs::remove_file(root.join("etc/passwd")).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            root.join("etc/passwd"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RWXU,
            0,
        )
        .unwrap();
        assert!(UserDatabase::in_tree(&root).resolve("good").is_err());
    }

    proptest! {
        #[test]
        fn nothing_panics(passwd in ".{0,80}", group in ".{0,80}", text in ".{0,12}") {
            let _ = UserDatabase { passwd, group }.resolve(&text);
        }
    }
}
