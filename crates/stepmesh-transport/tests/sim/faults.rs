//! The stream keeps its promises under each fault, and under all of them, over many seeds; equal
//! seeds repeat themselves.

use stepmesh_transport::sim::network::SimNetwork;
use stepmesh_transport::sim::options::{Faults, SimOptions, Statistics};

use crate::harness::{SECOND, World};

const CALM: Faults = Faults {
    loss: 0.0,
    duplication: 0.0,
    reorder: 0.0,
    delay_min_ns: 5_000,
    delay_max_ns: 20_000,
    bandwidth_bytes_per_s: None,
};

/// Streams both ways over `seeds` networks with these faults, and returns what they counted
/// together.
fn stream(seeds: u64, faults: Faults) -> Statistics {
    let mut total = Statistics::default();
    for seed in 0..seeds {
        let options = SimOptions {
            faults,
            ..SimOptions::default()
        };
        let network = SimNetwork::new(seed, options);
        let mut world = World::connected(&network).unwrap();
        world.count = CHAINS;
        let all_sent = world.run(60 * SECOND, World::is_all_sent);
        world.assert(all_sent, &format!("seed {seed} with {faults:?} is stuck"));
        let counted = network.statistics();
        total.lost += counted.lost;
        total.duplicated += counted.duplicated;
        total.retransmitted += counted.retransmitted;
        total.recognised_copies += counted.recognised_copies;
        total.refused += counted.refused;
        total.delivered += counted.delivered;
    }
    assert_eq!(total.delivered, seeds * CHAINS * 2);
    total
}

#[test]
fn a_calm_network_delivers_everything_and_repeats_nothing() {
    let total = stream(20, CALM);
    assert_eq!((total.lost, total.retransmitted, total.refused), (0, 0, 0));
    assert_eq!(total.recognised_copies, 0);
}

#[test]
fn loss_is_made_good() {
    let total = stream(200, Faults { loss: 0.2, ..CALM });
    assert!(total.lost > 1000 && total.retransmitted > 1000, "{total:?}");
}

#[test]
fn duplicates_are_dropped() {
    let faults = Faults {
        duplication: 0.5,
        ..CALM
    };
    let total = stream(200, faults);
    assert!(
        total.duplicated > 1000 && total.recognised_copies > 1000,
        "{total:?}"
    );
}

#[test]
fn reordered_chains_are_put_in_order() {
    let faults = Faults {
        reorder: 0.5,
        delay_max_ns: 500_000,
        ..CALM
    };
    let total = stream(200, faults);
    assert_eq!(total.lost, 0);
}

#[test]
fn a_delay_far_above_the_first_retransmission_is_learnt() {
    let faults = Faults {
        delay_min_ns: 50_000_000,
        delay_max_ns: 60_000_000,
        ..CALM
    };
    for seed in 0..20 {
        let options = SimOptions {
            faults,
            ..SimOptions::default()
        };
        let network = SimNetwork::new(seed, options);
        let mut world = World::connected(&network).unwrap();
        // The first window leaves before anything was measured; later ones know better.
        world.count = 64;
        assert!(world.run(60 * SECOND, World::is_all_sent));
        let before = network.statistics().retransmitted;
        assert!(before >= 64, "{before}");
        world.count = 256;
        assert!(world.run(60 * SECOND, World::is_all_sent));
        let after = network.statistics().retransmitted;
        world.assert(after == before, "the round trip was not learnt");
    }
}

#[test]
fn a_narrow_network_delivers_everything() {
    let faults = Faults {
        bandwidth_bytes_per_s: Some(1_000_000),
        ..CALM
    };
    stream(20, faults);
}

#[test]
fn all_faults_together_are_made_good() {
    let faults = Faults {
        loss: 0.1,
        duplication: 0.1,
        reorder: 0.3,
        delay_min_ns: 1_000,
        delay_max_ns: 2_000_000,
        bandwidth_bytes_per_s: Some(100_000_000),
    };
    let total = stream(200, faults);
    assert!(
        total.lost > 1000 && total.recognised_copies > 1000,
        "{total:?}"
    );
}

#[test]
fn faults_of_one_direction_leave_the_other_alone() {
    let network = SimNetwork::new(3, SimOptions::default());
    let mut world = World::connected(&network).unwrap();
    let lossy = Faults { loss: 0.5, ..CALM };
    network.set_faults_between("a", "b", lossy);
    world.count = CHAINS;
    let all_sent = world.run(60 * SECOND, World::is_all_sent);
    world.assert(all_sent, "stuck");
    let trace = network.trace();
    let lost = |direction: &str| {
        let is_loss = |line: &&String| line.contains("is lost") && line.contains(direction);
        trace.iter().filter(is_loss).count()
    };
    assert!(lost("a -> b") > 0);
    assert_eq!(lost("b -> a"), 0);
    network.clear_faults_between("a", "b");
    let lost_before = network.statistics().lost;
    world.count *= 2;
    let all_sent = world.run(60 * SECOND, World::is_all_sent);
    world.assert(all_sent, "stuck");
    assert_eq!(network.statistics().lost, lost_before);
}

#[test]
fn equal_seeds_give_equal_traces_and_others_do_not() {
    let faults = Faults {
        loss: 0.1,
        duplication: 0.1,
        reorder: 0.2,
        delay_max_ns: 300_000,
        ..CALM
    };
    let trace = |seed| {
        let options = SimOptions {
            faults,
            ..SimOptions::default()
        };
        let network = SimNetwork::new(seed, options);
        let mut world = World::connected(&network).unwrap();
        world.count = CHAINS;
        assert!(world.run(60 * SECOND, World::is_all_sent));
        network.trace()
    };
    let first = trace(11);
    assert!(first.len() > 100);
    assert_eq!(first, trace(11));
    assert_ne!(first, trace(12));
}

/// Of each direction; more than a window, few enough that hundreds of seeds stay quick.
const CHAINS: u64 = 80;
