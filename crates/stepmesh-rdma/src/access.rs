//! What may be done with registered memory. How a device is told is not here.

/// What the adapter may do with a memory region. It can always read it for a local send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Access {
    /// Peers that know the key may write to it.
    pub remote_write: bool,
    /// Peers that know the key may read from it.
    pub remote_read: bool,
    /// Writes may become visible in another order than they were sent in, which some platforms need
    /// for full speed. Data that is followed by a write with immediate is safe: a completion orders.
    pub relaxed_ordering: bool,
}

impl Access {
    /// Only this side sends from it.
    pub const LOCAL: Self = Self {
        remote_write: false,
        remote_read: false,
        relaxed_ordering: false,
    };
    /// Peers write to it, and this side sends from it.
    pub const REMOTE_WRITE: Self = Self {
        remote_write: true,
        ..Self::LOCAL
    };
}
