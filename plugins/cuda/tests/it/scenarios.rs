//! What a child process does with the driver that it finds. The backend is linked in and called as the
//! kit's table calls it; the loader and the driver are real.

use std::process::ExitCode;
use std::sync::atomic::Ordering;

use stepmesh_backend_cuda::CudaBackend;
use stepmesh_plugin::abi::Code;
use stepmesh_plugin::abi::device::{SM_CAP_IPC, SM_CAP_STREAM_ORDERED_ALLOC};
use stepmesh_plugin::abi::error::{SM_ERROR_DEVICE_LOST, SM_ERROR_OOM, SM_ERROR_STICKY};
use stepmesh_plugin::abi::extension::{
    SM_FLAG_WAIT_ABORTED, SM_FLAG_WAIT_REACHED, SM_FLAG_WAIT_TIMED_OUT,
};
use stepmesh_plugin::{
    AllocKind, AllocRequest, Backend as _, Capture, CopyRequest, Direction, Error, EventOptions,
    EventState, FlagWait, Graph as _, Health, Host, MemEvents as _, Stream, WaitMode,
};

/// Runs the scenario that the environment names, if it names one.
pub(crate) fn run_if_asked() -> Option<ExitCode> {
    let role = std::env::var(ROLE).ok()?;
    let mut scenarios = SCENARIOS.iter().chain(crate::computing::SCENARIOS);
    let scenario = scenarios.find(|(name, _)| *name == role);
    let (_, scenario) = scenario.unwrap_or_else(|| panic!("no scenario {role}"));
    Some(scenario())
}

fn open() -> CudaBackend {
    CudaBackend::open(Host::absent()).expect("the simulated driver has devices")
}

fn refused() -> Error {
    let probe = CudaBackend::probe(&Host::absent()).expect("no driver is no error of probe");
    assert_eq!((probe.device_count, probe.score), (0, 0));
    let error = CudaBackend::open(Host::absent()).expect_err("there is no device");
    assert_eq!(error.code(), Code::Unavailable, "{error}");
    assert!(error.message().starts_with("no CUDA device: "), "{error}");
    error
}

fn alloc(backend: &CudaBackend, device: u32, len_bytes: u64) -> Result<u64, Error> {
    let request = AllocRequest {
        len_bytes,
        align_bytes: 1,
        kind: AllocKind::Device,
        rdma: false,
        shareable: false,
    };
    backend.alloc(device, &request)
}

fn stream(backend: &CudaBackend, device: u32) -> Stream {
    let raw = backend.stream_create(device, 0, true).unwrap();
    Stream { device, raw }
}

/// # Safety
/// - As [`stepmesh_plugin::Backend::memcpy_async`].
unsafe fn copy(
    backend: &CudaBackend,
    to: u64,
    from: u64,
    len_bytes: u64,
    stream: Stream,
) -> Result<(), Error> {
    let request = CopyRequest {
        dst: to,
        src: from,
        len_bytes,
        direction: Direction::DeviceToDevice,
        dst_device: stream.device,
        src_device: stream.device,
    };
    // SAFETY: this function's contract.
    unsafe { backend.memcpy_async(&request, stream) }
}

fn a_file_that_is_no_library() -> ExitCode {
    let error = refused();
    for said in ["looked for libcuda.so.1: ", ", libcuda.so: "] {
        assert!(error.message().contains(said), "{error}");
    }
    assert_eq!(error.native_code(), 0);
    ExitCode::SUCCESS
}

fn a_driver_that_is_too_old() -> ExitCode {
    let error = refused();
    let said = "the driver is one of CUDA 11.4, 11.7 or later is needed";
    assert!(error.message().contains(said), "{error}");
    assert!(error.message().contains("libcuda.so.1"), "{error}");
    ExitCode::SUCCESS
}

fn devices_that_are_hidden() -> ExitCode {
    let error = refused();
    let said = "cuInit answered CUDA_ERROR_NO_DEVICE (100)";
    assert!(error.message().contains(said), "{error}");
    assert_eq!(error.native_code(), 100);
    ExitCode::SUCCESS
}

