//! What a child process does with the runtime that it finds. The backend is linked in and called as the
//! kit's table calls it; the loader and the runtime's library are real, the devices are simulated.

use std::os::fd::AsFd as _;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::Instant;

use stepmesh_driver::Library;
use stepmesh_plugin::abi::Code;
use stepmesh_plugin::abi::device::SM_CAP_DMABUF_DEFAULT;
use stepmesh_plugin::abi::error::{SM_ERROR_DEVICE_LOST, SM_ERROR_OOM, SM_ERROR_STICKY};
use stepmesh_plugin::abi::extension::{
    SM_FLAG_WAIT_ABORTED, SM_FLAG_WAIT_REACHED, SM_FLAG_WAIT_TIMED_OUT,
};
use stepmesh_plugin::abi::stream::SM_STREAM_LEGACY;
use stepmesh_plugin::{
    AllocKind, AllocRequest, Backend as _, Capture, DmabufMapping, EventOptions, FillRequest,
    FlagWait, Graph as _, Health, MemEvents as _, Rdma as _, Stream, WaitMode,
};

use crate::judged;
use crate::runtimes;
use crate::support::{LONG_NS, Words, alloc, copy, open, stream};

/// Runs the scenario that the environment names, if it names one.
pub(crate) fn run_if_asked() -> Option<ExitCode> {
    let role = std::env::var(ROLE).ok()?;
    let mut scenarios = SCENARIOS.iter().chain(crate::computing::SCENARIOS);
    let scenario = scenarios.find(|(name, _)| *name == role);
    let (_, scenario) = scenario.unwrap_or_else(|| panic!("no scenario {role}"));
    Some(scenario())
}

/// Whatever passes on these devices says what it passed on.
fn devices_that_say_what_they_are() -> ExitCode {
    let backend = open();
    for device in 0..backend.device_count() {
        let info = backend.device_info(device).unwrap();
        let name: String = info
            .name
            .iter()
            .map(|byte| char::from(byte.cast_unsigned()))
            .collect();
        assert!(name.starts_with("StepMesh simulated"), "{name}");
    }
    assert_eq!(backend.device_count(), 2);
    ExitCode::SUCCESS
}

fn memory_that_runs_out() -> ExitCode {
    let backend = open();
    let error = alloc(&backend, 0, 1 << 30).expect_err("there are 64 MiB");
    assert_eq!(error.code(), Code::ResourceExhausted, "{error}");
    assert_eq!(error.flags(), SM_ERROR_OOM, "{error}");
    assert_eq!(error.native_code(), 2, "{error}");
    let said = "hipMalloc answered hipErrorOutOfMemory (2)";
    assert!(error.message().contains(said), "{error}");
    // Not sticky.
    let ptr = alloc(&backend, 0, 1 << 20).unwrap();
    // SAFETY: nothing uses it.
    unsafe { backend.free(0, ptr).unwrap() };
    ExitCode::SUCCESS
}

/// Work fails, and from then on the device is lost, which every call says.
fn work_that_fails() -> ExitCode {
    let backend = open();
    let (on, other) = (stream(&backend, 0), stream(&backend, 1));
    let (from, to) = (
        alloc(&backend, 0, 4096).unwrap(),
        alloc(&backend, 0, 4096).unwrap(),
    );
    let event = backend.event_create(0, EventOptions::default()).unwrap();
    let mut outcome = Ok(());
    for _ in 0..4 {
        // SAFETY: both ranges live until the instance ends.
        outcome = outcome.and_then(|()| unsafe { copy(&backend, (to, from, 4096), on) });
        outcome = outcome.and_then(|()| backend.event_record(&event, on));
    }
    let waited = outcome.and_then(|()| backend.stream_sync(on, LONG_NS));
    let error = waited.expect_err("the third copy fails");
    let lost = SM_ERROR_DEVICE_LOST | SM_ERROR_STICKY;
    assert_eq!(error.code(), Code::Unavailable, "{error}");
    assert_eq!(error.flags() & lost, lost, "{error}");
    assert!(
        error.message().contains("hipErrorLaunchFailure (719)"),
        "{error}"
    );
    let error = alloc(&backend, 0, 64).expect_err("the device is lost");
    assert!(error.message().contains("ROCm device 0 is lost"), "{error}");
    assert_eq!(backend.health(0), Ok(Health::Lost));
    // Giving back works, and so does the other device.
    // SAFETY: nothing uses it.
    unsafe { backend.free(0, from).unwrap() };
    backend.stream_destroy(on).unwrap();
    backend.stream_sync(other, LONG_NS).unwrap();
    alloc(&backend, 1, 64).unwrap();
    ExitCode::SUCCESS
}

