//! The functions whose place this library takes: the next of that name after it, in the order in which objects were loaded; and variables
//! of libc.
//!
//! They are found in the objects' own tables: `dlsym` is in another library in each libc.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::Relaxed;

/// Types of symbols.
const VARIABLE: u8 = 1;
const FUNCTION: u8 = 2;

/// A name, and what was found for it.
pub(crate) struct Next {
    name: &'static CStr,
    kind: u8,
    /// 0: nothing yet. What nobody has is looked for again: the object that has it may be loaded later.
    at: AtomicUsize,
}

impl Next {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self { name, kind: FUNCTION, at: AtomicUsize::new(0) }
    }

    pub(crate) const fn variable(name: &'static CStr) -> Self {
        Self { name, kind: VARIABLE, at: AtomicUsize::new(0) }
    }

    /// Its address, if it has been found already.
    #[inline]
    pub(crate) fn cached_address(&self) -> Option<usize> {
        let at = self.at.load(Relaxed);
        (at != 0).then_some(at)
    }

    /// From now on it is something else.
    pub(crate) fn set(&self, at: usize) {
        self.at.store(at, Relaxed);
    }

    /// Its address; None: nobody has it.
    pub(crate) fn get(&self) -> Option<usize> {
        if let Some(known) = self.cached_address() {
            return Some(known);
        }
        let found = find(self.name, self.kind)?;
        self.at.store(found, Relaxed);
        Some(found)
    }
}

#[repr(C)]
struct Object {
    base: usize,
    name: *const c_char,
    headers: *const Header,
    count: u16,
}

#[repr(C)]
struct Header {
    kind: u32,
    flags: u32,
    offset: u64,
    address: u64,
    physical: u64,
    file_size: u64,
    memory_size: u64,
    align: u64,
}

#[repr(C)]
struct Symbol {
    name: u32,
    info: u8,
    other: u8,
    section: u16,
    value: u64,
    size: u64,
}

unsafe extern "C" {
    fn dl_iterate_phdr(
        visit: unsafe extern "C" fn(*const Object, usize, *mut c_void) -> c_int,
        data: *mut c_void,
    ) -> c_int;
}

struct Search {
    name: &'static CStr,
    kind: u8,
    /// This library has been passed.
    passed: bool,
    found: Option<usize>,
}

#[cold]
#[inline(never)]
fn find(name: &'static CStr, kind: u8) -> Option<usize> {
    let mut search = Search { name, kind, passed: false, found: None };
    // SAFETY: `visit` takes what is given here.
    unsafe { dl_iterate_phdr(visit, (&raw mut search).cast()) };
    search.found
}

unsafe extern "C" fn visit(object: *const Object, _: usize, search: *mut c_void) -> c_int {
    // SAFETY: `find` has passed this, and the loader an object.
    let (object, search) = unsafe { (&*object, &mut *search.cast::<Search>()) };
    if object.headers.is_null() {
        return 0;
    }
    // SAFETY: the loader says how many there are.
    let headers = unsafe { core::slice::from_raw_parts(object.headers, usize::from(object.count)) };
    if !search.passed {
        let here = visit as *const () as u64;
        let start = |header: &Header| (object.base as u64).wrapping_add(header.address);
        search.passed = headers.iter().any(|header| {
            header.kind == 1 && (0..header.memory_size).contains(&here.wrapping_sub(start(header)))
        });
        return 0;
    }
    let Some(dynamic) = headers.iter().find(|header| header.kind == 2) else { return 0 };
    // SAFETY: it is the object's dynamic section, which is loaded.
    search.found =
        unsafe { look(object.base, object.base + dynamic.address as usize, search.name, search.kind) };
    c_int::from(search.found.is_some())
}

/// Looks a name up in an object.
///
/// # Safety
/// `dynamic` must be the address of the dynamic section of an object that is loaded at `base`.
unsafe fn look(base: usize, dynamic: usize, name: &CStr, kind: u8) -> Option<usize> {
    let (mut strings, mut symbols, mut hash) = (0, 0, 0);
    let mut at = dynamic as *const [usize; 2];
    loop {
        // SAFETY: the section is a list of pairs that ends with a pair of the kind 0.
        let [kind, value] = unsafe { at.read() };
        // Some loaders write addresses here, some leave offsets.
        let address = if value < base { base + value } else { value };
        match kind {
            0 => break,
            5 => strings = address,
            6 => symbols = address,
            0x6fff_fef5 => hash = address,
            _ => {}
        }
        // SAFETY: the end has not been reached.
        at = unsafe { at.add(1) };
    }
    if strings == 0 || symbols == 0 || hash == 0 {
        return None;
    }
    let word = |address: usize| {
        // SAFETY: it lies in the hash table, whose form is followed here.
        unsafe { (address as *const u32).read() }
    };
    let [buckets, first, blooms] = [word(hash), word(hash + 4), word(hash + 8)].map(|n| n as usize);
    if buckets == 0 {
        return None;
    }
    let bucket_at = hash + 16 + blooms * 8;
    let chain_at = bucket_at + buckets * 4;
    let wanted =
        name.to_bytes().iter().fold(5381u32, |h, byte| h.wrapping_mul(33).wrapping_add((*byte).into()));
    let mut index = word(bucket_at + wanted as usize % buckets * 4) as usize;
    if index < first {
        return None;
    }
    loop {
        let hashed = word(chain_at + (index - first) * 4);
        if hashed | 1 == wanted | 1 {
            // SAFETY: the hash table names symbols that exist.
            let symbol = unsafe { &*(symbols as *const Symbol).add(index) };
            // SAFETY: a symbol's name is a string of the table of strings.
            let found = unsafe { CStr::from_ptr((strings + symbol.name as usize) as *const c_char) };
            let is_there = symbol.info & 0xf == kind && symbol.section != 0;
            if is_there && found == name {
                return Some(base + symbol.value as usize);
            }
        }
        if hashed & 1 != 0 {
            return None;
        }
        index += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbols_of_the_next_object_are_found() {
        static CLOSE: Next = Next::new(c"close");
        static NONE: Next = Next::new(c"no_such_function_anywhere");
        let close = CLOSE.get().unwrap();
        // SAFETY: it is libc's close.
        let close: extern "C" fn(c_int) -> c_int = unsafe { core::mem::transmute(close) };
        assert_eq!(close(-1), -1);
        assert!(NONE.get().is_none() && NONE.get().is_none());
    }
}
