//! K: threads, callbacks, several instances and forks.
#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use stepmesh_abi::Code;
use stepmesh_abi::device::SM_CAP_FORK_SAFE_PROBE;
use stepmesh_abi::memory::SM_COPY_H2D;

use super::every_slot::{Call, good, ordinary_life};
use super::setting::{LONG_NS, Setting, difference, pattern};
use crate::check::{Check, Group, Stop, Tier, Verdict, ensure, fail, pass, pass_noting};
use crate::context::Context;
use crate::raw::host;
use crate::raw::memory::HostBuffer;
use crate::raw::session::Session;
use crate::raw::system::{ForkEnd, in_fork};

const fn check(
    id: &'static str,
    name: &'static str,
    proves: &'static str,
    run: fn(&Context<'_>) -> Verdict,
) -> Check {
    Check {
        id,
        name,
        tier: Tier::Required,
        group: Group::Concurrency,
        proves,
        run,
    }
}

pub(super) const CHECKS: &[Check] = &[
    check(
        "K1",
        "sixteen threads",
        "every slot of class A works from any thread at once",
        sixteen_threads,
    ),
    check(
        "K2",
        "a log that calls back",
        "a plugin that logs holds no lock that a slot needs",
        log_calls_back,
    ),
    check(
        "K3",
        "callbacks that call back",
        "no call of the host is made with a lock held",
        host_calls_back,
    ),
    check(
        "K4",
        "two instances",
        "they do not disturb each other",
        two_instances,
    ),
    check(
        "K5",
        "a forked child",
        "it is refused the parent's instance, may probe, and the parent goes on",
        forked,
    ),
    check(
        "K6",
        "a thread that ends",
        "a call from a thread's last destructor is answered",
        ending_thread,
    ),
    Check {
        tier: Tier::Stress,
        ..check(
            "K7",
            "sixteen threads for long",
            "the same, until rare orders have come up",
            sixteen_threads_for_long,
        )
    },
];

fn sixteen_threads(context: &Context<'_>) -> Verdict {
    hammer(context, Duration::from_millis(500))
}

fn sixteen_threads_for_long(context: &Context<'_>) -> Verdict {
    hammer(context, Duration::from_secs(context.count(60, 2).into()))
}

fn hammer(context: &Context<'_>, length: Duration) -> Verdict {
    let setting = Setting::new(context)?;
    // Each thread has a stream and memory of its own; the calls on the shared ones come on top.
    let shared = read_only(good(&setting)?);
    let until = Instant::now() + length;
    let failure = Mutex::new(None);
    let rounds = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for seed in 0..THREADS {
            let (setting, shared, failure, rounds) = (&setting, &shared, &failure, &rounds);
            scope.spawn(move || {
                while Instant::now() < until {
                    if let Err(stop) = one_round(setting, shared, seed) {
                        let mut failure = failure.lock().unwrap_or_else(PoisonError::into_inner);
                        failure.get_or_insert(stop);
                        return;
                    }
                    rounds.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    match failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(stop) => Err(stop),
        None => pass_noting(format!("{} rounds", rounds.into_inner())),
    }
}

/// Calls that may share their buffers: those that write memory would race with each other.
fn read_only(calls: Vec<Call>) -> Vec<Call> {
    let writes = ["memcpy_async", "memcpy_sync", "memset_async"];
    let calls = calls.into_iter();
    calls.filter(|call| !writes.contains(&call.what)).collect()
}

fn one_round(setting: &Setting, shared: &[Call], seed: u8) -> Result<(), Stop> {
    let session = &setting.session;
    for call in shared {
        match (call.make)(session) {
            Err(failure) if failure.is_absent => {}
            result => {
                result.map_err(|failure| Stop::Fail(format!("{}: {failure}", call.what)))?;
            }
        }
    }
    let on = session.stream_create(setting.dev)?;
    let bytes = pattern(20_000, seed);
    let (from, to) = (HostBuffer::new(&bytes), HostBuffer::zeroed(bytes.len()));
    let memory = session.alloc(setting.dev, 20_000)?;
    session.memcpy_async(memory.all(), from.all(), SM_COPY_H2D, on)?;
    let event = session.event_create(setting.dev, 0)?;
    session.event_record(event, on)?;
    session.event_sync(event, LONG_NS, 2)?;
    session.memcpy_async(
        to.all(),
        memory.all(),
        stepmesh_abi::memory::SM_COPY_D2H,
        on,
    )?;
    session.stream_sync(on, LONG_NS)?;
    session.event_destroy(event)?;
    session.stream_destroy(on)?;
    session.free(setting.dev, memory.ptr)?;
    match difference(&to.bytes(), &bytes) {
        Some(why) => fail(format!("with {THREADS} threads at work: {why}")),
        None => Ok(()),
    }
}

/// Lives an ordinary life while those functions of the host that `wanted` names call slots.
fn with_hook(context: &Context<'_>, wanted: fn(&str) -> bool) -> Verdict {
    let first = Setting::new(context)?;
    let dev = first.dev;
    // A second instance is opened while the first one is called, so that a lock of the library's is
    // found, too; then the callbacks use the one that calls.
    let open: Arc<Mutex<Vec<Session>>> = Arc::new(Mutex::new(vec![first.session.alias()]));
    let (callable, calls) = (Arc::clone(&open), Arc::new(AtomicU32::new(0)));
    let (counted, failed) = (Arc::clone(&calls), Arc::new(Mutex::new(None)));
    let told = Arc::clone(&failed);
    host::set_hook(Some(Arc::new(move |name| {
        if !wanted(name) {
            return;
        }
        counted.fetch_add(1, Ordering::SeqCst);
        let all: Vec<_> = lock(&callable).iter().map(Session::alias).collect();
        for session in all {
            if let Err(failure) = call_back(&session, dev) {
                let why = format!("a slot called inside the host's {name}: {failure}");
                lock(&told).get_or_insert(why);
            }
        }
    })));
    let second = Setting::new(context)?;
    lock(&open).push(second.session.alias());
    let lived = ordinary_life(&second);
    host::set_hook(None);
    lived?;
    if let Some(why) = lock(&failed).take() {
        return fail(why);
    }
    match calls.load(Ordering::SeqCst) {
        0 => pass_noting("the plugin called none of these, so nothing was seen"),
        count => pass_noting(format!("{count} callbacks")),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each change is one push or assignment, so the value is whole after a panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn call_back(session: &Session, dev: u32) -> Result<(), crate::raw::failure::Failure> {
    session.device_count()?;
    let memory = session.alloc(dev, 4096)?;
    session.pointer_attributes(memory.ptr)?;
    session.free(dev, memory.ptr)?;
    let event = session.event_create(dev, 0)?;
    session.event_query(event)?;
    session.event_destroy(event)
}

fn log_calls_back(context: &Context<'_>) -> Verdict {
    with_hook(context, |name| name.starts_with("log"))
}

fn host_calls_back(context: &Context<'_>) -> Verdict {
    with_hook(context, |name| !name.starts_with("log"))
}

fn two_instances(context: &Context<'_>) -> Verdict {
    let table = context.table()?;
    let open = || -> Result<Setting, Stop> {
        let session = table.open()?;
        let devices = session.device_count()?;
        ensure!(devices > 0, "the backend has no device");
        let stream = session.stream_create(0)?;
        Ok(Setting {
            session,
            devices,
            dev: 0,
            stream,
        })
    };
    let (first, second) = (open()?, open()?);
    ensure!(
        first.session.instance != second.session.instance,
        "two calls of open gave the same instance"
    );
    let ours = first.alloc_with(&pattern(10_000, 1))?;
    let theirs = second.alloc_with(&pattern(10_000, 2))?;
    ensure!(ours.ptr != theirs.ptr, "two instances gave the same memory");
    let ids = (
        first.session.pointer_attributes(ours.ptr)?.alloc_id,
        second.session.pointer_attributes(theirs.ptr)?.alloc_id,
    );
    ensure!(
        ids.0 != ids.1,
        "two instances gave the same alloc_id, {}",
        ids.0
    );
    second.session.close()?;
    if let Some(why) = difference(&first.take(ours.all())?, &pattern(10_000, 1)) {
        return fail(format!("after the other instance was closed: {why}"));
    }
    first.session.close()?;
    pass()
}

fn forked(context: &Context<'_>) -> Verdict {
    let table = context.table()?;
    let setting = Setting::new(context)?;
    let memory = setting.alloc_with(&pattern(10_000, 3))?;
    let inherited = setting.session.alias();
    let (dev, on) = (setting.dev, setting.stream);
    let refused = |result: Result<(), crate::raw::failure::Failure>| match result {
        Ok(()) => SUCCEEDED,
        Err(failure) if failure.code == Code::FailedPrecondition => 0,
        Err(_) => OTHER_CODE,
    };
    type Work = Box<dyn FnOnce() -> i32>;
    let parts: [(&str, Work); 4] = [
        (
            "alloc",
            Box::new(move || refused(inherited.alloc(dev, 64).map(drop))),
        ),
        ("stream_sync", {
            let inherited = setting.session.alias();
            Box::new(move || refused(inherited.stream_sync(on, 1_000_000)))
        }),
        ("device_count", {
            let inherited = setting.session.alias();
            Box::new(move || refused(inherited.device_count().map(drop)))
        }),
        ("free", {
            let inherited = setting.session.alias();
            Box::new(move || refused(inherited.free(dev, memory.ptr)))
        }),
    ];
    for (slot, work) in parts {
        judge_fork(&format!("{slot} in a forked child"), work)?;
    }
    if setting.has(SM_CAP_FORK_SAFE_PROBE)? {
        judge_fork("probe in a forked child", move || {
            i32::from(table.probe().is_err()) * OTHER_CODE
        })?;
    }
    match difference(&setting.take(memory.all())?, &pattern(10_000, 3)) {
        Some(why) => fail(format!("in the parent, after the forks: {why}")),
        None => pass(),
    }
}

fn judge_fork(what: &str, work: impl FnOnce() -> i32) -> Result<(), Stop> {
    let end = in_fork(work, FORK_LIMIT).map_err(|error| Stop::Fail(format!("fork: {error}")))?;
    match end {
        ForkEnd::Code(0) => Ok(()),
        ForkEnd::Code(SUCCEEDED) => fail(format!(
            "{what} succeeded, where `failed precondition` was due"
        )),
        ForkEnd::Code(_) => fail(format!("{what} failed in another way than it should")),
        ForkEnd::Signal(signal) => {
            let signal = crate::process::signal_name(signal);
            fail(format!("{what} died of {signal}"))
        }
        ForkEnd::Timeout => fail(format!("{what} hung")),
    }
}

/// Calls slots when its thread ends.
struct LastCall(Arc<Session>, u32, Arc<AtomicU32>);

impl Drop for LastCall {
    fn drop(&mut self) {
        let answered = [
            self.0.device_count().map(drop),
            self.0.pointer_attributes(4096).map(drop),
            self.0
                .alloc(self.1, 4096)
                .and_then(|own| self.0.free(self.1, own.ptr)),
            self.0.set_current_device(self.1),
            self.0.current_device().map(drop),
            self.0.alloc(self.1 + 4000, 4096).map(drop),
        ];
        let count = u32::try_from(answered.len()).unwrap_or(0);
        self.2.store(count, Ordering::SeqCst);
    }
}

fn ending_thread(context: &Context<'_>) -> Verdict {
    thread_local! {
        static LAST: std::cell::RefCell<Option<LastCall>> = const {
            std::cell::RefCell::new(None)
        };
    }
    let setting = Setting::new(context)?;
    let session = Arc::new(setting.session.alias());
    let (dev, answered) = (setting.dev, Arc::new(AtomicU32::new(0)));
    for is_known in [false, true] {
        answered.store(0, Ordering::SeqCst);
        let last = LastCall(Arc::clone(&session), dev, Arc::clone(&answered));
        let thread = std::thread::spawn(move || {
            LAST.with(|slot| *slot.borrow_mut() = None);
            let session = Arc::clone(&last.0);
            // Destructors run in reverse order: the plugin's own thread locals are then gone, or
            // were never made.
            LAST.with(|slot| *slot.borrow_mut() = Some(last));
            if is_known {
                let _ = session.set_current_device(dev);
                let _ = session.alloc(dev + 4000, 64);
            }
        });
        ensure!(thread.join().is_ok(), "the thread panicked");
        let answered = answered.load(Ordering::SeqCst);
        ensure!(answered == 6, "{answered} of 6 calls were answered");
    }
    pass()
}

/// Threads that call at once.
const THREADS: u8 = 16;
/// How long a forked child may take.
const FORK_LIMIT: Duration = Duration::from_secs(5);
/// Exit code: the call succeeded.
const SUCCEEDED: i32 = 40;
/// Exit code: the call failed with another code.
const OTHER_CODE: i32 = 41;
