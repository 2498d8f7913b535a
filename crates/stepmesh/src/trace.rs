//! Where the time of a request went: the original's eight words, one set per server.

/// The times of one request at one server, in nanoseconds.
///
/// The first two and the last two are of the worker's monotonic clock, the middle four of the
/// server's; differences are only taken within one clock, so the two need not agree. Words that
/// were not reached, or all of them when tracing is off, are zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// The worker took the request from the caller.
    pub request_start_ns: u64,
    /// The worker posted the pushes.
    pub request_postsend_ns: u64,
    /// The server saw the request.
    pub request_postrecv_ns: u64,
    /// The application took the batch.
    pub request_process_ns: u64,
    /// The application answered.
    pub response_start_ns: u64,
    /// The server posted the answer.
    pub response_postsend_ns: u64,
    /// The worker saw the answer.
    pub response_postrecv_ns: u64,
    /// The worker marked the request as done.
    pub response_process_ns: u64,
    /// What went through pinned memory, because the fabric could not reach the tensor itself.
    pub staged: Staged,
}

/// Which tensors of a request were staged through pinned host memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Staged {
    /// Pushed tensors, on the worker.
    pub push_source: bool,
    /// The server's slots.
    pub push_target: bool,
    /// Answers, on the server.
    pub pull_source: bool,
    /// Pull tensors, on the worker.
    pub pull_target: bool,
}

impl Staged {
    /// Whether anything was.
    pub fn any(self) -> bool {
        self.push_source || self.push_target || self.pull_source || self.pull_target
    }
}

impl Trace {
    /// The eight words in the original's order.
    pub fn words(&self) -> [u64; 8] {
        [
            self.request_start_ns,
            self.request_postsend_ns,
            self.request_postrecv_ns,
            self.request_process_ns,
            self.response_start_ns,
            self.response_postsend_ns,
            self.response_postrecv_ns,
            self.response_process_ns,
        ]
    }

    /// From the call to the posted pushes.
    pub fn request_ns(&self) -> u64 {
        self.request_postsend_ns
            .saturating_sub(self.request_start_ns)
    }

    /// From the request's arrival to the application's hands.
    pub fn receive_ns(&self) -> u64 {
        self.request_process_ns
            .saturating_sub(self.request_postrecv_ns)
    }

    /// The application's own time.
    pub fn process_ns(&self) -> u64 {
        self.response_start_ns
            .saturating_sub(self.request_process_ns)
    }

    /// From the application's answer to its posting.
    pub fn respond_ns(&self) -> u64 {
        self.response_postsend_ns
            .saturating_sub(self.response_start_ns)
    }

    /// The time on the wire, both ways: the worker's span between posting and answer, less the
    /// server's span between arrival and posting. Needs no common clock.
    pub fn net_ns(&self) -> u64 {
        let worker = self
            .response_postrecv_ns
            .saturating_sub(self.request_postsend_ns);
        let server = self
            .response_postsend_ns
            .saturating_sub(self.request_postrecv_ns);
        worker.saturating_sub(server)
    }

    /// From the call to the completed request.
    pub fn total_ns(&self) -> u64 {
        self.response_process_ns
            .saturating_sub(self.request_start_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::Trace;

    #[test]
    fn net_time_needs_no_common_clock() {
        let trace = Trace {
            request_start_ns: 100,
            request_postsend_ns: 110,
            request_postrecv_ns: 9_000_000,
            request_process_ns: 9_000_005,
            response_start_ns: 9_000_055,
            response_postsend_ns: 9_000_060,
            response_postrecv_ns: 200,
            response_process_ns: 203,
            ..Trace::default()
        };
        assert_eq!(trace.request_ns(), 10);
        assert_eq!(trace.receive_ns(), 5);
        assert_eq!(trace.process_ns(), 50);
        assert_eq!(trace.respond_ns(), 5);
        assert_eq!(trace.net_ns(), 30);
        assert_eq!(trace.total_ns(), 103);
        assert_eq!(Trace::default().net_ns(), 0);
    }
}
