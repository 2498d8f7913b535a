//! Round trips of one write and one message between two processes, beside the bare floor between the
//! same two processes, in turns: a cache line and a copy of the same size for shm, a raw loopback
//! connection for tcp.
//!
//! `cargo run --release -p stepmesh-transport --example pingpong -- shm|tcp`
//! It measures the fabric alone; `cargo xtask bench` measures the whole library.

#![expect(clippy::print_stdout, reason = "a program that prints a table")]
#![expect(
    clippy::cast_possible_truncation,
    reason = "lengths and times of a short run fit anywhere"
)]

use std::collections::VecDeque;
use std::env;
use std::error::Error as StdError;
use std::hint;
use std::io::{BufRead, BufReader, ErrorKind, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::{Command, Stdio};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::FdFlags;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::thread::CpuSet;
use stepmesh_transport::doorbell::Doorbell;
use stepmesh_transport::error::Error;
use stepmesh_transport::fabric::{
    Address, Chain, EventSink, Fabric, PeerId, PostError, Posted, RegionId, RemoteId, SharedRegion,
    Write,
};
use stepmesh_transport::memory::{MappableFd, Memory};
use stepmesh_transport::shm::{ShmFabric, ShmOptions};
use stepmesh_transport::tcp::{TcpFabric, TcpOptions};

type Result<T> = std::result::Result<T, Box<dyn StdError>>;

fn main() -> Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [kind @ ("shm" | "tcp")] => parent(kind),
        [kind, "child", fd, port] => child(kind, fd.parse()?, port.parse()?),
        _ => Err("usage: pingpong shm|tcp".into()),
    }
}

fn parent(kind: &str) -> Result<()> {
    pin(0)?;
    let floor = Area::new()?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let port = listener.local_addr()?.port();
    rustix::io::fcntl_setfd(&*floor.fd, FdFlags::empty())?;
    let fd = floor.fd.as_raw_fd().to_string();
    let mut child = Command::new(env::current_exe()?)
        .args([kind, "child", &fd, &port.to_string()])
        .stdout(Stdio::piped())
        .spawn()?;
    let output = child.stdout.take().ok_or("no output")?;
    let line = BufReader::new(output)
        .lines()
        .next()
        .ok_or("no address")??;
    let address = Address(hex(&line)?);
    let mut raw = Raw::new(listener.accept()?.0)?;
    let mut end = End::new(kind)?;
    end.peer = Some(end.fabric.connect(&address, b"", Duration::from_secs(5))?);
    end.exchange(true)?;
    println!(
        "{:>10} {:>12} {:>12} {:>7}",
        "bytes", "floor ns", "fabric ns", "ratio"
    );
    for (len, rounds) in [(8, 20_000), (917_504, 200), (14_680_064, 20)] {
        let (mut bare, mut whole) = (Vec::new(), Vec::new());
        for _ in 0..10 {
            end.order(&[len, rounds])?;
            for _ in 0..rounds {
                whole.push(end.round(len, true)?);
            }
            for _ in 0..rounds {
                bare.push(if kind == "tcp" {
                    raw.round(len as usize, true)?
                } else {
                    floor.round(len, true, &end)
                });
            }
        }
        let (bare, whole) = (median(&mut bare), median(&mut whole));
        println!(
            "{len:>10} {bare:>12} {whole:>12} {:>7.2}",
            whole as f64 / bare as f64
        );
    }
    end.order(&[0, 0])?;
    child.wait()?;
    Ok(())
}

fn child(kind: &str, fd: i32, port: u16) -> Result<()> {
    pin(1)?;
    let mut raw = Raw::new(TcpStream::connect(("127.0.0.1", port))?)?;
    // SAFETY: the parent left this descriptor open for us and says its number.
    let floor = Area::map(unsafe { OwnedFd::from_raw_fd(fd) })?;
    let mut end = End::new(kind)?;
    let address: String = end
        .fabric
        .address()
        .0
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    println!("{address}");
    std::io::stdout().flush()?;
    end.exchange(false)?;
    loop {
        let order = end.wait()?;
        let [len, rounds] =
            [0, 8].map(|at| u64::from_le_bytes(order[at..at + 8].try_into().unwrap_or_default()));
        if rounds == 0 {
            return Ok(());
        }
        for _ in 0..rounds {
            end.round(len, false)?;
        }
        // The floor's rounds poll no fabric.
        while end.inbox.unsent > 0 {
            end.poll();
        }
        for _ in 0..rounds {
            if kind == "tcp" {
                raw.round(len as usize, false)?;
            } else {
                floor.round(len, false, &end);
            }
        }
    }
}

