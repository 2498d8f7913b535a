//! A host with configuration, and the slots of an instance as methods that answer the code and the
//! message.

use std::collections::HashMap;
use std::ffi::{c_char, c_void};
use std::ptr::null_mut;
use std::sync::Mutex;

use stepmesh_plugin::abi::error::{SM_NOT_FOUND, SM_OK};
use stepmesh_plugin::abi::memory::{SM_COPY_AUTO, SM_MEMORY_DEVICE};
use stepmesh_plugin::abi::{
    SmBackend, SmBackendApi, SmError, SmEvent, SmHostApi, SmOpenArgs, SmPtrAttr,
};

/// Why a slot failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) code: i32,
    pub(crate) flags: u32,
    pub(crate) message: String,
}

pub(crate) type Answer<T> = Result<T, Failure>;

/// An open instance; closed at the end.
pub(crate) struct Backend {
    pub(crate) api: &'static SmBackendApi,
    host: &'static Host,
    s: usize,
}

/// What is behind the host's table.
struct Host {
    config: HashMap<String, String>,
    async_errors: Mutex<Vec<(u32, i32)>>,
}

impl Backend {
    pub(crate) fn open(options: &[(&str, &str)]) -> Self {
        Self::try_open(options).unwrap_or_else(|failure| panic!("cannot open: {failure:?}"))
    }

    pub(crate) fn try_open(options: &[(&str, &str)]) -> Answer<Self> {
        let (host, table) = host(options);
        let mut err = SmError::new();
        // SAFETY: a leaked table and a local error.
        let api = unsafe { stepmesh_backend_sim::query(table, &raw mut err) };
        // SAFETY: null or a static table.
        let api = unsafe { api.as_ref() }.expect("the host is whole");
        let mut s = null_mut();
        let args = SmOpenArgs::new();
        let open = api.open.expect(REQUIRED);
        // SAFETY: valid table, arguments, out pointer and error.
        let code = unsafe { open(table, &raw const args, &raw mut s, &raw mut err) };
        answer(code, &err)?;
        let s = s.expose_provenance();
        Ok(Self { api, host, s })
    }

    /// Asynchronous errors that the host was told of: device and code.
    pub(crate) fn async_errors(&self) -> Vec<(u32, i32)> {
        self.host
            .async_errors
            .lock()
            .expect("no test panics with it")
            .clone()
    }

    pub(crate) fn call(
        &self,
        slot: impl FnOnce(*mut SmBackend, *mut SmError) -> i32,
    ) -> Answer<()> {
        let mut err = SmError::new();
        let code = slot(std::ptr::with_exposed_provenance_mut(self.s), &raw mut err);
        answer(code, &err)
    }

    pub(crate) fn alloc(&self, dev: u32, size: u64) -> Answer<u64> {
        self.alloc_with(dev, size, 0, SM_MEMORY_DEVICE, 0)
    }

    pub(crate) fn alloc_with(
        &self,
        dev: u32,
        size: u64,
        align: u64,
        kind: u32,
        flags: u32,
    ) -> Answer<u64> {
        let mut ptr = 0;
        let alloc = self.api.alloc.expect(REQUIRED);
        // SAFETY: an open instance and a local out pointer.
        self.call(|s, e| unsafe { alloc(s, dev, size, align, kind, flags, &raw mut ptr, e) })?;
        Ok(ptr)
    }

    pub(crate) fn free(&self, dev: u32, ptr: u64) -> Answer<()> {
        let free = self.api.free.expect(REQUIRED);
        // SAFETY: an open instance; tests free memory that nothing uses any more.
        self.call(|s, e| unsafe { free(s, dev, ptr, e) })
    }

    pub(crate) fn memory(&self, dev: u32) -> Answer<(u64, u64)> {
        let (mut free, mut total) = (0, 0);
        let mem_info = self.api.mem_info.expect(FILLED);
        // SAFETY: an open instance and local out pointers.
        self.call(|s, e| unsafe { mem_info(s, dev, &raw mut free, &raw mut total, e) })?;
        Ok((free, total))
    }

