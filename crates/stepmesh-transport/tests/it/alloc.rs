//! In the steady state neither posting nor polling allocates.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use stepmesh_transport::error::Error;
use stepmesh_transport::fabric::{Chain, EventSink, Fabric, PeerId, PostError, Write};

use crate::node::Pair;
use crate::support::Setup;

/// The system's allocator, counting the calls of each thread.
struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: everything is left to the system's allocator; counting touches a plain cell that needs no
// allocation and no destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.set(COUNT.get() + 1);
        // SAFETY: the caller's promises are the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are the same, and `address` came from `System`.
        unsafe { System.dealloc(address, layout) };
    }

    unsafe fn realloc(&self, address: *mut u8, layout: Layout, len: usize) -> *mut u8 {
        COUNT.set(COUNT.get() + 1);
        // SAFETY: as in `dealloc`.
        unsafe { System.realloc(address, layout, len) }
    }
}

/// Counts events without keeping them.
#[derive(Default)]
struct Tally {
    messages: usize,
    sent: usize,
}

impl EventSink for Tally {
    fn connected(&mut self, _: PeerId, _: &[u8]) {}
    fn accepted(&mut self, _: PeerId, _: &[u8]) {}
    fn message(&mut self, _: PeerId, message: &[u8]) {
        assert_eq!(message.len(), 40);
        self.messages += 1;
    }
    fn sent(&mut self, _: PeerId, _: u64) {
        self.sent += 1;
    }
    fn closed(&mut self, _: PeerId, reason: Error) {
        panic!("{reason}");
    }
}

#[test]
fn a_steady_state_allocates_nothing() {
    for setup in [
        Setup::ShmMapped,
        Setup::ShmProcess,
        Setup::ShmBounce,
        Setup::Tcp4,
        Setup::TcpNarrow,
    ] {
        for len_bytes in [8, 100_000] {
            let (warm, steady) = measure(setup, len_bytes);
            assert_eq!(
                steady, 0,
                "{setup:?}, {len_bytes} bytes; {warm} while warming up"
            );
        }
    }
}

/// The allocations of a first and of a second hundred of chains.
fn measure(setup: Setup, len_bytes: u64) -> (u64, u64) {
    let mut pair = Pair::new(setup);
    let (source, target) = (setup.memory(100_000), setup.memory(100_000));
    let local = pair.a.fabric.register(source.memory()).unwrap();
    let (_, remote) = pair.share_b(target.memory());
    let writes = [Write {
        local,
        local_offset: 0,
        remote,
        remote_offset: 0,
        len_bytes,
    }; 2];
    let chain = Chain {
        writes: &writes,
        message: &[1; 40],
        token: 0,
    };
    let mut hundred = || {
        let before = COUNT.get();
        let (mut a, mut b) = (Tally::default(), Tally::default());
        let mut pending = 0;
        let mut now_ns = 1 << 40;
        for posted in 1..=100 {
            loop {
                match pair.a.fabric.post(pair.b_of_a, &chain) {
                    Ok(answer) => {
                        pending +=
                            usize::from(answer == stepmesh_transport::fabric::Posted::Pending);
                        break;
                    }
                    Err(PostError::Full) => {}
                    Err(PostError::Failed(error)) => panic!("{error}"),
                }
                poll(&mut *pair.a.fabric, &mut a, &mut now_ns);
                poll(&mut *pair.b.fabric, &mut b, &mut now_ns);
            }
            // A few in flight, as an engine has.
            while b.messages + 3 < posted {
                poll(&mut *pair.a.fabric, &mut a, &mut now_ns);
                poll(&mut *pair.b.fabric, &mut b, &mut now_ns);
            }
        }
        while b.messages < 100 || a.sent < pending {
            poll(&mut *pair.a.fabric, &mut a, &mut now_ns);
            poll(&mut *pair.b.fabric, &mut b, &mut now_ns);
        }
        COUNT.get() - before
    };
    (hundred(), hundred())
}

fn poll(fabric: &mut dyn Fabric, tally: &mut Tally, now_ns: &mut u64) {
    // Far enough apart that every poll looks at the sockets too.
    *now_ns += 2_000_000;
    fabric.poll(*now_ns, tally);
}
