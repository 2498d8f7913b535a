//! One connection: both windows, delayed acknowledgements, keep-alives and death. It knows neither
//! who its peer is nor what a unit holds.

use super::options::LinkOptions;
use super::receive::ReceiveWindow;
use super::send::SendWindow;

/// One connection that sends units of type `O` and receives units of type `I`.
#[derive(Debug)]
pub struct Connection<O, I> {
    send: SendWindow<O>,
    receive: ReceiveWindow<I>,
    ack_due_ns: Option<u64>,
    /// Units that arrived since the last acknowledgement left.
    unacknowledged: u32,
    last_heard_ns: u64,
    last_sent_ns: u64,
    options: LinkOptions,
}

/// What became of a unit that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// Its turn is now.
    InOrder,
    /// It waits for others, or filled a gap before others.
    OutOfOrder,
    /// It was here before.
    Duplicate,
    /// There was no room; it will be sent again.
    Dropped,
}

/// The peer broke the protocol in this way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Violation(pub &'static str);

/// Why a connection is dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Death {
    /// Nothing was heard for [`LinkOptions::silence_ns`].
    Silence,
    /// A unit was sent again [`LinkOptions::retries_max`] times and not acknowledged.
    RetriesExhausted,
}

/// What to send now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transmission<'a, O> {
    /// This unit.
    Unit {
        /// Its number.
        sequence: u64,
        /// Itself.
        unit: &'a O,
        /// Whether it was sent before.
        again: bool,
    },
    /// Only the acknowledgement.
    Ack,
}

impl<O, I> Connection<O, I> {
    /// A connection on which nothing was sent, heard for the first time at `now_ns`.
    pub fn new(options: LinkOptions, now_ns: u64) -> Self {
        let options = options.normalised();
        Self {
            send: SendWindow::new(&options),
            receive: ReceiveWindow::new(options.window_units as u64, options.window_len_bytes),
            ack_due_ns: None,
            unacknowledged: 0,
            last_heard_ns: now_ns,
            last_sent_ns: now_ns,
            options,
        }
    }

    /// Whether [`post`](Self::post) would take a unit of that length.
    pub fn has_room(&self, len_bytes: u64) -> bool {
        self.send.has_room(len_bytes)
    }

    /// Takes a unit to be sent.
    ///
    /// # Errors
    /// The unit itself when the window is full.
    pub fn post(&mut self, unit: O, len_bytes: u64, now_ns: u64) -> Result<(), O> {
        if !self.send.has_room(len_bytes) {
            return Err(unit);
        }
        self.send.push(unit, len_bytes, now_ns);
        Ok(())
    }

    /// Notes that something came from the peer, which therefore lives.
    pub fn heard(&mut self, now_ns: u64) {
        self.last_heard_ns = self.last_heard_ns.max(now_ns);
    }

    /// Takes the acknowledgement that came with a packet.
    ///
    /// # Errors
    /// [`Violation`] when it covers units that were never sent.
    pub fn on_ack(&mut self, delivered: u64, held: u64, now_ns: u64) -> Result<(), Violation> {
        self.send.acknowledge(delivered, held, now_ns)
    }

    /// Takes a unit that arrived. Duplicates, gaps and every second unit are acknowledged at
    /// once, as the sender waits for that; others may wait for company.
    ///
    /// # Errors
    /// [`Violation`] when it lies beyond the window.
    pub fn on_unit(
        &mut self,
        sequence: u64,
        unit: I,
        len_bytes: u64,
        now_ns: u64,
    ) -> Result<Arrival, Violation> {
        let arrival = self.receive.arrived(sequence, unit, len_bytes)?;
        self.unacknowledged += 1;
        let at_once = arrival != Arrival::InOrder || self.unacknowledged >= ACK_EVERY_UNITS;
        self.ack_by(
            if at_once {
                0
            } else {
                self.options.ack_delay_ns
            },
            now_ns,
        );
        Ok(arrival)
    }

    /// The next unit in order. The caller delivers it before the next call of
    /// [`transmit`](Self::transmit), which acknowledges it.
    pub fn next_delivery(&mut self, now_ns: u64) -> Option<I> {
        let unit = self.receive.deliver_next()?;
        self.ack_by(self.options.ack_delay_ns, now_ns);
        Some(unit)
    }

    /// The next unit that the peer has delivered; each comes once, in order.
    pub fn next_acknowledged(&mut self) -> Option<O> {
        self.send.take_acknowledged()
    }

    /// Whether one of the two calls above would return something.
    pub fn has_news(&self) -> bool {
        self.receive.has_next() || self.send.has_acknowledged()
    }

    /// What is to be sent now, until there is nothing. Each packet carries
    /// [`acknowledgement`](Self::acknowledgement).
    pub fn transmit(&mut self, now_ns: u64) -> Option<Transmission<'_, O>> {
        let is_unit_due = self.send.is_due(now_ns);
        let is_ack_due = self.ack_due_ns.is_some_and(|due_ns| due_ns <= now_ns);
        if !is_unit_due && !is_ack_due && now_ns < self.keep_alive_due_ns() {
            return None;
        }
        self.ack_due_ns = None;
        self.unacknowledged = 0;
        self.last_sent_ns = now_ns;
        Some(match self.send.next_due(now_ns) {
            Some((sequence, unit, again)) => Transmission::Unit {
                sequence,
                unit,
                again,
            },
            None => Transmission::Ack,
        })
    }

    /// How many units were delivered, and the bitmap of those that wait.
    pub fn acknowledgement(&self) -> (u64, u64) {
        (self.receive.delivered(), self.receive.held_bitmap())
    }

    /// Whether the connection still lives. To be asked before [`transmit`](Self::transmit), and
    /// only after everything that arrived was taken.
    ///
    /// # Errors
    /// [`Death`].
    pub fn check(&self, now_ns: u64) -> Result<(), Death> {
        if now_ns >= self.silence_due_ns() {
            return Err(Death::Silence);
        }
        if self.send.is_exhausted(now_ns) {
            return Err(Death::RetriesExhausted);
        }
        Ok(())
    }

    /// When [`check`](Self::check) or [`transmit`](Self::transmit) has something to do next.
    pub fn next_timer_ns(&self) -> u64 {
        let timers = [self.send.next_due_ns(), self.ack_due_ns];
        timers
            .into_iter()
            .flatten()
            .fold(self.keep_alive_due_ns(), u64::min)
            .min(self.silence_due_ns())
    }

    fn ack_by(&mut self, delay_ns: u64, now_ns: u64) {
        let due_ns = now_ns.saturating_add(delay_ns);
        self.ack_due_ns = Some(
            self.ack_due_ns
                .map_or(due_ns, |earlier| earlier.min(due_ns)),
        );
    }

    fn keep_alive_due_ns(&self) -> u64 {
        self.last_sent_ns.saturating_add(self.options.keep_alive_ns)
    }

    fn silence_due_ns(&self) -> u64 {
        self.last_heard_ns.saturating_add(self.options.silence_ns)
    }
}

/// Every second unit is acknowledged at once, as in TCP, so that a stream keeps its window moving.
const ACK_EVERY_UNITS: u32 = 2;