    pub(crate) fn health(&self, dev: u32) -> u32 {
        let mut state = 9;
        let health = self.api.health.expect(FILLED);
        // SAFETY: an open instance and a local out pointer.
        let answer = self.call(|s, e| unsafe { health(s, dev, &raw mut state, e) });
        answer.expect("health can always be asked for");
        state
    }

    pub(crate) fn attributes(&self, ptr: u64) -> SmPtrAttr {
        let mut out = SmPtrAttr::new();
        let attributes = self.api.pointer_attributes.expect(REQUIRED);
        // SAFETY: an open instance and a local struct that says its size.
        let answer = self.call(|s, e| unsafe { attributes(s, ptr, &raw mut out, e) });
        answer.expect("any address can be asked about");
        out
    }

    pub(crate) fn stream(&self, dev: u32) -> Answer<u64> {
        let mut stream = 0;
        let create = self.api.stream_create.expect(REQUIRED);
        // SAFETY: an open instance and a local out pointer.
        self.call(|s, e| unsafe { create(s, dev, 0, 0, &raw mut stream, e) })?;
        Ok(stream)
    }

    pub(crate) fn stream_sync(&self, dev: u32, stream: u64, timeout_ns: u64) -> Answer<()> {
        let sync = self.api.stream_sync.expect(REQUIRED);
        // SAFETY: an open instance.
        self.call(|s, e| unsafe { sync(s, dev, stream, timeout_ns, e) })
    }

    /// A copy on a stream: destination, source, bytes, direction with both devices.
    pub(crate) fn copy_as(
        &self,
        (dst, src, size): (u64, u64, u64),
        (direction, dst_dev, src_dev): (u32, u32, u32),
        (dev, stream): (u32, u64),
    ) -> Answer<()> {
        let copy = self.api.memcpy_async.expect(REQUIRED);
        // SAFETY: tests copy between live memory and wait before they free it.
        self.call(|s, e| unsafe {
            copy(
                s, dst, src, size, direction, dst_dev, src_dev, dev, stream, e,
            )
        })
    }

    pub(crate) fn copy(&self, dst: u64, src: u64, size: u64, stream: (u32, u64)) -> Answer<()> {
        self.copy_as((dst, src, size), (SM_COPY_AUTO, 0, 0), stream)
    }

    pub(crate) fn copy_now(&self, dst: u64, src: u64, size: u64) -> Answer<()> {
        let copy = self.api.memcpy_sync.expect(FILLED);
        // SAFETY: tests copy between live memory.
        self.call(|s, e| unsafe { copy(s, dst, src, size, SM_COPY_AUTO, 0, 0, e) })
    }

    pub(crate) fn fill(
        &self,
        dst: u64,
        value: u32,
        width: u32,
        size: u64,
        (dev, stream): (u32, u64),
    ) -> Answer<()> {
        let fill = self.api.memset_async.expect(FILLED);
        // SAFETY: tests fill live memory and wait before they free it.
        self.call(|s, e| unsafe { fill(s, dst, value, width, size, dev, stream, e) })
    }

    /// Writes device memory and waits.
    pub(crate) fn write(&self, dst: u64, bytes: &[u8]) {
        let answer = self.copy_now(dst, address(bytes), len(bytes));
        answer.expect("live memory of that size can be written");
    }

    /// Reads device memory.
    pub(crate) fn read(&self, src: u64, size: usize) -> Vec<u8> {
        let mut bytes = vec![0; size];
        let dst = u64::try_from(bytes.as_mut_ptr().expose_provenance()).expect("an address");
        let answer = self.copy_now(dst, src, len(&bytes));
        answer.expect("live memory of that size can be read");
        bytes
    }

    pub(crate) fn event(&self, dev: u32) -> Answer<*mut SmEvent> {
        let mut event = null_mut();
        let create = self.api.event_create.expect(REQUIRED);
        // SAFETY: an open instance and a local out pointer.
        self.call(|s, e| unsafe { create(s, dev, 0, &raw mut event, e) })?;
        Ok(event)
    }

