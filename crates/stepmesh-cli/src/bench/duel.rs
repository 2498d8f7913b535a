//! Two ways of a round trip between the same two processes on the same two cores, in turns. One
//! process calls and measures, the other echoes; the caller says what comes next.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::bench::allocations::Count;
use crate::bench::floor::page::Page;
use crate::bench::spin::{clock_cost_ns, spin_until};
use crate::bench::statistics::{Distribution, Recorder, block_median, ratio_of_pairs};

/// One end of a way to go there and back.
pub(crate) trait Side {
    /// The caller's whole round trip, or the echo's share of it.
    fn round(&mut self) -> Result<()>;
}

/// A way without the library.
pub(crate) trait Bare: Side {
    /// Whether the last round trip of this caller brought back what it sent.
    fn is_echoed(&self) -> bool;
}

/// What a duel measured.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct DuelOutcome {
    /// Round trips of the library.
    pub(crate) ours: Distribution,
    /// Round trips of what it stands on.
    pub(crate) floor: Distribution,
    /// The median over the pairs of neighbouring blocks, of their medians' ratio.
    pub(crate) ratio: f64,
    /// How many pairs of blocks there were.
    pub(crate) pairs: u64,
}

/// How many allocations there were during some round trips.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct AllocationOutcome {
    /// On the two threads that the messages went through.
    pub(crate) on_the_way: u64,
    /// Those, and those of whatever else went on meanwhile: heartbeats, and sleeping between them.
    pub(crate) in_all: u64,
}

/// What the echo does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Gets ready to be connected to, before anything else.
    Connect,
    /// So many round trips of the library.
    Ours(u64),
    /// So many round trips of the floor.
    Floor(u64),
    /// Counts its allocations from here on.
    Count,
    /// Tells how many there were on the thread that echoes.
    TellHere,
    /// Tells how many there were in the whole process, and stops to count.
    TellAll,
    /// Nothing comes any more.
    End,
}

/// The words by which the caller leads and the echo follows.
#[derive(Debug)]
pub(crate) struct Baton<'a> {
    page: &'a Page,
    turns: u64,
}

impl<'a> Baton<'a> {
    pub(crate) fn new(page: &'a Page) -> Self {
        Self { page, turns: 0 }
    }

    /// Tells the echo what comes next. It is ready for it within a microsecond or two.
    pub(crate) fn lead(&mut self, turn: Turn) {
        let (kind, rounds) = match turn {
            Turn::Connect => (0, 0),
            Turn::Ours(rounds) => (1, rounds),
            Turn::Floor(rounds) => (2, rounds),
            Turn::Count => (3, 0),
            Turn::TellHere => (4, 0),
            Turn::TellAll => (5, 0),
            Turn::End => (6, 0),
        };
        self.turns += 1;
        self.page.word(KIND).store(kind, Ordering::Relaxed);
        self.page.word(ROUNDS).store(rounds, Ordering::Relaxed);
        self.page.word(TURN).store(self.turns, Ordering::Release);
    }

    /// Waits until the caller said what comes next.
    pub(crate) fn follow(&mut self) -> Result<Turn> {
        self.turns += 1;
        let (word, turns) = (self.page.word(TURN), self.turns);
        spin_until("the caller's next turn", || {
            word.load(Ordering::Acquire) == turns
        })?;
        let rounds = self.page.word(ROUNDS).load(Ordering::Relaxed);
        Ok(match self.page.word(KIND).load(Ordering::Relaxed) {
            0 => Turn::Connect,
            1 => Turn::Ours(rounds),
            2 => Turn::Floor(rounds),
            3 => Turn::Count,
            4 => Turn::TellHere,
            5 => Turn::TellAll,
            6 => Turn::End,
            kind => bail!("the caller asks for a turn of kind {kind}"),
        })
    }

    /// Publishes the echo's answer to the turn under way.
    pub(crate) fn tell(&self, value: u64) {
        self.page.word(ANSWER).store(value, Ordering::Relaxed);
        self.page
            .word(ANSWERED)
            .store(self.turns, Ordering::Release);
    }

    /// Waits for the echo's answer to the turn under way.
    pub(crate) fn answer(&self) -> Result<u64> {
        let (word, turns) = (self.page.word(ANSWERED), self.turns);
        spin_until("the echo's answer", || {
            word.load(Ordering::Acquire) == turns
        })?;
        Ok(self.page.word(ANSWER).load(Ordering::Relaxed))
    }
}

/// Echoes until the caller ends it.
pub(crate) fn echo(
    baton: &mut Baton<'_>,
    ours: &mut impl Side,
    floor: &mut impl Side,
) -> Result<()> {
    let mut count = None;
    loop {
        match baton.follow()? {
            Turn::Ours(rounds) => (0..rounds).try_for_each(|_| ours.round())?,
            Turn::Floor(rounds) => (0..rounds).try_for_each(|_| floor.round())?,
            Turn::Count => {
                count = Some(Count::start());
                baton.tell(0);
            }
            Turn::TellHere => baton.tell(count.as_ref().map_or(0, Count::here)),
            Turn::TellAll => baton.tell(count.take().map_or(0, |count| count.everywhere())),
            Turn::Connect => bail!("the caller connects a second time"),
            Turn::End => return Ok(()),
        }
    }
}

