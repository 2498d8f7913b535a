//! A member's side of the control plane: joining, barriers, and news of the others.

use std::collections::VecDeque;
use std::time::Duration;

use stepmesh_transport::error::Error as FabricError;
use stepmesh_transport::fabric::{Address, Chain, EventSink, Fabric, PeerId, PostError};

use crate::control::wire::{Entry, Formed, FromScheduler, Join, ToScheduler, decode, encode};
use crate::error::Error;
use crate::protocol::hello::Hello;
use crate::role::{Member, Roles};

/// The state machine of a member.
#[derive(Debug)]
pub(crate) struct MemberMachine {
    options: MemberOptions,
    state: State,
    /// Why the last attempt to connect failed.
    last_reason: String,
    barriers_made: u64,
    barriers_over: Vec<(u64, Result<(), String>)>,
    news: VecDeque<News>,
    unsent: VecDeque<Vec<u8>>,
    events: VecDeque<Event>,
    last_heard_ns: u64,
    last_sent_ns: u64,
}

/// Who joins whom.
#[derive(Clone, Debug)]
pub(crate) struct MemberOptions {
    pub(crate) scheduler: Address,
    /// The scheduler's address as people write it.
    pub(crate) scheduler_name: String,
    pub(crate) hello: Hello,
    pub(crate) join: Join,
    /// How long to go on trying to connect.
    pub(crate) connect_deadline_ns: u64,
    pub(crate) heartbeat_ns: u64,
    pub(crate) peer_dead_ns: u64,
}

/// What a member learns of the mesh.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum News {
    Formed(Formed),
    Lost { member: Member, reason: String },
    Joined { entry: Entry },
}

#[derive(Debug)]
enum State {
    /// The next attempt is due at this time.
    Waiting {
        retry_at_ns: u64,
    },
    Connecting {
        peer: PeerId,
    },
    /// Connected; `formed` once everybody is here.
    Up {
        peer: PeerId,
        formed: bool,
    },
    /// It is over, for this reason.
    Lost {
        error: Error,
    },
}

#[derive(Debug)]
enum Event {
    Connected { peer: PeerId },
    Message { message: Vec<u8> },
    Closed { peer: PeerId, reason: String },
}

impl MemberMachine {
    pub(crate) fn new(options: MemberOptions, now_ns: u64) -> Self {
        Self {
            options,
            state: State::Waiting {
                retry_at_ns: now_ns,
            },
            last_reason: "no answer".into(),
            barriers_made: 0,
            barriers_over: Vec::new(),
            news: VecDeque::new(),
            unsent: VecDeque::new(),
            events: VecDeque::new(),
            last_heard_ns: now_ns,
            last_sent_ns: now_ns,
        }
    }

    /// Polls the fabric and does what is due. Returns how many events there were.
    pub(crate) fn progress(&mut self, fabric: &mut dyn Fabric, now_ns: u64) -> usize {
        let count = fabric.poll(now_ns, &mut Sink(&mut self.events));
        while let Some(event) = self.events.pop_front() {
            match event {
                Event::Connected { peer } => self.connected(peer, now_ns),
                Event::Message { message } => {
                    self.last_heard_ns = now_ns;
                    self.message(fabric, &message);
                }
                Event::Closed { peer, reason } => self.closed(peer, reason, now_ns),
            }
        }
        self.connect_if_due(fabric, now_ns);
        self.keep_alive(fabric, now_ns);
        self.flush(fabric, now_ns);
        count
    }

    /// News, oldest first.
    pub(crate) fn next_news(&mut self) -> Option<News> {
        self.news.pop_front()
    }

    /// Why the scheduler is lost, if it is.
    pub(crate) fn lost(&self) -> Option<Error> {
        match &self.state {
            State::Lost { error } => Some(error.clone()),
            _ => None,
        }
    }

    /// Arrives at a barrier. Its number is asked about with
    /// [`barrier_outcome`](Self::barrier_outcome).
    pub(crate) fn barrier(&mut self, roles: Roles, timeout_ms: u64) -> Result<u64, Error> {
        if let Some(error) = self.lost() {
            return Err(error);
        }
        self.barriers_made += 1;
        let number = self.barriers_made;
        self.unsent.push_back(encode(&ToScheduler::Barrier {
            number,
            roles,
            timeout_ms,
        }));
        Ok(number)
    }

    /// The outcome of a barrier, once.
    pub(crate) fn barrier_outcome(&mut self, number: u64) -> Option<Result<(), String>> {
        let position = self
            .barriers_over
            .iter()
            .position(|(of, _)| *of == number)?;
        Some(self.barriers_over.swap_remove(position).1)
    }

    /// Leaves the mesh.
    pub(crate) fn leave(&mut self, fabric: &mut dyn Fabric, now_ns: u64) {
        if matches!(self.state, State::Up { .. }) {
            self.unsent.push_back(encode(&ToScheduler::Leave));
            self.flush(fabric, now_ns);
        }
    }

    fn connected(&mut self, peer: PeerId, now_ns: u64) {
        if !matches!(self.state, State::Connecting { peer: of } if of == peer) {
            return;
        }
        self.state = State::Up {
            peer,
            formed: false,
        };
        self.last_heard_ns = now_ns;
        let join = ToScheduler::Join(self.options.join.clone());
        self.unsent.push_back(encode(&join));
    }