/// The stream stands still and the device breaks later: waits of every kind end by that.
fn a_device_that_is_lost_while_others_wait() -> ExitCode {
    let backend = open();
    let on = stream(&backend, 0);
    let (from, to) = (
        alloc(&backend, 0, 64).unwrap(),
        alloc(&backend, 0, 64).unwrap(),
    );
    let event = backend.event_create(0, EventOptions::default()).unwrap();
    let memory_event = backend.mem_event_create(0).unwrap();
    // SAFETY: both ranges live until the instance ends.
    unsafe { copy(&backend, (to, from, 64), on).unwrap() };
    backend.event_record(&event, on).unwrap();
    backend.mem_event_arm(&memory_event, on, 1).unwrap();
    let started = Instant::now();
    let ended = std::thread::scope(|scope| {
        let by_event = scope.spawn(|| backend.event_sync(&event, LONG_NS, WaitMode::Block));
        let by_stream = scope.spawn(|| backend.stream_sync(on, LONG_NS));
        let by_number = scope.spawn(|| {
            loop {
                match backend.mem_event_query(&memory_event, 1) {
                    Ok(false) => std::thread::yield_now(),
                    answer => return answer.map(|_| ()),
                }
            }
        });
        [by_event, by_stream, by_number].map(|wait| wait.join().unwrap())
    });
    for outcome in ended {
        let error = outcome.expect_err("the device is lost");
        assert_ne!(error.flags() & SM_ERROR_DEVICE_LOST, 0, "{error}");
        assert_eq!(error.native_code(), 214, "{error}");
    }
    assert!(
        started.elapsed().as_nanos() < u128::from(LONG_NS),
        "a wait ran out of time"
    );
    ExitCode::SUCCESS
}

stepmesh_driver::functions! {
    /// What a framework calls beside the backend.
    struct Framework {
        fn hipGetDevice(device: *mut i32);
        fn hipSetDevice(device: i32);
        fn hipPeekAtLastError();
        fn hipModuleUnload(module: *mut u8);
        fn hipStreamBeginCapture(stream: u64, mode: u32);
        fn hipStreamEndCapture(stream: u64, graph: *mut u64);
        fn hipGraphInstantiateWithFlags(exec: *mut u64, graph: u64, flags: u64);
        fn hipGraphLaunch(exec: u64, stream: u64);
    }
}

fn framework() -> Framework {
    Framework::of(&Library::open(&["libamdhip64.so.6"]).unwrap())
}

/// The thread's current device and last error are the caller's, also when calls fail.
fn a_caller_who_is_not_disturbed() -> ExitCode {
    let (backend, framework) = (open(), framework());
    let device = || {
        let mut device = -1;
        // SAFETY: `device` is a local.
        unsafe { framework.hipGetDevice(&raw mut device).unwrap() };
        device
    };
    // SAFETY: takes nothing.
    let is_clean = || unsafe { framework.hipPeekAtLastError() }.is_ok();
    // SAFETY: takes a number.
    unsafe { framework.hipSetDevice(1).unwrap() };
    let error = alloc(&backend, 0, 1 << 40).expect_err("more than there is");
    assert_eq!(error.native_code(), 2, "{error}");
    assert!(is_clean(), "a framework would take our failure for its own");
    assert_eq!(device(), 1);
    backend.pointer_attributes(0x10).unwrap();
    let ptr = alloc(&backend, 0, 64).unwrap();
    // SAFETY: nothing uses it.
    unsafe { backend.free(0, ptr).unwrap() };
    assert_eq!((device(), is_clean()), (1, true));
    // A failure of the caller's own stays.
    // SAFETY: refused: there is no such module.
    unsafe { framework.hipModuleUnload(std::ptr::null_mut()) }.expect_err("no module");
    alloc(&backend, 0, 64).unwrap();
    assert!(!is_clean(), "the caller's own error is gone");
    ExitCode::SUCCESS
}

