//! Page-aligned buffers that a worker keeps for its lifetime.

/// Data begins at a multiple of this (bytes), so that the kernel copies whole pages.
const ALIGN: usize = 4096;

/// A buffer whose byte number `lead` lies on a page boundary. Its memory is zeroed by the allocator and thus
/// becomes resident only where it has been used.
#[derive(Debug)]
pub(crate) struct Buffer {
    store: Vec<u8>,
    start: usize,
    len: usize,
}

impl Buffer {
    /// `len` bytes, of which byte `lead` is aligned.
    pub(crate) fn new(len: usize, lead: usize) -> Self {
        let store = vec![0; len + 2 * ALIGN];
        let misfit = (store.as_ptr() as usize).wrapping_add(lead) % ALIGN;
        let start = (ALIGN - misfit) % ALIGN;
        Self { store, start, len }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.store.get(self.start..self.start + self.len).unwrap_or_default()
    }

    /// Puts pages behind all of it.
    pub(crate) fn touch(&mut self) {
        let bytes = self.bytes_mut();
        let last = bytes.len().saturating_sub(1);
        for at in (0..last).step_by(ALIGN).chain([last]) {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = std::hint::black_box(0);
            }
        }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        self.store.get_mut(self.start..self.start + self.len).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_is_page_aligned() {
        for lead in [0, 16, 80, 4095] {
            let mut buffer = Buffer::new(10_000, lead);
            assert_eq!(buffer.bytes_mut().len(), 10_000);
            assert_eq!(buffer.bytes()[lead..].as_ptr() as usize % ALIGN, 0);
        }
    }
}
