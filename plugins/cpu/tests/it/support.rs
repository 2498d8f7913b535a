//! A host with configuration, and the slots of an instance as methods that answer the code and the
//! message.

use std::collections::HashMap;
use std::ffi::{c_char, c_void};
use std::ptr::null_mut;

use stepmesh_plugin::abi::error::{SM_NOT_FOUND, SM_OK};
use stepmesh_plugin::abi::memory::{SM_COPY_AUTO, SM_MEMORY_DEVICE};
use stepmesh_plugin::abi::{
    SmBackend, SmBackendApi, SmError, SmEvent, SmHostApi, SmOpenArgs, SmPtrAttr,
};

/// Why a slot failed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) code: i32,
    pub(crate) flags: u32,
    pub(crate) message: String,
}

pub(crate) type Answer<T> = Result<T, Failure>;

/// An open instance; closed at the end.
pub(crate) struct Backend {
    pub(crate) api: &'static SmBackendApi,
    s: usize,
}

/// A wait that no test reaches the end of unless it fails.
pub(crate) const LONG_NS: u64 = 30_000_000_000;

impl Backend {
    pub(crate) fn open() -> Self {
        Self::open_with(&[])
    }

    pub(crate) fn open_with(config: &[(&str, &str)]) -> Self {
        let host = host(config);
        let mut err = SmError::new();
        // SAFETY: a leaked table and a local error.
        let api = unsafe { stepmesh_backend_cpu::query(host, &raw mut err) };
        // SAFETY: null or a static table.
        let api = unsafe { api.as_ref() }.expect("the host is whole");
        let mut s = null_mut();
        let args = SmOpenArgs::new();
        let open = api.open.expect(REQUIRED);
        // SAFETY: valid table, arguments, out pointer and error.
        let code = unsafe { open(host, &raw const args, &raw mut s, &raw mut err) };
        assert_eq!(code, SM_OK, "{err:?}");
        Self {
            api,
            s: s.expose_provenance(),
        }
    }

    pub(crate) fn s(&self) -> *mut SmBackend {
        std::ptr::with_exposed_provenance_mut(self.s)
    }

    pub(crate) fn call(
        &self,
        slot: impl FnOnce(*mut SmBackend, *mut SmError) -> i32,
    ) -> Answer<()> {
        let mut err = SmError::new();
        match slot(self.s(), &raw mut err) {
            SM_OK => Ok(()),
            code => {
                assert_eq!(code, err.code);
                let bytes = err.message_bytes();
                let message = String::from_utf8_lossy(&bytes[..err.message_len()]).into_owned();
                Err(Failure {
                    code,
                    flags: err.flags,
                    message,
                })
            }
        }
    }

    pub(crate) fn alloc(&self, size: u64) -> Answer<u64> {
        self.alloc_with(size, 0, SM_MEMORY_DEVICE, 0)
    }

    pub(crate) fn alloc_with(&self, size: u64, align: u64, kind: u32, flags: u32) -> Answer<u64> {
        let mut ptr = 0;
        let alloc = self.api.alloc.expect(REQUIRED);
        // SAFETY: an open instance and a local out pointer.
        self.call(|s, e| unsafe { alloc(s, 0, size, align, kind, flags, &raw mut ptr, e) })?;
        Ok(ptr)
    }

    pub(crate) fn free(&self, ptr: u64) -> Answer<()> {
        let free = self.api.free.expect(REQUIRED);
        // SAFETY: an open instance; tests free memory that nothing uses any more.
        self.call(|s, e| unsafe { free(s, 0, ptr, e) })
    }

    pub(crate) fn attributes(&self, ptr: u64) -> SmPtrAttr {
        let mut out = SmPtrAttr::new();
        let attributes = self.api.pointer_attributes.expect(REQUIRED);
        // SAFETY: an open instance and a local struct that says its size.
        let answer = self.call(|s, e| unsafe { attributes(s, ptr, &raw mut out, e) });
        answer.expect("any address can be asked about");
        out
    }

    pub(crate) fn stream(&self) -> u64 {
        let mut stream = 0;
        let create = self.api.stream_create.expect(REQUIRED);
        // SAFETY: an open instance and a local out pointer.
        let answer = self.call(|s, e| unsafe { create(s, 0, 0, 0, &raw mut stream, e) });
        answer.expect("there is room for streams");
        stream
    }

    pub(crate) fn stream_sync(&self, stream: u64, timeout_ns: u64) -> Answer<()> {
        let sync = self.api.stream_sync.expect(REQUIRED);
        // SAFETY: an open instance.
        self.call(|s, e| unsafe { sync(s, 0, stream, timeout_ns, e) })
    }

    pub(crate) fn copy(&self, dst: u64, src: u64, size: u64, stream: u64) -> Answer<()> {
        let copy = self.api.memcpy_async.expect(REQUIRED);
        // SAFETY: tests copy between live allocations and wait before they free them.
        self.call(|s, e| unsafe { copy(s, dst, src, size, SM_COPY_AUTO, 0, 0, 0, stream, e) })
    }