/// Measures both in turns for about `budget`, after as much warming up as it takes to know how
/// many round trips a block should have.
pub(crate) fn measure(
    baton: &mut Baton<'_>,
    ours: &mut impl Side,
    floor: &mut impl Side,
    budget: Duration,
) -> Result<DuelOutcome> {
    let mut block = Block::new();
    let ours_rounds = block.fitting_rounds(baton, Turn::Ours, ours)?;
    let floor_rounds = block.fitting_rounds(baton, Turn::Floor, floor)?;
    let (mut of_ours, mut of_floor) = (Recorder::new()?, Recorder::new()?);
    let mut pairs = Vec::new();
    let deadline = Instant::now() + budget;
    while Instant::now() < deadline || pairs.is_empty() {
        block.run(baton, Turn::Ours, ours, ours_rounds)?;
        let ours_ns = block.take(&mut of_ours);
        block.run(baton, Turn::Floor, floor, floor_rounds)?;
        pairs.push((ours_ns, block.take(&mut of_floor)));
    }
    Ok(DuelOutcome {
        ours: of_ours.distribution(),
        floor: of_floor.distribution(),
        ratio: ratio_of_pairs(&pairs).context("the floor took no time at all")?,
        pairs: u64::try_from(pairs.len())?,
    })
}

/// Counts the allocations of both processes during so many round trips of the library.
pub(crate) fn count_allocations(
    baton: &mut Baton<'_>,
    ours: &mut impl Side,
    rounds: u64,
) -> Result<AllocationOutcome> {
    let mut run = |baton: &mut Baton<'_>, rounds| {
        baton.lead(Turn::Ours(rounds));
        (0..rounds).try_for_each(|_| ours.round())
    };
    run(baton, rounds)?;
    baton.lead(Turn::Count);
    baton.answer()?;
    let count = Count::start();
    run(baton, rounds)?;
    let (here, everywhere) = (count.here(), count.everywhere());
    drop(count);
    baton.lead(Turn::TellHere);
    let on_the_way = here + baton.answer()?;
    baton.lead(Turn::TellAll);
    let in_all = everywhere + baton.answer()?;
    Ok(AllocationOutcome { on_the_way, in_all })
}

/// One block of round trips, and its samples.
struct Block {
    samples: Vec<u64>,
    clock_cost_ns: u64,
}

impl Block {
    fn new() -> Self {
        Self {
            samples: Vec::with_capacity(usize::try_from(ROUNDS_MAX).unwrap_or_default()),
            clock_cost_ns: clock_cost_ns(),
        }
    }

    /// Runs a few round trips that do not count, then `rounds` that do.
    ///
    /// The clock is read once a round trip, and what that costs is taken off: on the shortest it
    /// would be a good part of the whole, and make ours look nearer to the floor than it is.
    fn run(
        &mut self,
        baton: &mut Baton<'_>,
        turn: fn(u64) -> Turn,
        side: &mut impl Side,
        rounds: u64,
    ) -> Result<()> {
        let warm_up = (rounds / WARM_UP_SHARE).max(1);
        self.samples.clear();
        baton.lead(turn(warm_up + rounds));
        (0..warm_up).try_for_each(|_| side.round())?;
        let mut last = Instant::now();
        for _ in 0..rounds {
            side.round()?;
            let now = Instant::now();
            let elapsed = now.duration_since(last).as_nanos();
            last = now;
            self.samples
                .push(u64::try_from(elapsed).unwrap_or(u64::MAX));
        }
        for sample in &mut self.samples {
            *sample = sample.saturating_sub(self.clock_cost_ns).max(1);
        }
        Ok(())
    }

    /// Adds the samples to `recorder` and gives their median.
    fn take(&mut self, recorder: &mut Recorder) -> f64 {
        self.samples
            .iter()
            .for_each(|sample| recorder.record(*sample));
        block_median(&mut self.samples)
    }

    /// How many round trips take about [`BLOCK`].
    fn fitting_rounds(
        &mut self,
        baton: &mut Baton<'_>,
        turn: fn(u64) -> Turn,
        side: &mut impl Side,
    ) -> Result<u64> {
        let mut rounds = ROUNDS_MIN;
        loop {
            let started = Instant::now();
            self.run(baton, turn, side, rounds)?;
            if started.elapsed() >= BLOCK / 2 || rounds >= ROUNDS_MAX {
                return Ok(rounds.min(ROUNDS_MAX));
            }
            rounds *= 2;
        }
    }
}

/// How long a block should take: short, so that neighbours see the same machine, but long beside
/// the hand-over.
const BLOCK: Duration = Duration::from_millis(8);

/// Fewest round trips of a block: its median should not hang on one.
const ROUNDS_MIN: u64 = 4;

/// Most round trips of a block: what fits into [`BLOCK`] at the speed of light.
const ROUNDS_MAX: u64 = 1 << 16;

/// One round trip in so many at a block's start is not counted: the caches hold the other side's.
const WARM_UP_SHARE: u64 = 8;

// Words of the page. `floor` has the others.
const TURN: usize = 2;
const KIND: usize = 3;
const ROUNDS: usize = 4;
const ANSWER: usize = 5;
const ANSWERED: usize = 6;

#[cfg(test)]
mod tests;