    pub(crate) fn record(&self, event: *mut SmEvent, (dev, stream): (u32, u64)) -> Answer<()> {
        let record = self.api.event_record.expect(REQUIRED);
        // SAFETY: an open instance and a live event.
        self.call(|s, e| unsafe { record(s, event, dev, stream, e) })
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

    pub(crate) fn launch(
        &self,
        (dev, stream): (u32, u64),
        func: unsafe extern "C" fn(*mut c_void),
        arg: *mut c_void,
    ) -> Answer<()> {
        let launch = self.api.launch_host_func.expect(FILLED);
        // SAFETY: an open instance; tests keep the argument alive until the stream is done.
        self.call(|s, e| unsafe { launch(s, dev, stream, Some(func), arg, e) })
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
            // A test that failed may have left work; its own message counts.
            assert!(std::thread::panicking() || answer == Ok(()), "{answer:?}");
        }
    }
}

/// Host memory that the test may touch.
pub(crate) fn bytes<'a>(ptr: u64, len: usize) -> &'a mut [u8] {
    let addr = usize::try_from(ptr).expect("an address");
    let at = std::ptr::with_exposed_provenance_mut(addr);
    // SAFETY: tests pass live pinned memory of at least this length, and wait for streams first.
    unsafe { std::slice::from_raw_parts_mut(at, len) }
}

/// Address of host memory that is only read.
pub(crate) fn address(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.as_ptr().expose_provenance()).expect("an address")
}

fn len(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).expect("a length")
}

fn answer(code: i32, err: &SmError) -> Answer<()> {
    if code == SM_OK {
        return Ok(());
    }
    assert_eq!(code, err.code);
    let message = &err.message_bytes()[..err.message_len()];
    Err(Failure {
        code,
        flags: err.flags,
        message: String::from_utf8_lossy(message).into_owned(),
    })
}

/// A host with configuration; leaked, as a host's table lives as long as the process.
fn host(options: &[(&str, &str)]) -> (&'static Host, &'static SmHostApi) {
    let config = options
        .iter()
        .map(|(key, value)| (format!("sim.{key}"), (*value).to_owned()))
        .collect();
    let host: &'static Host = Box::leak(Box::new(Host {
        config,
        async_errors: Mutex::default(),
    }));
    let api = SmHostApi {
        ctx: std::ptr::from_ref(host).cast_mut().cast(),
        get_config: Some(get_config),
        report_async_error: Some(report_async_error),
        ..SmHostApi::new()
    };
    (host, Box::leak(Box::new(api)))
}

unsafe extern "C" fn get_config(
    ctx: *mut c_void,
    key: *const c_char,
    key_len: u32,
    buf: *mut c_char,
    cap: u32,
    len: *mut u32,
) -> i32 {
    // SAFETY: the context is the leaked host.
    let host = unsafe { &*ctx.cast::<Host>() };
    // SAFETY: the kit passes a key of that length.
    let key = unsafe { std::slice::from_raw_parts(key.cast::<u8>(), key_len as usize) };
    let value = std::str::from_utf8(key)
        .ok()
        .and_then(|key| host.config.get(key));
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

unsafe extern "C" fn report_async_error(ctx: *mut c_void, device: u32, err: *const SmError) {
    // SAFETY: the context is the leaked host.
    let host = unsafe { &*ctx.cast::<Host>() };
    // SAFETY: the kit passes a whole error.
    let code = unsafe { (*err).code };
    if let Ok(mut errors) = host.async_errors.lock() {
        errors.push((device, code));
    }
}

/// A wait that no test reaches the end of unless it fails.
pub(crate) const LONG_NS: u64 = 30_000_000_000;
/// A wait whose end a test does reach.
pub(crate) const SHORT_NS: u64 = 2_000_000;
pub(crate) const REQUIRED: &str = "the slot is required";
pub(crate) const FILLED: &str = "the sim backend fills this slot";
