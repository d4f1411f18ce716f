//! How far a call has come, for those who outlive the service that carries it out.

/// Hears how far a call has come, for those who must know when the service dies before it answers.
pub trait Progress {
    /// Something is about to be changed that is not the same when it is done twice.
    fn begins(&self);
    /// It has not been changed after all.
    fn has_failed(&self);
}

impl dyn Progress + '_ {
    /// Does something that is not the same when it is done twice.
    pub fn once<T, E>(&self, act: impl FnOnce() -> std::result::Result<T, E>) -> std::result::Result<T, E> {
        self.begins();
        let done = act();
        if done.is_err() {
            self.has_failed();
        }
        done
    }
}

/// Nobody wants to know.
impl Progress for () {
    fn begins(&self) {}
    fn has_failed(&self) {}
}