/// A machine may have none, or one whose devices are there: then there is nothing to see here.
fn the_driver_of_this_machine() -> ExitCode {
    match CudaBackend::open(Host::absent()) {
        Ok(backend) => {
            println!("this machine has {} CUDA device(s)", backend.device_count());
            ExitCode::from(ABSENT_CODE)
        }
        Err(error) if error.message().contains("cannot open shared object file") => {
            println!("this machine has no libcuda.so.1");
            ExitCode::from(ABSENT_CODE)
        }
        Err(error) => {
            let said = "cuInit answered CUDA_ERROR_NO_DEVICE (100)";
            assert!(error.message().contains(said), "{error}");
            assert_eq!(error.native_code(), 100);
            ExitCode::SUCCESS
        }
    }
}

fn memory_that_runs_out() -> ExitCode {
    let backend = open();
    let error = alloc(&backend, 0, 1 << 30).expect_err("there are 64 MiB");
    assert_eq!(error.code(), Code::ResourceExhausted, "{error}");
    assert_eq!(error.flags(), SM_ERROR_OOM, "{error}");
    assert_eq!(error.native_code(), 2, "{error}");
    let said = "cuMemAlloc_v2 answered CUDA_ERROR_OUT_OF_MEMORY (2)";
    assert!(error.message().contains(said), "{error}");
    // Not sticky, also not for what overflows.
    let error = alloc(&backend, 0, u64::MAX).expect_err("there is no such memory");
    assert_eq!(error.flags(), SM_ERROR_OOM, "{error}");
    let ptr = alloc(&backend, 0, 1 << 20).unwrap();
    // SAFETY: nothing uses it.
    unsafe { backend.free(0, ptr).unwrap() };
    ExitCode::SUCCESS
}

fn pointers_that_are_not_ours() -> ExitCode {
    let backend = open();
    let on = stream(&backend, 0);
    let ptr = alloc(&backend, 0, 4096).unwrap();
    // Behind the end of ours.
    // SAFETY: the copy is refused.
    let error = unsafe { copy(&backend, ptr, ptr + 1, 4096, on) }.expect_err("too long");
    assert_eq!(error.code(), Code::InvalidArgument, "{error}");
    assert!(error.message().contains("4096 bytes"), "{error}");
    // Nobody's: the driver says so.
    // SAFETY: no address of a device is that small, so the copy is refused.
    let error = unsafe { copy(&backend, ptr, 4096, 64, on) }.expect_err("nobody's memory");
    assert_eq!(error.code(), Code::InvalidArgument, "{error}");
    let said = "cuMemcpyDtoDAsync_v2 answered CUDA_ERROR_INVALID_VALUE (1)";
    assert!(error.message().contains(said), "{error}");
    // SAFETY: refused.
    let error = unsafe { backend.free(0, ptr + 8) }.expect_err("not the first address");
    assert_eq!(error.code(), Code::InvalidArgument, "{error}");
    // A stream that was destroyed, and one of another device.
    backend.stream_destroy(on).unwrap();
    let error = backend.stream_destroy(on).expect_err("destroyed");
    assert_eq!(error.code(), Code::InvalidArgument, "{error}");
    let other = Stream {
        device: 1,
        ..stream(&backend, 0)
    };
    let error = backend.stream_is_done(other).expect_err("of device 0");
    assert!(error.message().contains("one of device 0"), "{error}");
    ExitCode::SUCCESS
}

