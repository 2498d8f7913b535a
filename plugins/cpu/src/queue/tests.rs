//! The queue with and without a worker.

use std::sync::Arc;
use std::time::Duration;

use super::{Queue, Refusal, deadline};

const NO_WAIT: Duration = Duration::ZERO;
/// Far longer than anything here takes.
const LONG: Duration = Duration::from_secs(30);

#[test]
fn work_comes_out_in_order_and_a_full_queue_refuses() {
    let queue = Queue::new(2);
    assert_eq!(queue.push(1, NO_WAIT), Ok(()));
    assert_eq!(queue.push(2, NO_WAIT), Ok(()));
    assert_eq!(queue.push(3, NO_WAIT), Err(Refusal::Full));
    assert_eq!((queue.pop(), queue.pop()), (Some(1), Some(2)));
}

#[test]
fn a_closed_queue_gives_what_it_has_and_takes_no_more() {
    let queue = Queue::new(2);
    assert_eq!(queue.push(1, NO_WAIT), Ok(()));
    queue.close();
    assert_eq!(queue.push(2, LONG), Err(Refusal::Closed));
    assert_eq!((queue.pop(), queue.pop()), (Some(1), None));
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
}

#[test]
fn a_waiter_sees_the_work_done_and_a_pusher_gets_the_room() {
    let queue = Arc::new(Queue::new(1));
    assert!(queue.claim_worker() && !queue.claim_worker());
    let worker = {
        let queue = Arc::clone(&queue);
        std::thread::spawn(move || {
            let mut sum = 0;
            while let Some(number) = queue.pop() {
                sum += number;
                queue.complete();
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
