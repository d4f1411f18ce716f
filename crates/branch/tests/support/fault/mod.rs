//! A branch around another that fails on demand: an errno at one step, or death from a step on. Or something else happens
//! at a step.
//!
//! Steps are operations of the branch traits; those that change something are counted apart, so that a test can
//! try every one of them: run once without a fault, read [`FaultPlan::changes`], then run again for each number.

#![allow(dead_code, unused_imports, unreachable_pub, reason = "each test program uses a part")]

mod export;
mod object_export;
mod objects;

pub use export::FaultExport;
pub use object_export::ObjectExport;

use self::objects::{FaultDir, FaultFile};
use std::ffi::CStr;
use std::fmt;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering::SeqCst};
use vellum_vfs::{Branch, BranchDir, BranchFile, Errno, Error, RenameFlags, Result, StatFs};

/// What operations answer once the process counts as dead.
pub const DEAD: Errno = Errno::SHUTDOWN;

const NEVER: u64 = u64::MAX;

/// What is to go wrong, and how many steps there have been. Shared by all objects of the branches that it was
/// given to, which may be several (an upper and its work directory).
#[derive(Debug)]
pub struct FaultPlan {
    steps: AtomicU64,
    changes: AtomicU64,
    /// Number of the change that fails once, and with what.
    fail_change: AtomicU64,
    /// Number of the step of any kind that fails once.
    fail_step: AtomicU64,
    errno: AtomicI32,
    kill_change: AtomicU64,
    kill_step: AtomicU64,
    torn: AtomicBool,
    dead: AtomicBool,
    plain_renames: AtomicBool,
    /// What else happens before a change.
    meanwhile: Mutex<Option<ConcurrentAction>>,
}

/// Something that somebody else does, and the number of the change that it comes before.
struct ConcurrentAction(u64, Box<dyn FnOnce() + Send>);

impl fmt::Debug for ConcurrentAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "before change {}", self.0)
    }
}

impl Default for FaultPlan {
    fn default() -> Self {
        Self {
            steps: AtomicU64::new(0),
            changes: AtomicU64::new(0),
            fail_change: AtomicU64::new(NEVER),
            fail_step: AtomicU64::new(NEVER),
            errno: AtomicI32::new(Errno::IO.raw_os_error()),
            kill_change: AtomicU64::new(NEVER),
            kill_step: AtomicU64::new(NEVER),
            torn: AtomicBool::new(false),
            dead: AtomicBool::new(false),
            plain_renames: AtomicBool::new(false),
            meanwhile: Mutex::default(),
        }
    }
}

/// What the plan says to one operation.
enum Verdict {
    Go,
    Fail(Errno),
    /// A write that is cut short by death.
    Tear,
}

impl FaultPlan {
    /// A plan without faults.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// The `nth` change from now (0: the next) fails once, and does nothing.
    pub fn fail_change(&self, nth: u64, errno: Errno) {
        self.errno.store(errno.raw_os_error(), SeqCst);
        self.fail_change.store(self.changes().saturating_add(nth), SeqCst);
    }

    /// The `nth` operation of any kind from now (0: the next) fails once, and does nothing.
    pub fn fail_step(&self, nth: u64, errno: Errno) {
        self.errno.store(errno.raw_os_error(), SeqCst);
        self.fail_step.store(self.steps().saturating_add(nth), SeqCst);
    }

    /// From the `nth` change from now on nothing happens any more: that change and every later operation answers
    /// [`DEAD`].
    pub fn kill_at_change(&self, nth: u64) {
        self.kill_change.store(self.changes().saturating_add(nth), SeqCst);
    }

    /// From the `nth` operation of any kind from now on nothing happens any more: that one and every later one answers [`DEAD`].
    pub fn kill_at_step(&self, nth: u64) {
        self.kill_step.store(self.steps().saturating_add(nth), SeqCst);
    }

    /// Calls `act` right before the `nth` change from now (0: the next), in its thread.
    pub fn before_change(&self, nth: u64, act: impl FnOnce() + Send + 'static) {
        let act = ConcurrentAction(self.changes().saturating_add(nth), Box::new(act));
        *self.meanwhile.lock().unwrap_or_else(PoisonError::into_inner) = Some(act);
    }

    fn act_before(&self, change: u64) {
        let mut meanwhile = self.meanwhile.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(ConcurrentAction(_, act)) = meanwhile.take_if(|ConcurrentAction(at, _)| *at == change) {
            drop(meanwhile);
            act();
        }
    }

    /// Whether a write that death strikes still writes about the first half of its data, in whole pages.
    pub fn set_torn(&self, torn: bool) {
        self.torn.store(torn, SeqCst);
    }

    /// From now on renames with flags are not known (EINVAL), as on CephFS. That is no fault: [`FaultPlan::reset`] leaves it so.
    pub fn set_plain_renames(&self) {
        self.plain_renames.store(true, SeqCst);
    }