/// Shared memory: a line for each direction, then room for the bytes of each.
struct Area {
    fd: Arc<OwnedFd>,
    base: *mut u8,
}

impl Area {
    fn new() -> Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create("pingpong", flags)?;
        rustix::fs::ftruncate(&fd, AREA_LEN as u64)?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK)?;
        Self::map(fd)
    }

    fn map(fd: OwnedFd) -> Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: a new mapping where the kernel chooses.
        let base =
            unsafe { rustix::mm::mmap(ptr::null_mut(), AREA_LEN, protection, flags, &fd, 0) }?;
        Ok(Self {
            fd: Arc::new(fd),
            base: base.cast(),
        })
    }

    fn word(&self, direction: usize) -> &AtomicU64 {
        let word = self.base.wrapping_add(direction * 4096).cast::<AtomicU64>();
        // SAFETY: a page of its own at the start of the mapping, used as words only.
        unsafe { &*word }
    }

    fn bytes(&self, direction: usize) -> *mut u8 {
        // SAFETY: behind the words, inside of the mapping.
        unsafe { self.base.add(8192 + direction * LEN_MAX) }
    }

    fn memory(&self) -> Memory {
        let mappable = MappableFd {
            fd: Arc::clone(&self.fd),
            offset: 0,
        };
        let (address, len) = (self.base as u64, AREA_LEN as u64);
        // SAFETY: the mapping is never unmapped, and no reference to its bytes is made.
        unsafe { Memory::new(address, len, true, Some(mappable), Arc::new(())) }
    }

    /// One bare round trip: a copy into the shared memory and a word, each way.
    fn round(&self, len: u64, first: bool, end: &End) -> u64 {
        let (mine, theirs) = if first { (0, 1) } else { (1, 0) };
        let started = Instant::now();
        let turn = self.word(mine).load(Ordering::Relaxed) + 1;
        let send = || {
            // SAFETY: `len` is at most what either area has for a direction.
            unsafe {
                ptr::copy_nonoverlapping(end.source.bytes(0), self.bytes(mine), len as usize)
            };
            self.word(mine).store(turn, Ordering::Release);
        };
        if first {
            send();
        }
        while self.word(theirs).load(Ordering::Acquire) != turn {
            hint::spin_loop();
        }
        if !first {
            send();
        }
        started.elapsed().as_nanos() as u64
    }
}

/// A bare connection, polled in the same way.
struct Raw {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Raw {
    fn new(stream: TcpStream) -> Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        let buffer = vec![1; LEN_MAX];
        Ok(Self { stream, buffer })
    }