    pub(crate) fn event(&self, flags: u32) -> *mut SmEvent {
        let mut event = null_mut();
        let create = self.api.event_create.expect(REQUIRED);
        // SAFETY: an open instance and a local out pointer.
        let answer = self.call(|s, e| unsafe { create(s, 0, flags, &raw mut event, e) });
        answer.expect("an event can be made");
        event
    }

    pub(crate) fn record(&self, event: *mut SmEvent, stream: u64) {
        let record = self.api.event_record.expect(REQUIRED);
        // SAFETY: an open instance and a live event.
        let answer = self.call(|s, e| unsafe { record(s, event, 0, stream, e) });
        answer.expect("the stream is there");
    }

    pub(crate) fn event_state(&self, event: *mut SmEvent) -> u32 {
        let mut state = 99;
        let query = self.api.event_query.expect(REQUIRED);
        // SAFETY: an open instance, a live event and a local out pointer.
        let answer = self.call(|s, e| unsafe { query(s, event, &raw mut state, e) });
        answer.expect("an event can be asked");
        state
    }

    pub(crate) fn event_sync(&self, event: *mut SmEvent, timeout_ns: u64, wait: u32) -> Answer<()> {
        let sync = self.api.event_sync.expect(REQUIRED);
        // SAFETY: an open instance and a live event.
        self.call(|s, e| unsafe { sync(s, event, timeout_ns, wait, e) })
    }

    pub(crate) fn destroy_event(&self, event: *mut SmEvent) {
        let destroy = self.api.event_destroy.expect(REQUIRED);
        // SAFETY: an open instance and a live event that the test uses no more.
        let answer = self.call(|s, e| unsafe { destroy(s, event, e) });
        answer.expect("the event is live");
    }

    pub(crate) fn launch(
        &self,
        stream: u64,
        func: unsafe extern "C" fn(*mut c_void),
        arg: *mut c_void,
    ) -> Answer<()> {
        let launch = self
            .api
            .launch_host_func
            .expect("the cpu backend fills this slot");
        // SAFETY: an open instance; tests keep the argument alive until the stream is done.
        self.call(|s, e| unsafe { launch(s, 0, stream, Some(func), arg, e) })
    }

    pub(crate) fn close(mut self) -> Answer<()> {
        let close = self.api.close.expect(REQUIRED);
        // SAFETY: an open instance that nothing uses any more.
        let answer = self.call(|s, e| unsafe { close(s, e) });
        self.s = 0;
        answer
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        if self.s != 0 {
            let close = self.api.close.expect(REQUIRED);
            // SAFETY: an open instance that nothing uses any more.
            let answer = self.call(|s, e| unsafe { close(s, e) });
            assert_eq!(answer, Ok(()));
        }
    }
}

/// Memory that the test may touch.
pub(crate) fn bytes<'a>(ptr: u64, len: usize) -> &'a mut [u8] {
    let addr = usize::try_from(ptr).expect("an address");
    let at = std::ptr::with_exposed_provenance_mut(addr);
    // SAFETY: tests pass live allocations of at least this length, and wait for streams first.
    unsafe { std::slice::from_raw_parts_mut(at, len) }
}

/// A host with configuration; leaked, as a host's table lives as long as the process.
pub(crate) fn host(config: &[(&str, &str)]) -> &'static SmHostApi {
    let config: HashMap<String, String> = config
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect();
    let api = SmHostApi {
        ctx: Box::into_raw(Box::new(config)).cast(),
        get_config: Some(get_config),
        ..SmHostApi::new()
    };
    Box::leak(Box::new(api))
}

unsafe extern "C" fn get_config(
    ctx: *mut c_void,
    key: *const c_char,
    key_len: u32,
    buf: *mut c_char,
    cap: u32,
    len: *mut u32,
) -> i32 {
    // SAFETY: the context is the leaked map.
    let config = unsafe { &*ctx.cast::<HashMap<String, String>>() };
    // SAFETY: the kit passes a key of that length.
    let key = unsafe { std::slice::from_raw_parts(key.cast::<u8>(), key_len as usize) };
    let value = std::str::from_utf8(key)
        .ok()
        .and_then(|key| config.get(key));
    let Some(value) = value.filter(|value| value.len() <= cap as usize) else {
        return SM_NOT_FOUND;
    };
    // SAFETY: the buffer has `cap` bytes, at least as many as the value.
    unsafe {
        buf.cast::<u8>()
            .copy_from_nonoverlapping(value.as_ptr(), value.len())
    };
    // SAFETY: the kit passes a place for the length.
    unsafe { len.write(u32::try_from(value.len()).unwrap_or(0)) };
    SM_OK
}

pub(crate) const REQUIRED: &str = "the slot is required";
