//! The tables of extensions as functions with checked arguments.
#![expect(unsafe_code, reason = "calls through the tables of extensions")]

use std::sync::atomic::{AtomicU64, Ordering};

use stepmesh_abi::extension::{SM_EXTENSION_IPC_V1, SM_EXTENSION_MEMEVENT_V1};
use stepmesh_abi::{SmHdr, SmIpcHandle, SmIpcV1, SmMemEvent, SmMemEventV1};

use super::error_arg::{ErrorArg, ErrorMode};
use super::failure::Failure;
use super::memory::{Allocation, Range, narrow};
use super::progress;
use super::session::Session;

/// Calls a function of an extension's table, as `session` does those of the main one.
macro_rules! call {
    ($self:ident.$slot:ident($($arg:expr),* $(,)?)) => {{
        let slot = $self.table.$slot.ok_or_else(|| Failure::absent(stringify!($slot)))?;
        let mut error = ErrorArg::new(ErrorMode::Whole);
        progress::enter(stringify!($slot));
        // SAFETY: the instance is open, out pointers are live locals, handles came from this very
        // table, and the error is a whole struct.
        let status = unsafe { slot($self.session.instance, $($arg,)* error.as_ptr()) };
        progress::leave();
        error.judge(stringify!($slot), status).result
    }};
}
pub(super) use call;

/// `stepmesh.memevent.v1` of an instance.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemEvents<'a> {
    session: &'a Session,
    table: SmMemEventV1,
}

/// A mem-event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemEvent(*mut SmMemEvent);

impl MemEvent {
    pub(crate) const NULL: Self = Self(std::ptr::null_mut());
}

/// The word of a mem-event.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Word(*const u64);

impl Word {
    /// What is there now; what was done before it was written can be seen.
    pub(crate) fn load(&self) -> u64 {
        // SAFETY: `poll_addr` checked that it is not null and aligned; by the ABI the host may read
        // it while the event lives, and it is written as a whole.
        unsafe { AtomicU64::from_ptr(self.0.cast_mut()) }.load(Ordering::Acquire)
    }

    pub(crate) fn address(&self) -> usize {
        self.0.addr()
    }
}

impl<'a> MemEvents<'a> {
    /// The extension, or why there is none.
    pub(crate) fn of(session: &'a Session) -> Result<Self, Failure> {
        let missing = SmMemEventV1 {
            hdr: SmHdr::of::<SmMemEventV1>(),
            create: None,
            destroy: None,
            arm: None,
            poll_addr: None,
            query: None,
        };
        let table = copy_table(session, SM_EXTENSION_MEMEVENT_V1, missing)?;
        Ok(Self { session, table })
    }

    pub(crate) fn create(&self, dev: u32) -> Result<MemEvent, Failure> {
        let mut event = std::ptr::null_mut();
        call!(self.create(dev, &raw mut event))?;
        Ok(MemEvent(event))
    }

    pub(crate) fn destroy(&self, event: MemEvent) -> Result<(), Failure> {
        call!(self.destroy(event.0))
    }

    pub(crate) fn arm(
        &self,
        event: MemEvent,
        on: super::session::Stream,
        seq: u64,
    ) -> Result<(), Failure> {
        call!(self.arm(event.0, on.dev, on.raw, seq))
    }

    /// Where the word is; `None` for an address that cannot be one.
    pub(crate) fn word(&self, event: MemEvent) -> Result<Option<Word>, Failure> {
        let mut word = std::ptr::null();
        call!(self.poll_addr(event.0, &raw mut word))?;
        let is_word = !word.is_null() && word.is_aligned();
        Ok(is_word.then_some(Word(word)))
    }

    pub(crate) fn query(&self, event: MemEvent) -> Result<u32, Failure> {
        let mut state = u32::MAX;
        call!(self.query(event.0, &raw mut state))?;
        Ok(state)
    }
}

/// `stepmesh.ipc.v1` of an instance.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ipc<'a> {
    session: &'a Session,
    table: SmIpcV1,
}

impl<'a> Ipc<'a> {
    /// The extension, or why there is none.
    pub(crate) fn of(session: &'a Session) -> Result<Self, Failure> {
        let missing = SmIpcV1 {
            hdr: SmHdr::of::<SmIpcV1>(),
            export_memory: None,
            import_memory: None,
            close_import: None,
        };
        let table = copy_table(session, SM_EXTENSION_IPC_V1, missing)?;
        Ok(Self { session, table })
    }

    /// Exports a range; also one that is longer than what it is part of.
    pub(crate) fn export(&self, dev: u32, range: Range) -> Result<SmIpcHandle, Failure> {
        let mut handle = SmIpcHandle::new();
        call!(self.export_memory(dev, range.addr, range.len_bytes, &raw mut handle))?;
        Ok(handle)
    }

    pub(crate) fn import(&self, dev: u32, handle: &SmIpcHandle) -> Result<Allocation, Failure> {
        let mut ptr = 0;
        call!(self.import_memory(dev, handle, &raw mut ptr))?;
        Ok(Allocation {
            dev,
            ptr,
            len_bytes: handle.len,
        })
    }

    pub(crate) fn close_import(&self, dev: u32, ptr: u64) -> Result<(), Failure> {
        call!(self.close_import(dev, ptr))
    }
}

/// As much of an extension's table as both sides know, over one in which all is missing.
pub(super) fn copy_table<T: Copy>(session: &Session, name: &str, missing: T) -> Result<T, Failure> {
    let extension = session.extension(name, 1)?;
    let hdr = extension.header();
    let mut table = missing;
    if let Some(hdr) = hdr {
        let len = narrow(hdr.struct_size.into()).min(size_of::<T>()) / 8 * 8;
        let from = extension.table.cast::<u8>();
        // SAFETY: the plugin's table has at least `len` bytes by its own header, and so has the
        // local; its fields are integers and optional functions, all of them whole words.
        unsafe {
            (&raw mut table)
                .cast::<u8>()
                .copy_from_nonoverlapping(from, len)
        };
    }
    Ok(table)
}