    fn round(&mut self, len: usize, first: bool) -> Result<u64> {
        let started = Instant::now();
        for send in [first, !first] {
            let mut done = 0;
            while done < len {
                let moved = if send {
                    self.stream.write(&self.buffer[done..len])
                } else {
                    self.stream.read(&mut self.buffer[done..len])
                };
                match moved {
                    Ok(0) => return Err("the raw connection ended".into()),
                    Ok(count) => done += count,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => hint::spin_loop(),
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(started.elapsed().as_nanos() as u64)
    }
}

/// One end of the fabric.
struct End {
    fabric: Box<dyn Fabric>,
    peer: Option<PeerId>,
    source: Area,
    target: Area,
    local: RegionId,
    remote: RemoteId,
    inbox: Inbox,
    start: Instant,
}

impl End {
    fn new(kind: &str) -> Result<Self> {
        let mut fabric: Box<dyn Fabric> = match kind {
            "shm" => Box::new(ShmFabric::new(ShmOptions::default(), Doorbell::new()?)?),
            _ => Box::new(TcpFabric::new(TcpOptions::default())?),
        };
        let (source, target) = (Area::new()?, Area::new()?);
        let local = fabric.register(source.memory())?;
        Ok(Self {
            fabric,
            peer: None,
            source,
            target,
            local,
            remote: RemoteId(0),
            inbox: Inbox::default(),
            start: Instant::now(),
        })
    }

    fn peer(&self) -> PeerId {
        self.peer.unwrap_or(PeerId(u32::MAX))
    }

    /// Waits for the connection and tells the other side where to write.
    fn exchange(&mut self, first: bool) -> Result<()> {
        while self.inbox.connected.is_none() {
            self.poll();
        }
        self.peer = self.inbox.connected;
        let region = self.fabric.register(self.target.memory())?;
        let shared = self.fabric.share(region, self.peer())?;
        let message = [u64::from(shared.region), shared.len_bytes, shared.key];
        if first {
            self.order(&message)?;
        }
        let theirs = self.wait()?;
        if !first {
            self.order(&message)?;
        }
        let word =
            |at: usize| u64::from_le_bytes(theirs[at..at + 8].try_into().unwrap_or_default());
        let theirs = SharedRegion {
            region: word(0) as u32,
            len_bytes: word(8),
            key: word(16),
        };
        self.remote = self.fabric.import(self.peer(), &theirs)?;
        Ok(())
    }

    fn poll(&mut self) {
        let now_ns = self.start.elapsed().as_nanos() as u64;
        self.fabric.poll(now_ns, &mut self.inbox);
    }

    fn order(&mut self, words: &[u64]) -> Result<()> {
        let message: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.post(&Chain {
            writes: &[],
            message: &message,
            token: 0,
        })
    }

    fn post(&mut self, chain: &Chain<'_>) -> Result<()> {
        loop {
            match self.fabric.post(self.peer(), chain) {
                Ok(Posted::Complete) => return Ok(()),
                Ok(Posted::Pending) => {
                    self.inbox.unsent += 1;
                    return Ok(());
                }
                Err(PostError::Full) => self.poll(),
                Err(PostError::Failed(error)) => return Err(error.into()),
            }
        }
    }

    fn wait(&mut self) -> Result<[u8; 40]> {
        loop {
            if let Some(message) = self.inbox.messages.pop_front() {
                return Ok(message);
            }
            // A parent that was stopped must not leave its child spinning.
            if let Some(reason) = self.inbox.closed.take() {
                return Err(reason.into());
            }
            self.poll();
        }
    }

    fn round(&mut self, len: u64, first: bool) -> Result<u64> {
        let started = Instant::now();
        if !first {
            self.wait()?;
        }
        let writes = [Write {
            local: self.local,
            local_offset: 8192,
            remote: self.remote,
            remote_offset: 8192,
            len_bytes: len,
        }];
        self.post(&Chain {
            writes: &writes,
            message: &[1; 40],
            token: 0,
        })?;
        if first {
            self.wait()?;
        }
        // What was written is looked at, as a server would.
        // SAFETY: inside of the mapping.
        hint::black_box(unsafe { self.target.bytes(0).cast::<u64>().read_volatile() });
        Ok(started.elapsed().as_nanos() as u64)
    }
}

#[derive(Default)]
struct Inbox {
    connected: Option<PeerId>,
    closed: Option<Error>,
    messages: VecDeque<[u8; 40]>,
    unsent: u32,
}

impl EventSink for Inbox {
    fn connected(&mut self, peer: PeerId, _: &[u8]) {
        self.connected = Some(peer);
    }
    fn accepted(&mut self, peer: PeerId, _: &[u8]) {
        self.connected = Some(peer);
    }
    fn message(&mut self, _: PeerId, message: &[u8]) {
        let mut copy = [0; 40];
        let len = message.len().min(copy.len());
        copy[..len].copy_from_slice(&message[..len]);
        self.messages.push_back(copy);
    }
    fn sent(&mut self, _: PeerId, _: u64) {
        self.unsent -= 1;
    }
    fn closed(&mut self, _: PeerId, reason: Error) {
        self.closed = Some(reason);
    }
}

fn pin(cpu: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}

fn hex(text: &str) -> Result<Vec<u8>> {
    let digits = (0..text.len()).step_by(2);
    Ok(digits
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16))
        .collect::<std::result::Result<_, _>>()?)
}

fn median(samples: &mut [u64]) -> u64 {
    samples.sort_unstable();
    samples[samples.len() / 2]
}

const LEN_MAX: usize = 16 << 20;
const AREA_LEN: usize = 8192 + 2 * LEN_MAX;