fn a_device_that_is_lost() -> ExitCode {
    let backend = open();
    let (on, other) = (stream(&backend, 0), stream(&backend, 1));
    let (from, to) = (
        alloc(&backend, 0, 4096).unwrap(),
        alloc(&backend, 0, 4096).unwrap(),
    );
    let event = backend.event_create(0, EventOptions::default()).unwrap();
    let memory_event = backend.mem_event_create(0).unwrap();
    // One of these is the third piece of work, which fails.
    let mut outcome = Ok(());
    for seq in 1..=4 {
        // SAFETY: both ranges live until the instance ends.
        outcome = outcome.and_then(|()| unsafe { copy(&backend, to, from, 4096, on) });
        outcome = outcome.and_then(|()| backend.mem_event_arm(&memory_event, on, seq));
        outcome = outcome.and_then(|()| backend.event_record(&event, on));
    }
    let waited = outcome.and_then(|()| backend.stream_sync(on, LONG_NS));
    let error = waited.expect_err("work failed");
    let lost = SM_ERROR_DEVICE_LOST | SM_ERROR_STICKY;
    assert_eq!(error.code(), Code::Unavailable, "{error}");
    assert_eq!(error.flags() & lost, lost, "{error}");
    assert_eq!(error.native_code(), 719, "{error}");
    assert!(
        error.message().contains("CUDA_ERROR_LAUNCH_FAILED (719)"),
        "{error}"
    );
    // It stays so, and says why.
    let error = alloc(&backend, 0, 64).expect_err("the device is lost");
    assert!(error.message().contains("CUDA device 0 is lost"), "{error}");
    assert_eq!(error.native_code(), 719, "{error}");
    assert_eq!(backend.health(0), Ok(Health::Lost));
    assert_eq!(backend.event_query(&event), Ok(EventState::Error));
    let told = backend.event_sync(&event, LONG_NS, WaitMode::Block);
    assert!(told.is_err_and(|error| error.flags() & SM_ERROR_DEVICE_LOST != 0));
    let told = backend.mem_event_query(&memory_event, 4);
    assert!(told.is_err_and(|error| error.flags() & SM_ERROR_DEVICE_LOST != 0));
    // Giving back works, and so does the other device.
    // SAFETY: nothing uses it.
    unsafe { backend.free(0, from).unwrap() };
    backend.stream_destroy(on).unwrap();
    drop((event, memory_event));
    assert_eq!(backend.health(1), Ok(Health::Ok));
    backend.stream_sync(other, LONG_NS).unwrap();
    alloc(&backend, 1, 64).unwrap();
    ExitCode::SUCCESS
}

fn a_context_that_stays_when_calls_fail() -> ExitCode {
    let backend = open();
    backend.set_current_device(1).unwrap();
    alloc(&backend, 0, 64).expect_err("the first one fails");
    assert_eq!(backend.current_device(), Ok(Some(1)));
    let error = backend.event_create(0, EventOptions::default());
    let error = error.expect_err("the first one fails");
    assert_eq!(
        (error.code(), error.native_code()),
        (Code::Unknown, 999),
        "{error}"
    );
    assert_eq!(backend.current_device(), Ok(Some(1)));
    let ptr = alloc(&backend, 0, 64).unwrap();
    // SAFETY: nothing uses it.
    unsafe { backend.free(0, ptr).unwrap() };
    assert_eq!(backend.current_device(), Ok(Some(1)));
    // A thread without a device has none afterwards either.
    let other = std::thread::scope(|scope| {
        let work = || {
            alloc(&backend, 0, 64).unwrap();
            backend.current_device()
        };
        scope.spawn(work).join().unwrap()
    });
    assert_eq!(other, Ok(None));
    ExitCode::SUCCESS
}

fn a_driver_without_newer_functions() -> ExitCode {
    let backend = open();
    let capabilities = backend.capabilities(0).unwrap();
    assert_eq!(capabilities & (SM_CAP_STREAM_ORDERED_ALLOC | SM_CAP_IPC), 0);
    let on = stream(&backend, 0);
    let ptr = backend.alloc_async(0, 4096, on).unwrap();
    // SAFETY: nothing uses it.
    unsafe { backend.free_async(0, ptr, on).unwrap() };
    // Numbers are copied where streams cannot write them: more than there are places, so that each
    // is used again.
    let event = backend.mem_event_create(0).unwrap();
    for seq in 1..=1000 {
        backend.mem_event_arm(&event, on, seq).unwrap();
    }
    backend.stream_sync(on, LONG_NS).unwrap();
    assert_eq!(
        CudaBackend::mem_event_word(&event).load(Ordering::Acquire),
        1000
    );
    assert_eq!(backend.mem_event_query(&event, 1000), Ok(true));
    ExitCode::SUCCESS
}

