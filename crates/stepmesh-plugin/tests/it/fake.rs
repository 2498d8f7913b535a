//! A backend that does almost nothing: no memory, no streams, but every way to fail.

use std::cell::Cell;

use stepmesh_plugin::abi::note::{NoteParams, SM_KIND_ACCELERATOR};
use stepmesh_plugin::abi::{SmDeviceInfo, SmPtrAttr};
use stepmesh_plugin::{
    AllocRequest, Backend, CopyRequest, Error, EventOptions, EventState, Extension, Host, HostFunc,
    Optional, Probe, Result, Stream, WaitMode, text_field,
};

stepmesh_plugin::static_backend!(Fake);

/// Two devices; a device-wide wait on device 1 panics.
pub(crate) struct Fake {
    host: Host,
}

/// Counts itself.
pub(crate) struct FakeEvent;

impl Drop for FakeEvent {
    fn drop(&mut self) {
        LIVE_EVENTS.with(|live| live.set(live.get() - 1));
    }
}

#[expect(unsafe_code, reason = "the trait has unsafe methods")]
impl Backend for Fake {
    type Event = FakeEvent;

    const NOTE: NoteParams<'static> = NoteParams {
        kind: SM_KIND_ACCELERATOR,
        aliases: "FAKE",
        ..NoteParams::new("fake", "0.1")
    };
    const OPTIONAL: &'static [Optional] = &[Optional::MemInfo, Optional::LaunchHostFunc];

    fn probe(_host: &Host) -> Result<Probe> {
        Ok(Probe {
            device_count: 2,
            score: 1,
        })
    }

    fn open(host: Host) -> Result<Self> {
        match host.config("fake.open").as_deref() {
            Some("panic") => panic!("told to panic in open"),
            Some("fail") => Err(Error::internal("told to fail").with_native_code(77)),
            _ => Ok(Self { host }),
        }
    }

    fn quiesce(&self) -> Result<()> {
        Ok(())
    }

    fn device_count(&self) -> u32 {
        2
    }

    fn device_info(&self, device: u32) -> Result<SmDeviceInfo> {
        let name = text_field(&format!("fake {device}"));
        Ok(SmDeviceInfo {
            name,
            total_mem: 4096,
            ..SmDeviceInfo::new()
        })
    }

    fn mem_info(&self, _device: u32) -> Result<(u64, u64)> {
        Ok((1, 2))
    }

    fn capabilities(&self, _device: u32) -> Result<u64> {
        Ok(0)
    }

    fn set_current_device(&self, _device: u32) -> Result<()> {
        Ok(())
    }

    fn current_device(&self) -> Result<Option<u32>> {
        Ok(None)
    }

    fn device_sync(&self, device: u32) -> Result<()> {
        assert_ne!(device, 1, "told to panic");
        self.host
            .report_async_error(device, &Error::internal("from far away"));
        Ok(())
    }

    fn alloc(&self, _device: u32, request: &AllocRequest) -> Result<u64> {
        Err(Error::out_of_memory(
            "é".repeat(usize::try_from(request.len_bytes).unwrap_or(0)),
        ))
    }

    unsafe fn free(&self, _device: u32, ptr: u64) -> Result<()> {
        Err(Error::invalid_argument(format!(
            "{ptr:#x} is not the start of an allocation"
        )))
    }

    fn pointer_attributes(&self, ptr: u64) -> Result<SmPtrAttr> {
        Ok(SmPtrAttr {
            base: ptr,
            size: 7,
            alloc_id: 9,
            ..SmPtrAttr::new()
        })
    }

    fn stream_create(&self, _device: u32, _priority: i32, _non_blocking: bool) -> Result<u64> {
        Ok(3)
    }

    fn stream_destroy(&self, _stream: Stream) -> Result<()> {
        Ok(())
    }

    fn stream_sync(&self, _stream: Stream, _timeout_ns: u64) -> Result<()> {
        Ok(())
    }

    fn stream_is_done(&self, _stream: Stream) -> Result<bool> {
        Ok(true)
    }

    fn stream_wait_event(&self, _stream: Stream, _event: &FakeEvent) -> Result<()> {
        Ok(())
    }

    unsafe fn memcpy_async(&self, _request: &CopyRequest, _stream: Stream) -> Result<()> {
        Ok(())
    }

    fn event_create(&self, _device: u32, _options: EventOptions) -> Result<FakeEvent> {
        LIVE_EVENTS.with(|live| live.set(live.get() + 1));
        Ok(FakeEvent)
    }

    fn event_record(&self, _event: &FakeEvent, _stream: Stream) -> Result<()> {
        Ok(())
    }

    fn event_query(&self, _event: &FakeEvent) -> Result<EventState> {
        Ok(EventState::Done)
    }

    fn event_sync(&self, _event: &FakeEvent, _timeout_ns: u64, _mode: WaitMode) -> Result<()> {
        Ok(())
    }

    fn launch_host_func(&self, _stream: Stream, func: HostFunc) -> Result<()> {
        drop(func);
        Ok(())
    }

    fn extension(&self, name: &str, _min_version: u32) -> Option<Extension> {
        (name == "org.example.answer.v1").then(|| Extension::new(&42_u64, 3))
    }
}

thread_local! {
    /// Events made on this thread that were not dropped; each test has a thread of its own.
    pub(crate) static LIVE_EVENTS: Cell<i32> = const { Cell::new(0) };
}
