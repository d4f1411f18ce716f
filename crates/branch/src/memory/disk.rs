//! A disk in memory: its state, and what has happened to it.

use super::data::Data;
use super::power::History;
use crate::tree::Options;
use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;

/// Everything on a disk.
pub(super) type State = crate::tree::State<Data>;

/// A disk, shared by all objects on it.
pub(super) struct Disk {
    state: Mutex<State>,
    /// What has happened since [`Disk::record`].
    history: Mutex<Option<History>>,
}

impl Disk {
    pub(super) fn new(dev: u64, options: Options) -> Arc<Self> {
        Self::with_state(State::new(dev, options))
    }

    fn with_state(state: State) -> Arc<Self> {
        Arc::new(Self { state: Mutex::new(state), history: Mutex::default() })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        let state = self.state.lock();
        // What the operation before this one has left.
        if let Some(history) = &mut *self.history.lock() {
            history.note(&state);
        }
        state
    }

    /// From now on every state is kept; all that is there now counts as durable.
    pub(super) fn record(&self) {
        let state = self.state.lock();
        *self.history.lock() = Some(History::new(&state));
    }

    /// A file has been made durable, or (`datasync`) its data have.
    pub(super) fn synced(&self, ino: u64, datasync: bool) {
        drop(self.lock());
        if let Some(history) = &mut *self.history.lock() {
            history.synced(ino, datasync);
        }
    }

    /// Everything has been made durable.
    pub(super) fn synced_all(&self) {
        let all: Vec<u64> = self.lock().inodes.keys().copied().collect();
        if let Some(history) = &mut *self.history.lock() {
            all.into_iter().for_each(|ino| history.synced(ino, false));
        }
    }

    /// The number of the newest state that was recorded.
    pub(super) fn moment(&self) -> usize {
        drop(self.lock());
        self.history.lock().as_ref().map_or(0, History::now)
    }

    /// What a loss of power at or after the state numbered `earliest` might leave. None: nothing was recorded.
    pub(super) fn after_power_loss(
        &self,
        earliest: usize,
        choose: &mut dyn FnMut(usize) -> usize,
    ) -> Option<Arc<Self>> {
        drop(self.lock());
        let mut state = self.history.lock().as_ref()?.after_power_loss(earliest, choose);
        state.forget_holders();
        Some(Self::with_state(state))
    }

    /// What the death of a client might leave that keeps changes of files until they are synced. None: nothing was recorded.
    pub(super) fn after_client_loss(&self, choose: &mut dyn FnMut(usize) -> usize) -> Option<Arc<Self>> {
        drop(self.lock());
        let mut state = self.history.lock().as_ref()?.after_client_loss(choose);
        state.forget_holders();
        Some(Self::with_state(state))
    }

    /// What a machine would find after a crash: the same, and nobody holds anything.
    pub(super) fn fork(&self) -> Arc<Self> {
        let mut state = self.lock().clone();
        state.forget_holders();
        Self::with_state(state)
    }
}