fn flags_in_memory() -> ExitCode {
    let backend = open();
    let on = stream(&backend, 0);
    let request = AllocRequest {
        len_bytes: 4096,
        align_bytes: 4096,
        kind: AllocKind::HostPinned,
        rdma: false,
        shareable: false,
    };
    let words = backend.alloc(0, &request).unwrap();
    let word = |idx: u64| {
        let at =
            std::ptr::with_exposed_provenance_mut::<u64>(usize::try_from(words + idx * 8).unwrap());
        // SAFETY: within pinned memory that lives until the process ends, and used as atomics only.
        unsafe { std::sync::atomic::AtomicU64::from_ptr(at) }
    };
    let at = |idx: u64| words + idx * 8;
    assert_eq!(backend.capture(on), Ok(Capture::None));
    (0..8).for_each(|idx| word(idx).store(0, Ordering::Release));
    // SAFETY: words of pinned memory.
    unsafe { backend.seq_add_one(on, at(0)).unwrap() };
    // SAFETY: as above.
    unsafe { backend.write_flag(on, at(1), at(0)).unwrap() };
    let wait = |timeout_ns| FlagWait {
        flag: at(2),
        seq: at(0),
        abort: at(3),
        outcome: at(4),
        timeout_ns,
    };
    // SAFETY: as above.
    unsafe { backend.wait_flag(on, &wait(LONG_NS)).unwrap() };
    while word(1).load(Ordering::Acquire) != 1 {
        std::thread::yield_now();
    }
    assert_eq!(word(4).load(Ordering::Acquire), 0, "it waits");
    word(2).store(1, Ordering::Release);
    backend.stream_sync(on, LONG_NS).unwrap();
    assert_eq!(word(4).load(Ordering::Acquire), SM_FLAG_WAIT_REACHED);
    // The next number does not come: the time is up, and then the abort word is set.
    word(0).store(2, Ordering::Release);
    for (timeout_ns, abort, due) in [
        (5_000_000, 0, SM_FLAG_WAIT_TIMED_OUT),
        (LONG_NS, 1, SM_FLAG_WAIT_ABORTED),
    ] {
        word(3).store(abort, Ordering::Release);
        // SAFETY: as above.
        unsafe { backend.wait_flag(on, &wait(timeout_ns)).unwrap() };
        backend.stream_sync(on, LONG_NS).unwrap();
        assert_eq!(word(4).load(Ordering::Acquire), due);
    }
    ExitCode::SUCCESS
}

/// A process may end in the middle of it all: this one does, with work under way and nothing closed.
fn waits_that_end() -> ExitCode {
    let backend = open();
    let on = stream(&backend, 0);
    let request = AllocRequest {
        len_bytes: 64,
        align_bytes: 64,
        kind: AllocKind::HostPinned,
        rdma: false,
        shareable: false,
    };
    let words = backend.alloc(0, &request).unwrap();
    let seq = std::ptr::with_exposed_provenance_mut::<u64>(usize::try_from(words + 8).unwrap());
    // SAFETY: within the allocation, which no work uses yet.
    unsafe { seq.write(1) };
    let wait = FlagWait {
        flag: words,
        seq: words + 8,
        abort: 0,
        outcome: 0,
        timeout_ns: LONG_NS,
    };
    // SAFETY: words of pinned memory that lives until the process ends.
    unsafe { backend.wait_flag(on, &wait).unwrap() };
    let error = backend.stream_sync(on, 10_000_000).expect_err("it waits");
    assert_eq!(error.code(), Code::DeadlineExceeded, "{error}");
    let started = std::time::Instant::now();
    let error = backend.quiesce().expect_err("it waits");
    assert_eq!(error.code(), Code::DeadlineExceeded, "{error}");
    drop(backend);
    assert!(
        started.elapsed().as_nanos() < u128::from(LONG_NS),
        "an end without a bound"
    );
    ExitCode::SUCCESS
}

type Scenario = fn() -> ExitCode;

const SCENARIOS: &[(&str, Scenario)] = &[
    ("a_file_that_is_no_library", a_file_that_is_no_library),
    ("a_driver_that_is_too_old", a_driver_that_is_too_old),
    (
        "a_driver_without_newer_functions",
        a_driver_without_newer_functions,
    ),
    ("devices_that_are_hidden", devices_that_are_hidden),
    ("the_driver_of_this_machine", the_driver_of_this_machine),
    ("memory_that_runs_out", memory_that_runs_out),
    ("pointers_that_are_not_ours", pointers_that_are_not_ours),
    ("a_device_that_is_lost", a_device_that_is_lost),
    (
        "a_context_that_stays_when_calls_fail",
        a_context_that_stays_when_calls_fail,
    ),
    ("flags_in_memory", flags_in_memory),
    ("waits_that_end", waits_that_end),
];

/// Names the scenario.
pub(crate) const ROLE: &str = "STEPMESH_TEST_ROLE";
/// What a child answers when the machine lacks what it is about.
pub(crate) const ABSENT: i32 = 77;
const ABSENT_CODE: u8 = 77;
/// What ends at once if it ends at all.
const LONG_NS: u64 = 20_000_000_000;
