//! The kernels of flags in memory: a graph that is captured once and replayed against a thread of the
//! host, and waits that are ended by the clock and by the abort word.
#![expect(unsafe_code, reason = "submits work that uses words of buffers")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use stepmesh_core::{
    AllocOptions, Buffer, CaptureState, Device, FlagOutcome, Flags, MemoryKind, Stream, Word,
};

use crate::bare::Bare;
use crate::rows::{Rows, microseconds};

pub(crate) fn measure(device: &Device, bare: &Bare, rows: &mut Rows) -> Result<()> {
    let what = format!("graph of flag kernels, replayed {REPLAYS} times");
    let Some(flags) = device.flags() else {
        rows.add_bad(what, "no stepmesh.graph.v1", "");
        return Ok(());
    };
    let _current = bare.enter(device.ordinal())?;
    let stream = device.create_stream()?;
    let words = Words::new(device)?;
    // Loads the kernels, which is no part of a capture.
    // SAFETY: the words outlive the stream's work, which `settle` waits for, and are atomics.
    unsafe { flags.add_one(&stream, words.at(SEQ))? };
    stream.synchronize(LONG)?;
    words.load(SEQ)?.store(0, Ordering::Release);
    match replay(&flags, &stream, &words, bare) {
        Ok(took) => rows.add(what, took, "each answered by a thread of the host"),
        Err(error) => rows.add_bad(what, format!("{error:#}"), ""),
    }
    for (what, expected, timeout, abort) in [
        (
            "a wait for a flag that never comes",
            FlagOutcome::TimedOut,
            SHORT,
            false,
        ),
        ("a wait that is aborted", FlagOutcome::Aborted, LONG, true),
    ] {
        let ended = end_wait(&flags, &stream, &words, timeout, abort)?;
        let outcome = ended
            .0
            .map_or_else(|| "no outcome".into(), |outcome| format!("{outcome:?}"));
        let value = format!("{outcome} after {:.1} ms", ended.1.as_secs_f64() * 1e3);
        if ended.0 == Some(expected) {
            rows.add(what, value, "");
        } else {
            rows.add_bad(what, value, format!("{expected:?} is due"));
        }
    }
    Ok(())
}

fn replay(flags: &Flags, stream: &Stream, words: &Words, bare: &Bare) -> Result<String> {
    let submit = || -> Result<()> {
        let state = flags.capture_state(stream)?;
        ensure!(
            matches!(state, CaptureState::Active(_)),
            "a captured stream is {state:?}"
        );
        let (asked, answered, seq) = (words.at(ASKED), words.at(ANSWERED), words.at(SEQ));
        let (abort, outcome) = (Some(words.at(ABORT)), Some(words.at(OUTCOME)));
        // SAFETY: the words outlive the graph, which is dropped in this function, and are atomics.
        unsafe { flags.add_one(stream, seq)? };
        // SAFETY: as above.
        unsafe { flags.write_flag(stream, asked, seq)? };
        // SAFETY: as above.
        unsafe { flags.wait_flag(stream, answered, seq, abort, outcome, LONG)? };
        Ok(())
    };
    // SAFETY: a live stream; the words outlive the graph.
    let graph = unsafe { bare.capture(stream.handle(), submit)? };
    ensure!(
        flags.capture_state(stream)? == CaptureState::None,
        "the stream is captured after its capture ended"
    );
    let mut took = Vec::new();
    for round in 1..=REPLAYS {
        words.load(OUTCOME)?.store(0, Ordering::Relaxed);
        let start = Instant::now();
        // SAFETY: a live stream.
        unsafe { graph.launch(stream.handle())? };
        // The host's side: waits for the question, answers, and waits for the end.
        words.reaches(ASKED, round)?;
        words.load(ANSWERED)?.store(round, Ordering::Release);
        stream.synchronize(LONG)?;
        took.push(start.elapsed());
        let outcome = FlagOutcome::of(words.load(OUTCOME)?.load(Ordering::Acquire));
        ensure!(
            outcome == Some(FlagOutcome::Reached),
            "replay {round} ended {outcome:?}"
        );
    }
    let seq = words.load(SEQ)?.load(Ordering::Acquire);
    ensure!(seq == REPLAYS, "{REPLAYS} replays counted to {seq}");
    Ok(microseconds(&mut took))
}

fn end_wait(
    flags: &Flags,
    stream: &Stream,
    words: &Words,
    timeout: Duration,
    abort: bool,
) -> Result<(Option<FlagOutcome>, Duration)> {
    words.load(OUTCOME)?.store(0, Ordering::Relaxed);
    words.load(ABORT)?.store(0, Ordering::Relaxed);
    words.load(SEQ)?.store(u64::MAX, Ordering::Release);
    let start = Instant::now();
    let (flag, seq) = (words.at(ANSWERED), words.at(SEQ));
    let (stop, outcome) = (Some(words.at(ABORT)), Some(words.at(OUTCOME)));
    // SAFETY: the words outlive the wait below, and are atomics.
    unsafe { flags.wait_flag(stream, flag, seq, stop, outcome, timeout)? };
    words
        .load(ABORT)?
        .store(u64::from(abort), Ordering::Release);
    stream.synchronize(2 * LONG)?;
    let outcome = words.load(OUTCOME)?.load(Ordering::Acquire);
    Ok((FlagOutcome::of(outcome), start.elapsed()))
}

/// Words of pinned memory, each on a cache line of its own.
struct Words(Buffer);

impl Words {
    fn new(device: &Device) -> Result<Self> {
        let options = AllocOptions {
            kind: MemoryKind::HostPinned,
            ..AllocOptions::default()
        };
        let words = Self(device.alloc_with(WORDS_LEN, options)?);
        for offset in (0..WORDS_LEN).step_by(LINE) {
            words.load(offset)?.store(0, Ordering::Relaxed);
        }
        Ok(words)
    }

    fn at(&self, offset: u64) -> Word<'_> {
        Word {
            buffer: &self.0,
            offset,
        }
    }

    fn load(&self, offset: u64) -> Result<&AtomicU64> {
        let start = self.0.host_ptr().context("pinned memory has no address")?;
        let offset = usize::try_from(offset)?;
        // SAFETY: one of the offsets below, within the buffer.
        let word = unsafe { start.cast::<u8>().add(offset) };
        // SAFETY: aligned like the pages of the buffer, which is borrowed as long as the answer; all
        // of this process use the words as atomics.
        Ok(unsafe { AtomicU64::from_ptr(word.as_ptr().cast()) })
    }

    fn reaches(&self, offset: u64, seq: u64) -> Result<()> {
        let start = Instant::now();
        while self.load(offset)?.load(Ordering::Acquire) < seq {
            if start.elapsed() > LONG {
                bail!("the device did not write {seq} within {} s", LONG.as_secs());
            }
            std::hint::spin_loop();
        }
        Ok(())
    }
}

/// As often as the original's own test.
const REPLAYS: u64 = 24;
/// Where the words are.
const SEQ: u64 = 0;
const ASKED: u64 = 64;
const ANSWERED: u64 = 128;
const ABORT: u64 = 192;
const OUTCOME: u64 = 256;
const WORDS_LEN: u64 = 4096;
const LINE: usize = 64;
/// A wait that is meant to end.
const LONG: Duration = Duration::from_secs(5);
/// A wait that is not.
const SHORT: Duration = Duration::from_millis(20);
