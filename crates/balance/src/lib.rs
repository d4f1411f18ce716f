//! The kernel's page cache by weight: what each control group below one group may keep of it ([design](../../../docs/design/balance.md)).
//!
//! Nothing runs on the way of a read. Once in an interval the groups are looked at, `control` says how much each is to have,
//! and `groups` writes that where the kernel's reclaim looks for it.

#![forbid(unsafe_code)]

mod control;
mod groups;
mod guard;
mod oom;
mod total_limit;

pub use control::Activity;
pub use guard::{SUBCOMMAND as GUARD, after as guard};

use control::{Controller, GroupSample};
use groups::{Group, Parent};
use guard::Guard;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use vellum_service::Failure;

/// A group as it was at the last look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Its name below the parent.
    pub name: String,
    /// Its weight: 1 to 10,000, 100 is the usual one.
    pub weight: u16,
    /// What it does.
    pub activity: Activity,
    /// Page cache that it has, in bytes.
    pub cache: u64,
    /// Page cache that it may keep, in bytes.
    pub share: u64,
}

/// Balances the groups below `parent` until a signal ends it, or `times` looks have been taken, `interval` apart. `each` has what
/// every look found.
///
/// # Errors
/// Those of [`Balance::below`], [`Balance::step`] and `each`.
pub fn run(
    parent: Option<PathBuf>,
    interval: Duration,
    times: Option<u64>,
    mut each: impl FnMut(&[Row]) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let failed = |e: std::io::Error| Failure::system("cannot watch for signals").because(e);
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM]).map_err(failed)?;
    let end = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).map_err(|e| failed(e.into()))?);
    let ended = Arc::clone(&end);
    let body = move || {
        if signals.forever().next().is_some() {
            let _ = rustix::io::write(&*ended, &1_u64.to_ne_bytes());
        }
    };
    std::thread::Builder::new().name("signals".into()).spawn(body).map_err(failed)?;
    let mut balance = Balance::below(parent)?;
    let mut done = 0;
    let mut is_silent = true;
    loop {
        let rows = balance.step()?;
        if rows.is_empty() && is_silent {
            let group = balance.parent.path().display();
            tracing::warn!("control group {group}: no group below it yet; those that come are balanced");
            is_silent = false;
        }
        each(&rows)?;
        done += 1;
        if times.is_some_and(|times| done >= times) || balance.wait(end.as_fd(), interval)? {
            return Ok(());
        }
    }
}

/// The groups below one, balanced from when this is made until it is dropped; then they have the limits that they had before.
#[derive(Debug)]
pub struct Balance {
    /// By name.
    groups: BTreeMap<String, (Group, Controller)>,
    last: Option<Instant>,
    // Dropped in this order: the guard finds the groups as they were, and the parent let go.
    parent: Parent,
    _guard: Option<Guard>,
}

impl Balance {
    /// Of the groups below `parent`: a directory, or a path below the hierarchy that has memory; None: the group of all pools.
    ///
    /// # Errors
    /// Bad input where there is no such group, and where another process balances it.
    pub fn below(parent: Option<PathBuf>) -> Result<Self, Failure> {
        let parent = Parent::open(parent)?;
        let guard = if parent.has_limits() { Some(Guard::start(parent.path())?) } else { None };
        Ok(Self { groups: BTreeMap::new(), last: None, parent, _guard: guard })
    }

    /// Waits for so long, and meanwhile gives groups that are short of memory the limits that they had. True: `end` can be read.
    fn wait(&mut self, end: BorrowedFd<'_>, interval: Duration) -> Result<bool, Failure> {
        let until = Instant::now() + interval;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let timeout = Timespec::try_from(left).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 });
            let ends = {
                let events = self.groups.values().filter_map(|(group, _)| group.event());
                let mut polled: Vec<PollFd<'_>> = [end]
                    .into_iter()
                    .chain(events)
                    .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
                    .collect();
                match poll(&mut polled, Some(&timeout)) {
                    Ok(0) => return Ok(false),
                    Ok(_) => polled.first().is_some_and(|end| !end.revents().is_empty()),
                    Err(Errno::INTR) => false,
                    Err(errno) => return Err(Failure::system("cannot wait").because(errno)),
                }
            };
            if ends {
                return Ok(true);
            }
            self.groups.values_mut().for_each(|(group, _)| group.relieve());
        }
    }

    /// Looks at all groups, and lets each have its share.
    ///
    /// # Errors
    /// The parent cannot be read any more. A group that has just gone is no error.
    pub fn step(&mut self) -> Result<Vec<Row>, Failure> {
        let now = Instant::now();
        let passed = self.last.replace(now).map_or(Duration::ZERO, |last| now - last);
        self.meet()?;
        let mut looked = Vec::with_capacity(self.groups.len());
        for (name, (group, controller)) in &mut self.groups {
            if let Some(seen) = group.look() {
                let wish = controller.look(&seen, passed);
                looked.push((name.clone(), seen, wish, controller.activity()));
            }
        }
        let room = self.parent.room(looked.iter().map(|(_, seen, _, _)| seen.cache).sum())?;
        let shares = control::shares(room, looked.iter().map(|(_, _, wish, _)| *wish));
        let row = |((name, seen, _, activity), share): ((String, GroupSample, _, Activity), u64)| Row {
            name,
            weight: seen.weight,
            activity,
            cache: seen.cache,
            share,
        };
        let rows: Vec<Row> = looked.into_iter().zip(shares).map(row).collect();
        for row in &rows {
            if let Some((group, _)) = self.groups.get_mut(&row.name) {
                group.allow(row.share);
            }
        }
        self.parent.protect(rows.iter().map(|row| row.share).sum());
        Ok(rows)
    }

    /// Takes in groups that are new, and lets go of those that are gone.
    fn meet(&mut self) -> Result<(), Failure> {
        let names = self.parent.children()?;
        self.groups.retain(|name, _| names.contains(name));
        for name in names {
            if !self.groups.contains_key(&name)
                && let Some(group) = self.parent.child(&name)
            {
                self.groups.insert(name, (group, Controller::default()));
            }
        }
        Ok(())
    }
}
