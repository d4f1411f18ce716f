//! Removing a directory of a branch with all that is in it.

use std::ffi::CString;
use std::sync::Arc;
use vellum_vfs::{BranchDir, Errno, Error, FileKind, Name, Result as Done};

/// A directory that is being emptied, and those in it that are left.
type Level = (Arc<dyn BranchDir>, Vec<CString>);

/// Removes a directory with all that is in that; one that is not there is removed.
pub(crate) fn remove_tree(dir: &Arc<dyn BranchDir>, name: &CString) -> Done<()> {
    let first = match dir.open_dir(Name::new(name)?) {
        Err(error) if error.errno() == Errno::NOENT => return Ok(()),
        Err(error) if error.errno() == Errno::NOTDIR => return dir.remove(Name::new(name)?),
        opened => emptied(opened?)?,
    };
    // However deep it is: nothing here calls itself.
    let mut levels = vec![first];
    while let Some((above, left)) = levels.last_mut() {
        match left.last() {
            Some(next) => {
                let below = above.open_dir(Name::new(next)?)?;
                let below = emptied(below)?;
                levels.push(below);
            }
            None => {
                levels.pop();
                if let Some((above, left)) = levels.last_mut()
                    && let Some(empty) = left.pop()
                {
                    above.remove_dir(Name::new(&empty)?)?;
                }
            }
        }
    }
    dir.remove_dir(Name::new(name)?)
}

/// Removes what is in it but for directories.
fn emptied(dir: Arc<dyn BranchDir>) -> Done<Level> {
    let (mut all, mut dirs) = (Vec::new(), Vec::new());
    dir.list(&mut |item| {
        all.push((item.name.as_c_str().to_owned(), item.kind));
        Ok(())
    })?;
    for (text, kind) in all {
        let name = Name::new(&text)?;
        let kind = kind.map_or_else(|| Ok::<_, Error>(dir.stat_at(name)?.kind()), Ok)?;
        if kind == FileKind::Directory { dirs.push(text) } else { dir.remove(name)? }
    }
    Ok((dir, dirs))
}

#[cfg(test)]
mod tests {
    use super::*;
    use vellum_branch::MemoryBranch;
    use vellum_vfs::Branch;

    #[test]
    fn a_tree_is_removed_with_its_contents() {
        let root = MemoryBranch::new().root();
        let name = |text: &str| CString::new(text).unwrap();
        let top = name("top");
        root.make_dir(Name::new(&top).unwrap(), 0o755).unwrap();
        let mut dir = root.open_dir(Name::new(&top).unwrap()).unwrap();
        for depth in 0..300 {
            for one in ["a", "b"] {
                let below = name(one);
                dir.make_dir(Name::new(&below).unwrap(), 0o755).unwrap();
            }
            let file = name(&format!("file{depth}"));
            drop(dir.create(Name::new(&file).unwrap(), 0o644).unwrap());
            let below = name("a");
            dir = dir.open_dir(Name::new(&below).unwrap()).unwrap();
        }
        drop(dir);
        remove_tree(&root, &top).unwrap();
        let mut left = 0;
        root.list(&mut |_| {
            left += 1;
            Ok(())
        })
        .unwrap();
        assert_eq!(left, 0);
        remove_tree(&root, &top).unwrap();
    }
}