    fn message(&mut self, fabric: &mut dyn Fabric, bytes: &[u8]) {
        let State::Up { peer, formed } = &mut self.state else {
            return;
        };
        let peer = *peer;
        match decode::<FromScheduler>(bytes) {
            Ok(FromScheduler::Formed(content)) if !*formed => {
                *formed = true;
                self.news.push_back(News::Formed(content));
            }
            Ok(FromScheduler::Rejected { reason }) => {
                fabric.close(peer);
                self.state = State::Lost {
                    error: Error::Rendezvous {
                        reason: reason.into(),
                    },
                };
            }
            Ok(FromScheduler::BarrierDone { number }) => self.barriers_over.push((number, Ok(()))),
            Ok(FromScheduler::BarrierFailed { number, reason }) => {
                self.barriers_over.push((number, Err(reason)));
            }
            Ok(FromScheduler::Lost { member, reason }) => {
                self.news.push_back(News::Lost { member, reason });
            }
            Ok(FromScheduler::Joined { entry }) => self.news.push_back(News::Joined { entry }),
            Ok(FromScheduler::Heartbeat) => {}
            Ok(FromScheduler::Shutdown { reason }) => {
                fabric.close(peer);
                self.lose(&format!("it ended: {reason}"));
            }
            Ok(FromScheduler::Formed(_)) => {
                fabric.close(peer);
                self.lose("it formed the mesh twice");
            }
            Err(error) => {
                fabric.close(peer);
                self.lose(&error.to_string());
            }
        }
    }

    fn closed(&mut self, peer: PeerId, reason: String, now_ns: u64) {
        match self.state {
            State::Connecting { peer: of } if of == peer => {
                self.last_reason = reason;
                self.state = State::Waiting {
                    retry_at_ns: now_ns + CONNECT_RETRY_NS,
                };
            }
            State::Up { peer: of, .. } if of == peer => self.lose(&reason),
            _ => {}
        }
    }

    fn connect_if_due(&mut self, fabric: &mut dyn Fabric, now_ns: u64) {
        let State::Waiting { retry_at_ns } = self.state else {
            return;
        };
        let deadline_ns = self.options.connect_deadline_ns;
        if now_ns >= deadline_ns {
            self.state = State::Lost {
                error: Error::Rendezvous {
                    reason: format!(
                        "no scheduler at {} (mesh.scheduler_host, mesh.scheduler_port): {}",
                        self.options.scheduler_name, self.last_reason
                    )
                    .into(),
                },
            };
            return;
        }
        if now_ns < retry_at_ns {
            return;
        }
        let timeout = Duration::from_nanos(deadline_ns - now_ns);
        let hello = self.options.hello.encode();
        self.state = match fabric.connect(&self.options.scheduler, &hello, timeout) {
            Ok(peer) => State::Connecting { peer },
            Err(error) => {
                self.last_reason = error.to_string();
                State::Waiting {
                    retry_at_ns: now_ns + CONNECT_RETRY_NS,
                }
            }
        };
    }

    fn keep_alive(&mut self, fabric: &mut dyn Fabric, now_ns: u64) {
        let State::Up { peer, .. } = self.state else {
            return;
        };
        if now_ns.saturating_sub(self.last_heard_ns) > self.options.peer_dead_ns {
            fabric.close(peer);
            let silent_ms = self.options.peer_dead_ns / 1_000_000;
            self.lose(&format!(
                "silent for {silent_ms} ms (timeouts.peer_dead_ms)"
            ));
        } else if now_ns.saturating_sub(self.last_sent_ns) >= self.options.heartbeat_ns
            && self.unsent.is_empty()
        {
            self.unsent.push_back(encode(&ToScheduler::Heartbeat));
        }
    }

    fn lose(&mut self, reason: &str) {
        tracing::warn!(
            scheduler = self.options.scheduler_name,
            reason,
            "the scheduler is lost"
        );
        self.unsent.clear();
        self.state = State::Lost {
            error: Error::SchedulerLost {
                operation: "control plane",
                address: self.options.scheduler_name.as_str().into(),
                reason: reason.into(),
            },
        };
    }

    fn flush(&mut self, fabric: &mut dyn Fabric, now_ns: u64) {
        let State::Up { peer, .. } = self.state else {
            return;
        };
        while let Some(message) = self.unsent.front() {
            let chain = Chain {
                writes: &[],
                message,
                token: 0,
            };
            match fabric.post(peer, &chain) {
                Ok(_) => {
                    self.unsent.pop_front();
                    self.last_sent_ns = now_ns;
                }
                Err(PostError::Full) => return,
                Err(PostError::Failed(error)) => {
                    fabric.close(peer);
                    self.lose(&error.to_string());
                    return;
                }
            }
        }
    }
}

/// Notes what a poll reports.
struct Sink<'a>(&'a mut VecDeque<Event>);

impl EventSink for Sink<'_> {
    fn connected(&mut self, peer: PeerId, _hello: &[u8]) {
        self.0.push_back(Event::Connected { peer });
    }

    fn accepted(&mut self, _peer: PeerId, _hello: &[u8]) {
        // The control address of a member is told to nobody.
    }

    fn message(&mut self, _peer: PeerId, message: &[u8]) {
        self.0.push_back(Event::Message {
            message: message.to_vec(),
        });
    }

    fn sent(&mut self, _peer: PeerId, _token: u64) {}

    fn closed(&mut self, peer: PeerId, reason: FabricError) {
        self.0.push_back(Event::Closed {
            peer,
            reason: reason.to_string(),
        });
    }
}

/// Between two attempts to connect: a scheduler that starts later is found soon, and one that is
/// not there is not flooded.
const CONNECT_RETRY_NS: u64 = 100_000_000;
