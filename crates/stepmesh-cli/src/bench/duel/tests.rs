//! Turns and blocks between two threads.

use std::time::Duration;

use anyhow::Result;

use super::{Bare, Baton, Side, Turn, count_allocations, echo, measure};
use crate::bench::floor::page::Page;
use crate::bench::floor::tcp::{TcpCaller, TcpEcho};
use crate::bench::floor::{End, SharedMemory};

/// Runs `caller` against an echo of two shared-memory floors of this length.
fn against_an_echo<T>(
    len_bytes: usize,
    caller: impl FnOnce(&mut Baton<'_>, &mut SharedMemory<'_>) -> Result<T>,
) -> T {
    let page = Page::create(len_bytes).unwrap();
    let other = Page::open(&page.path()).unwrap();
    std::thread::scope(|scope| {
        let echo = scope.spawn(move || {
            let mut side = SharedMemory::new(&other, End::Echo, len_bytes);
            echo(&mut Baton::new(&other), &mut side, &mut Never)
        });
        let mut side = SharedMemory::new(&page, End::Caller, len_bytes);
        side.fill(&vec![7; len_bytes]);
        let mut baton = Baton::new(&page);
        let value = caller(&mut baton, &mut side).unwrap();
        baton.lead(Turn::End);
        echo.join().unwrap().unwrap();
        value
    })
}

struct Never;

impl Side for Never {
    fn round(&mut self) -> Result<()> {
        anyhow::bail!("this turn was not asked for")
    }
}

#[test]
fn the_floor_brings_back_what_it_sent() {
    let is_echoed = against_an_echo(9000, |baton, side| {
        baton.lead(Turn::Ours(3));
        (0..3).try_for_each(|_| side.round())?;
        Ok(side.is_echoed())
    });
    assert!(is_echoed);
}

#[test]
fn a_turn_that_fails_ends_the_echo_with_its_error() {
    let page = Page::create(8).unwrap();
    let other = Page::open(&page.path()).unwrap();
    Baton::new(&page).lead(Turn::Floor(1));
    let mut side = SharedMemory::new(&other, End::Echo, 8);
    let error = echo(&mut Baton::new(&other), &mut side, &mut Never).unwrap_err();
    assert!(error.to_string().contains("not asked for"), "{error:#}");
}

#[test]
fn allocations_are_counted_on_both_ends() {
    let counted = against_an_echo(8, |baton, side| {
        count_allocations(baton, &mut Allocating(side), 50)
    });
    assert_eq!(counted.on_the_way, 50, "{counted:?}");
    assert!(counted.in_all >= 50, "{counted:?}");
}

struct Allocating<'a, 'p>(&'a mut SharedMemory<'p>);

impl Side for Allocating<'_, '_> {
    fn round(&mut self) -> Result<()> {
        std::hint::black_box(vec![0_u8; 24]);
        self.0.round()
    }
}

#[test]
fn a_duel_of_two_ways_has_samples_of_both_and_a_ratio() {
    let page = Page::create(8).unwrap();
    let other = Page::open(&page.path()).unwrap();
    let outcome = std::thread::scope(|scope| {
        let echo = scope.spawn(move || {
            let mut baton = Baton::new(&other);
            assert_eq!(baton.follow().unwrap(), Turn::Connect);
            let mut tcp = TcpEcho::accept(8, |port| baton.tell(port.into())).unwrap();
            let mut side = SharedMemory::new(&other, End::Echo, 8);
            echo(&mut baton, &mut tcp, &mut side)
        });
        let mut baton = Baton::new(&page);
        baton.lead(Turn::Connect);
        let port = u16::try_from(baton.answer().unwrap()).unwrap();
        let mut tcp = TcpCaller::connect(port, b"12345678").unwrap();
        let mut side = SharedMemory::new(&page, End::Caller, 8);
        let budget = Duration::from_millis(20);
        let outcome = measure(&mut baton, &mut tcp, &mut side, budget).unwrap();
        assert!(tcp.is_echoed());
        baton.lead(Turn::End);
        echo.join().unwrap().unwrap();
        outcome
    });
    assert!(outcome.pairs >= 1);
    assert!(outcome.ours.count() > 0 && outcome.floor.count() > 0);
    assert!(outcome.ratio > 0.0);
}
