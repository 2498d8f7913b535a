//! The fabric over a real device: the contract of all fabrics, with one and with many queue pairs, and
//! with queues so short that they are always full.

use crate::suite::suite;

suite! {
    one_queue_pair: Setup::One;
    eight_queue_pairs: Setup::Eight;
    short_queues: Setup::Short;
}
