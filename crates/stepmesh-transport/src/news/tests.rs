//! The order of what is reported, and when a deadline begins.

use std::time::Duration;

use super::{Deadline, News};
use crate::error::Error;
use crate::fabric::{EventSink, FabricKind, PeerId};

#[derive(Default)]
struct Told(Vec<String>);

impl EventSink for Told {
    fn connected(&mut self, peer: PeerId, hello: &[u8]) {
        self.0.push(format!("{} connected {hello:?}", peer.0));
    }
    fn accepted(&mut self, peer: PeerId, hello: &[u8]) {
        self.0.push(format!("{} accepted {hello:?}", peer.0));
    }
    fn message(&mut self, _: PeerId, _: &[u8]) {}
    fn sent(&mut self, _: PeerId, _: u64) {}
    fn closed(&mut self, peer: PeerId, _: Error) {
        self.0.push(format!("{} closed", peer.0));
    }
}

#[test]
fn reports_the_oldest_first_and_nothing_of_who_was_forgotten() {
    let closed = |peer| Error::PeerClosed {
        fabric: FabricKind::Tcp,
        peer,
    };
    let mut news = News::default();
    news.connected(PeerId(1), vec![7]);
    news.accepted(PeerId(2), vec![]);
    news.closed(PeerId(3), closed(PeerId(3)));
    news.closed(PeerId(1), closed(PeerId(1)));
    news.forget(PeerId(2));

    let mut told = Told::default();
    assert_eq!(news.report(2, &mut told), 2);
    assert_eq!(told.0, ["1 connected [7]", "3 closed"]);
    assert!(!news.is_empty());
    assert_eq!(news.report(2, &mut told), 1);
    assert_eq!(told.0[2], "1 closed");
    assert!(news.is_empty());
}

#[test]
fn a_deadline_begins_with_the_first_look() {
    let mut deadline = Deadline::after(Duration::from_nanos(10));
    assert!(!deadline.is_over(1000));
    assert!(!deadline.is_over(1009));
    assert!(deadline.is_over(1010));
    let mut never = Deadline::after(Duration::MAX);
    assert!(!never.is_over(5));
    assert!(!never.is_over(u64::MAX - 1));
}