/// Exports name where in the file the memory is. Memory files stand in for dma-bufs here.
fn memory_that_is_exported() -> ExitCode {
    let backend = open();
    assert_ne!(backend.capabilities(0).unwrap() & SM_CAP_DMABUF_DEFAULT, 0);
    let on = stream(&backend, 0);
    // Something before it, so that it is not at the beginning.
    alloc(&backend, 0, 12_345).unwrap();
    let request = AllocRequest {
        len_bytes: 100_000,
        align_bytes: 65_536,
        kind: AllocKind::Device,
        rdma: true,
        shareable: false,
    };
    let ptr = backend.alloc(0, &request).unwrap();
    let fill = FillRequest {
        dst: ptr + 5000,
        value: 0xab,
        width_bytes: 1,
        len_bytes: 300,
    };
    // SAFETY: within the allocation.
    unsafe { backend.memset_async(&fill, on).unwrap() };
    backend.stream_sync(on, LONG_NS).unwrap();
    for mapping in [DmabufMapping::Default, DmabufMapping::Pcie] {
        let export = backend.dmabuf_export(0, ptr + 5000, 300, mapping).unwrap();
        assert!(export.len_bytes >= 300);
        let mut bytes = [0_u8; 300];
        let read = rustix::io::pread(export.fd.as_fd(), &mut bytes, export.offset_bytes).unwrap();
        assert_eq!(read, 300);
        assert_eq!(bytes, [0xab; 300]);
        backend.dmabuf_close(export.fd).unwrap();
    }
    let error = backend.dmabuf_export(0, ptr + 99_000, 300_000, DmabufMapping::Default);
    let error = error.expect_err("beyond the end");
    assert_eq!(error.code(), Code::InvalidArgument, "{error}");
    ExitCode::SUCCESS
}

fn flags_in_memory() -> ExitCode {
    let backend = open();
    let on = stream(&backend, 0);
    let words = Words::new(&backend);
    let wait = |timeout_ns| FlagWait {
        flag: words.at(2),
        seq: words.at(0),
        abort: words.at(3),
        outcome: words.at(4),
        timeout_ns,
    };
    words.word(0).store(1, Ordering::Release);
    for (timeout_ns, flag, abort, due) in [
        (LONG_NS, 1, 0, SM_FLAG_WAIT_REACHED),
        (5_000_000, 0, 0, SM_FLAG_WAIT_TIMED_OUT),
        (LONG_NS, 0, 1, SM_FLAG_WAIT_ABORTED),
    ] {
        words.word(2).store(flag, Ordering::Release);
        words.word(3).store(abort, Ordering::Release);
        // SAFETY: words of pinned memory.
        unsafe { backend.wait_flag(on, &wait(timeout_ns)).unwrap() };
        backend.stream_sync(on, LONG_NS).unwrap();
        assert_eq!(words.word(4).load(Ordering::Acquire), due);
    }
    ExitCode::SUCCESS
}

/// The legacy default stream, which HIP calls by null, waits for blocking streams and for no others.
fn a_default_stream_that_waits() -> ExitCode {
    let backend = open();
    let words = Words::new(&backend);
    let blocking = Stream {
        device: 0,
        raw: backend.stream_create(0, 0, false).unwrap(),
    };
    let legacy = Stream {
        device: 0,
        raw: SM_STREAM_LEGACY,
    };
    let free = stream(&backend, 0);
    let ptr = alloc(&backend, 0, 64).unwrap();
    let fill = FillRequest {
        dst: ptr,
        value: 1,
        width_bytes: 4,
        len_bytes: 64,
    };
    words.word(0).store(1, Ordering::Release);
    // SAFETY: words of pinned memory.
    unsafe { backend.wait_flag(blocking, &wait_for_flag(words)).unwrap() };
    for on in [legacy, free] {
        // SAFETY: within the allocation.
        unsafe { backend.memset_async(&fill, on).unwrap() };
    }
    backend.stream_sync(free, LONG_NS).unwrap();
    assert_eq!(backend.stream_is_done(legacy), Ok(false));
    words.word(2).store(1, Ordering::Release);
    backend.stream_sync(legacy, LONG_NS).unwrap();
    assert_eq!(words.word(4).load(Ordering::Acquire), SM_FLAG_WAIT_REACHED);
    ExitCode::SUCCESS
}

/// Who frees memory that a stream still writes breaks the device, and is told.
fn work_on_memory_that_is_gone() -> ExitCode {
    let backend = open();
    let (on, words) = (stream(&backend, 0), Words::new(&backend));
    let (from, to) = (
        alloc(&backend, 0, 64).unwrap(),
        alloc(&backend, 0, 64).unwrap(),
    );
    words.word(0).store(1, Ordering::Release);
    // SAFETY: words of pinned memory.
    unsafe { backend.wait_flag(on, &wait_for_flag(words)).unwrap() };
    // SAFETY: not kept, which is what is tried; the simulated driver notices.
    unsafe { copy(&backend, (to, from, 64), on).unwrap() };
    // SAFETY: as above.
    unsafe { backend.free(0, to).unwrap() };
    words.word(2).store(1, Ordering::Release);
    let error = backend.stream_sync(on, LONG_NS).expect_err("it is gone");
    assert_ne!(error.flags() & SM_ERROR_DEVICE_LOST, 0, "{error}");
    assert_eq!(error.native_code(), 700, "{error}");
    ExitCode::SUCCESS
}