    /// Operations so far, failed ones included.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.steps.load(SeqCst)
    }

    /// Operations so far that change something (or would have), failed ones included.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.changes.load(SeqCst)
    }

    /// Whether death has struck.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        self.dead.load(SeqCst)
    }

    /// No faults any more; the dead live again, and counting starts anew.
    pub fn reset(&self) {
        for never in [&self.fail_change, &self.fail_step, &self.kill_change, &self.kill_step] {
            never.store(NEVER, SeqCst);
        }
        self.torn.store(false, SeqCst);
        self.dead.store(false, SeqCst);
        *self.meanwhile.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.steps.store(0, SeqCst);
        self.changes.store(0, SeqCst);
    }

    fn judge(&self, changes: bool) -> Verdict {
        let step = self.steps.fetch_add(1, SeqCst);
        let change = if changes { self.changes.fetch_add(1, SeqCst) } else { NEVER };
        if changes {
            self.act_before(change);
        }
        if self.is_dead() {
            return Verdict::Fail(DEAD);
        }
        let reached = |limit: &AtomicU64, number| {
            let limit = limit.load(SeqCst);
            limit != NEVER && number != NEVER && number >= limit
        };
        if reached(&self.kill_step, step) || reached(&self.kill_change, change) {
            // One operation is the first to die, also when several threads get here together.
            let first = !self.dead.swap(true, SeqCst);
            let torn = first && changes && self.torn.load(SeqCst);
            return if torn { Verdict::Tear } else { Verdict::Fail(DEAD) };
        }
        let hit = |at: &AtomicU64, number| number != NEVER && at.load(SeqCst) == number;
        if hit(&self.fail_step, step) || hit(&self.fail_change, change) {
            return Verdict::Fail(Errno::from_raw_os_error(self.errno.load(SeqCst)));
        }
        Verdict::Go
    }

    fn check_flags(&self, flags: RenameFlags) -> Result<()> {
        let refused = !flags.is_empty() && self.plain_renames.load(SeqCst);
        if refused { Err(Error::new(Errno::INVAL, "rename flags")) } else { Ok(()) }
    }

    /// Counts an operation that changes nothing.
    fn look(&self) -> Result<()> {
        match self.judge(false) {
            Verdict::Go => Ok(()),
            Verdict::Fail(errno) => Err(Error::new(errno, "injected fault")),
            Verdict::Tear => Err(Error::new(DEAD, "injected fault")),
        }
    }

    /// Counts an operation that changes something.
    fn change(&self) -> Result<()> {
        match self.judge(true) {
            Verdict::Go => Ok(()),
            Verdict::Fail(errno) => Err(Error::new(errno, "injected fault")),
            Verdict::Tear => Err(Error::new(DEAD, "injected fault")),
        }
    }

    /// Counts a write. Of a torn one, `tear` writes the part that arrives.
    fn write(&self, tear: impl FnOnce()) -> Result<()> {
        match self.judge(true) {
            Verdict::Go => Ok(()),
            Verdict::Fail(errno) => Err(Error::new(errno, "injected fault")),
            Verdict::Tear => {
                tear();
                Err(Error::new(DEAD, "injected fault"))
            }
        }
    }
}

/// A branch that does what its plan lets through.
pub struct FaultBranch {
    inner: Arc<dyn Branch>,
    plan: Arc<FaultPlan>,
}

impl FaultBranch {
    /// Wraps a branch.
    #[must_use]
    pub fn new(inner: Arc<dyn Branch>, plan: Arc<FaultPlan>) -> Arc<Self> {
        Arc::new(Self { inner, plan })
    }
}

impl Branch for FaultBranch {
    fn inner(&self) -> Result<&dyn Branch> {
        Ok(&*self.inner)
    }

    fn root(&self) -> Arc<dyn BranchDir> {
        FaultDir::wrap(self.inner.root(), &self.plan)
    }

    fn open_dir_path(&self, path: &CStr) -> Result<Arc<dyn BranchDir>> {
        self.plan.look()?;
        Ok(FaultDir::wrap(self.inner.open_dir_path(path)?, &self.plan))
    }

    fn statfs(&self) -> Result<StatFs> {
        self.plan.look()?;
        self.inner.statfs()
    }

    fn fsid(&self) -> Result<u64> {
        self.plan.look()?;
        self.inner.fsid()
    }

    fn sync(&self) -> Result<()> {
        self.plan.change()?;
        self.inner.sync()
    }

    fn find_file(&self, ino: u64) -> Result<Arc<dyn BranchFile>> {
        self.plan.look()?;
        Ok(FaultFile::wrap(self.inner.find_file(ino)?, &self.plan))
    }

    fn exchanges(&self) -> bool {
        self.inner.exchanges() && !self.plan.plain_renames.load(SeqCst)
    }
}
