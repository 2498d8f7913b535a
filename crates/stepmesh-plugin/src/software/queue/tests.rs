//! The queue with and without a worker.

use std::sync::Arc;
use std::time::Duration;

use stepmesh_abi::Code;

use super::{Queue, Refusal, deadline};
use crate::Error;

const NO_WAIT: Duration = Duration::ZERO;
/// Far longer than anything here takes.
const LONG: Duration = Duration::from_secs(30);

#[test]
fn work_comes_out_in_order_and_a_full_queue_refuses() {
    let queue = Queue::new(2);
    assert_eq!(queue.push(1, NO_WAIT), Ok(()));
    assert_eq!(queue.push(2, NO_WAIT), Ok(()));
    assert_eq!(queue.push(3, NO_WAIT), Err(Refusal::Full));
    assert_eq!(
        (queue.pop(), queue.pop()),
        (Some((1, None)), Some((2, None)))
    );
}

#[test]
fn a_closed_queue_gives_what_it_has_and_takes_no_more() {
    let queue = Queue::new(2);
    assert_eq!(queue.push(1, NO_WAIT), Ok(()));
    queue.close();
    assert_eq!(queue.push(2, LONG), Err(Refusal::Closed));
    assert_eq!((queue.pop(), queue.pop()), (Some((1, None)), None));
}

#[test]
fn an_abandoned_queue_drops_its_work_and_counts_as_idle() {
    let queue = Queue::new(2);
    let item = Arc::new(());
    assert_eq!(queue.push(Arc::clone(&item), NO_WAIT), Ok(()));
    assert!(!queue.is_idle() && !queue.wait_for_submitted(NO_WAIT));
    queue.abandon();
    assert_eq!(Arc::strong_count(&item), 1);
    assert!(queue.is_idle() && queue.is_abandoned() && queue.pop().is_none());
    assert_eq!(queue.take_failure().unwrap().code(), Code::Cancelled);
}

#[test]
fn the_first_failure_goes_with_later_work_until_it_is_taken() {
    let queue = Queue::new(8);
    for number in 1..=4 {
        assert_eq!(queue.push(number, NO_WAIT), Ok(()));
    }
    assert_eq!(queue.pop(), Some((1, None)));
    queue.complete(Err(Error::internal("first")));
    let first = Some(Error::internal("first"));
    assert_eq!(queue.pop(), Some((2, first.clone())));
    queue.complete(Err(Error::internal("second")));
    assert_eq!(queue.pop(), Some((3, first.clone())));
    queue.complete(Ok(()));
    assert_eq!(queue.take_failure(), first);
    assert_eq!(queue.pop(), Some((4, None)));
    queue.complete(Ok(()));
    assert!(queue.is_settled());
}

#[test]
fn an_abandoned_queue_ends_the_wait_for_it() {
    let queue = Queue::<u32>::new(1);
    assert!(!queue.wait_for_abandon(deadline(NO_WAIT)));
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| queue.wait_for_abandon(deadline(LONG)));
        queue.abandon();
        assert!(waiter.join().unwrap());
    });
    assert_eq!(queue.take_failure(), None, "no work was lost");
}

#[test]
fn a_waiter_sees_the_work_done_and_a_pusher_gets_the_room() {
    let queue = Arc::new(Queue::new(1));
    assert!(queue.claim_worker() && !queue.claim_worker());
    let worker = {
        let queue = Arc::clone(&queue);
        std::thread::spawn(move || {
            let mut sum = 0;
            while let Some((number, _)) = queue.pop() {
                sum += number;
                queue.complete(Ok(()));
            }
            queue.release_worker();
            sum
        })
    };
    for number in 1..=100 {
        assert_eq!(queue.push(number, LONG), Ok(()));
    }
    assert!(queue.wait_for_submitted(LONG));
    queue.close();
    assert!(queue.wait_for_worker_end(deadline(LONG)));
    assert_eq!(worker.join().unwrap(), 5050);
    assert!(!queue.claim_worker());
}