/// Until the third word is what the first is.
fn wait_for_flag(words: Words) -> FlagWait {
    FlagWait {
        flag: words.at(2),
        seq: words.at(0),
        abort: 0,
        outcome: words.at(4),
        timeout_ns: LONG_NS,
    }
}

/// A graph with the kernels of flags, replayed: each time a new number, without a call of the backend's.
fn a_graph_that_is_replayed() -> ExitCode {
    let (backend, framework) = (open(), framework());
    let on = stream(&backend, 0);
    let words = Words::new(&backend);
    // The kernels are loaded before the capture, or in it without harm.
    assert_eq!(backend.capture(on), Ok(Capture::None));
    // SAFETY: a live stream; no other thread captures.
    unsafe { framework.hipStreamBeginCapture(on.raw, 0).unwrap() };
    assert!(matches!(backend.capture(on), Ok(Capture::Active(_))));
    // SAFETY: words of pinned memory, for this call and those below.
    unsafe { backend.seq_add_one(on, words.at(0)).unwrap() };
    // SAFETY: as above.
    unsafe { backend.write_flag(on, words.at(1), words.at(0)).unwrap() };
    // SAFETY: as above.
    unsafe { backend.wait_flag(on, &wait_for_flag(words)).unwrap() };
    let (mut graph, mut exec) = (0, 0);
    // SAFETY: captured above; `graph` is a local.
    unsafe {
        framework
            .hipStreamEndCapture(on.raw, &raw mut graph)
            .unwrap()
    };
    // SAFETY: captured above; `exec` is a local.
    unsafe {
        framework
            .hipGraphInstantiateWithFlags(&raw mut exec, graph, 0)
            .unwrap()
    };
    assert_eq!(
        words.word(1).load(Ordering::Acquire),
        0,
        "captured, not run"
    );
    for seq in 1..=24 {
        words.word(4).store(0, Ordering::Release);
        // SAFETY: instantiated above.
        unsafe { framework.hipGraphLaunch(exec, on.raw).unwrap() };
        while words.word(1).load(Ordering::Acquire) < seq {
            std::thread::yield_now();
        }
        assert_eq!(words.word(4).load(Ordering::Acquire), 0, "it waits");
        words.word(2).store(seq, Ordering::Release);
        backend.stream_sync(on, LONG_NS).unwrap();
        assert_eq!(words.word(4).load(Ordering::Acquire), SM_FLAG_WAIT_REACHED);
    }
    ExitCode::SUCCESS
}

type Scenario = fn() -> ExitCode;

const SCENARIOS: &[(&str, Scenario)] = &[
    (
        "a_file_that_is_no_library",
        runtimes::a_file_that_is_no_library,
    ),
    (
        "a_runtime_that_is_too_old",
        runtimes::a_runtime_that_is_too_old,
    ),
    (
        "a_runtime_without_newer_functions",
        runtimes::a_runtime_without_newer_functions,
    ),
    ("devices_that_are_hidden", runtimes::devices_that_are_hidden),
    (
        "the_runtime_of_this_machine",
        runtimes::the_runtime_of_this_machine,
    ),
    (
        "devices_that_say_what_they_are",
        devices_that_say_what_they_are,
    ),
    ("memory_that_runs_out", memory_that_runs_out),
    ("work_that_fails", work_that_fails),
    (
        "a_device_that_is_lost_while_others_wait",
        a_device_that_is_lost_while_others_wait,
    ),
    (
        "a_caller_who_is_not_disturbed",
        a_caller_who_is_not_disturbed,
    ),
    ("memory_that_is_exported", memory_that_is_exported),
    (
        "dma_buf_checks_over_memory_files",
        judged::dma_buf_checks_over_memory_files,
    ),
    ("flags_in_memory", flags_in_memory),
    ("a_default_stream_that_waits", a_default_stream_that_waits),
    ("work_on_memory_that_is_gone", work_on_memory_that_is_gone),
    ("a_graph_that_is_replayed", a_graph_that_is_replayed),
];

/// Names the scenario.
pub(crate) const ROLE: &str = "STEPMESH_TEST_ROLE";
/// What a child answers when the machine lacks what it is about.
pub(crate) const ABSENT: u8 = 77;
