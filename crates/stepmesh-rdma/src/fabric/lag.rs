//! Bonded adapters: which of their ports each queue pair takes. Left alone, an adapter spreads queue
//! pairs by a hash of their numbers, by which two large flows may share a port.

#![forbid(unsafe_code)]

use std::fmt;

/// The ports of an adapter that its queue pairs are spread over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Lag {
    /// So many, from 1.
    Ports(u8),
    /// Queue pairs are left as they are, for this reason.
    Alone(String),
}

impl Lag {
    /// What there is, where it is asked for.
    pub(super) fn find<E: fmt::Display>(
        is_asked: bool,
        ports: impl FnOnce() -> Result<u8, E>,
    ) -> Self {
        if !is_asked {
            return Self::Alone("rdma.spread_ports is off".to_owned());
        }
        match ports() {
            Ok(ports) if ports > 1 => Self::Ports(ports),
            Ok(_) => Self::Alone("the adapter is not bonded".to_owned()),
            Err(error) => Self::Alone(error.to_string()),
        }
    }

    /// Gives queue pair `index` of a connection its port, in turn. A refusal ends the spreading: the
    /// queue pairs go on as they were.
    pub(super) fn pin<E: fmt::Display>(
        &mut self,
        index: usize,
        pin: impl FnOnce(u8) -> Result<(), E>,
    ) {
        let Self::Ports(ports) = *self else {
            return;
        };
        let port = u8::try_from(index % usize::from(ports)).unwrap_or(0) + 1;
        if let Err(error) = pin(port) {
            *self = Self::Alone(error.to_string());
            tracing::warn!(%error, port, "rdma: a queue pair cannot be given a port");
        }
    }
}

#[cfg(test)]
mod tests {
    //! A bonded adapter, and others.

    use super::Lag;

    #[test]
    fn queue_pairs_take_the_ports_in_turn() {
        let mut lag = Lag::find(true, || Ok::<_, String>(2));
        let mut taken = Vec::new();
        for index in 0..5 {
            lag.pin(index, |port| {
                taken.push(port);
                Ok::<_, String>(())
            });
        }
        assert_eq!(taken, [1, 2, 1, 2, 1]);
        assert_eq!(lag, Lag::Ports(2));
    }

    #[test]
    fn what_is_not_bonded_or_not_asked_for_is_left_alone_with_the_reason() {
        let alone = |lag: Lag, reason: &str| {
            let mut lag = lag;
            lag.pin(0, |port| -> Result<(), String> {
                panic!("pinned to {port}")
            });
            assert!(
                matches!(&lag, Lag::Alone(found) if found.contains(reason)),
                "{lag:?}"
            );
        };
        alone(Lag::find(false, || Ok::<_, String>(2)), "spread_ports");
        alone(Lag::find(true, || Ok::<_, String>(1)), "not bonded");
        alone(Lag::find(true, || Err("no libmlx5")), "no libmlx5");
    }

    #[test]
    fn a_refusal_ends_the_spreading() {
        let mut lag = Lag::find(true, || Ok::<_, String>(2));
        lag.pin(0, |_| Err("EINVAL"));
        lag.pin(1, |port| -> Result<(), String> {
            panic!("pinned to {port}")
        });
        assert_eq!(lag, Lag::Alone("EINVAL".to_owned()));
    }
}
