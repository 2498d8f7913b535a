//! Streams: those of the instance, whose device is known, and those of others, which the caller vouches
//! for. Copies and fills in their order.
#![expect(unsafe_code, reason = "calls the driver with handles of the caller")]

use std::ffi::c_void;
use std::sync::PoisonError;

use stepmesh_plugin::abi::stream::{SM_STREAM_LEGACY, SM_STREAM_PER_THREAD};
use stepmesh_plugin::{
    CopyRequest, Direction, Error, FillRequest, HostFunc, Result, Stream, WaitMode,
};

use crate::shared::{Shared, lock};
use crate::{Driver, host_funcs, wait};

impl<D: Driver> Shared<D> {
    pub(crate) fn create_stream(
        &self,
        device: u32,
        priority: i32,
        non_blocking: bool,
    ) -> Result<u64> {
        let what = || format!("make a stream of device {device}");
        let raw = self.on_relaxed(device, what, |driver| {
            driver.create_stream(priority, non_blocking)
        })?;
        let mut streams = self.streams.write().unwrap_or_else(PoisonError::into_inner);
        streams.insert(raw, device);
        Ok(raw)
    }

    pub(crate) fn destroy_stream(&self, stream: Stream) -> Result<()> {
        self.check_stream(stream)?;
        let mut streams = self.streams.write().unwrap_or_else(PoisonError::into_inner);
        let removed = streams.remove(&stream.raw);
        drop(streams);
        if removed.is_none() {
            return Err(Error::invalid_argument(format!(
                "stream {:#x} of device {} was not made by this instance, or was destroyed already",
                stream.raw, stream.device
            )));
        }
        self.end_stream(stream)
    }

    /// Ends a stream that is not in the list any more.
    pub(crate) fn end_stream(&self, stream: Stream) -> Result<()> {
        let what = || format!("destroy stream {}", name(stream));
        self.on_ending(stream.device, what, |driver| {
            // SAFETY: a stream of this instance, taken off the list, so it is destroyed once.
            unsafe { driver.destroy_stream(stream.raw) }
        })
    }

    /// Refuses a stream of this instance that is said to be another device's. Others are the caller's
    /// to vouch for.
    pub(crate) fn check_stream(&self, stream: Stream) -> Result<()> {
        if matches!(stream.raw, SM_STREAM_LEGACY | SM_STREAM_PER_THREAD) {
            return Ok(());
        }
        let streams = self.streams.read().unwrap_or_else(PoisonError::into_inner);
        match streams.get(&stream.raw) {
            Some(device) if *device != stream.device => Err(Error::invalid_argument(format!(
                "stream {:#x} is one of device {device}, not of device {}",
                stream.raw, stream.device
            ))),
            _ => Ok(()),
        }
    }

    pub(crate) fn is_stream_done(&self, stream: Stream) -> Result<bool> {
        let what = || format!("look at stream {}", name(stream));
        self.on_relaxed(stream.device, what, |driver| {
            // SAFETY: the table's contract: a live stream.
            unsafe { driver.is_stream_done(stream.raw) }
        })
    }

    pub(crate) fn synchronize_stream(&self, stream: Stream, timeout_ns: u64) -> Result<()> {
        self.check_stream(stream)?;
        let look = || self.is_stream_done(stream);
        if wait::until(timeout_ns, WaitMode::Block, look)? {
            return Ok(());
        }
        Err(Error::deadline_exceeded(format!(
            "the work of stream {} was not done within {} us",
            name(stream),
            timeout_ns / 1000
        )))
    }

    /// # Safety
    /// - Both ranges are valid until the stream did the copy, and not used otherwise meanwhile.
    pub(crate) unsafe fn copy(&self, request: &CopyRequest, stream: Stream) -> Result<()> {
        self.check_stream(stream)?;
        if request.len_bytes == 0 {
            return Ok(());
        }
        self.table.check_range(request.dst, request.len_bytes)?;
        self.table.check_range(request.src, request.len_bytes)?;
        let what = || {
            format!(
                "copy {} bytes from {:#x} to {:#x} ({:?}) on device {}",
                request.len_bytes, request.src, request.dst, request.direction, stream.device
            )
        };
        let peers = match request.direction {
            Direction::DeviceToDevice | Direction::PeerToPeer
                if request.dst_device != request.src_device =>
            {
                self.connect(request.dst_device, request.src_device)?;
                let contexts = self
                    .context(request.dst_device)
                    .and_then(|dst| Ok((dst, self.context(request.src_device)?)));
                Some(contexts.map_err(|failure| self.explain(stream.device, &what(), failure))?)
            }
            _ => None,
        };
        self.on(stream.device, what, |driver| {
            // SAFETY: this method's contract; the table's contract: a live stream.
            unsafe { driver.copy_async(request, peers, stream.raw) }
        })
    }

    /// Copies on a stream of its own and waits.
    ///
    /// # Safety
    /// - As [`Shared::copy`], until this returns.
    pub(crate) unsafe fn copy_now(&self, request: &CopyRequest) -> Result<()> {
        let device = self.device_of_copy(request);
        let copies = &self.device(device)?.copies;
        // Held for the copy: who waits for one need not have the next one between.
        let mut raw = lock(copies);
        if *raw == 0 {
            *raw = self.create_stream(device, 0, true)?;
        }
        let stream = Stream { device, raw: *raw };
        // SAFETY: this method's contract.
        unsafe { self.copy(request, stream)? };
        self.synchronize_stream(stream, COPY_NS_MAX)
    }

    fn device_of_copy(&self, request: &CopyRequest) -> u32 {
        let device_of = |ptr| (self.table.find(ptr, 1, |_, block| block.device)).flatten();
        match request.direction {
            Direction::HostToDevice | Direction::PeerToPeer | Direction::DeviceToDevice => {
                request.dst_device
            }
            Direction::DeviceToHost => request.src_device,
            _ => device_of(request.dst)
                .or_else(|| device_of(request.src))
                .or_else(|| self.ready_device())
                .unwrap_or(0),
        }
    }

    /// # Safety
    /// - As [`Shared::copy`], for the written range.
    pub(crate) unsafe fn fill(&self, request: &FillRequest, stream: Stream) -> Result<()> {
        self.check_stream(stream)?;
        if request.len_bytes == 0 {
            return Ok(());
        }
        self.table.check_range(request.dst, request.len_bytes)?;
        let what = || {
            format!(
                "fill {} bytes at {:#x} on device {}",
                request.len_bytes, request.dst, stream.device
            )
        };
        self.on(stream.device, what, |driver| {
            // SAFETY: this method's contract; the table's contract: a live stream.
            unsafe { driver.fill_async(request, stream.raw) }
        })
    }

    pub(crate) fn launch_host_func(&self, stream: Stream, func: HostFunc) -> Result<()> {
        self.check_stream(stream)?;
        let arg: *mut c_void = host_funcs::keep(self.serial, stream.device, func);
        let what = || format!("launch a host function on stream {}", name(stream));
        let launched = self.on(stream.device, what, |driver| {
            // SAFETY: the table's contract: a live stream; `run` takes any number, also one it does
            // not know, from any thread.
            unsafe { driver.launch_host_function(stream.raw, host_funcs::run, arg) }
        });
        if launched.is_err() {
            // Exactly once means once in this case too.
            host_funcs::run_refused(arg);
        }
        launched
    }
}

/// A stream in words.
pub(crate) fn name(stream: Stream) -> String {
    let Stream { device, raw } = stream;
    match raw {
        SM_STREAM_LEGACY => format!("1 (the legacy default) of device {device}"),
        SM_STREAM_PER_THREAD => format!("2 (the thread's default) of device {device}"),
        raw => format!("{raw:#x} of device {device}"),
    }
}

/// How long a copy that the caller waits for may take: more than the largest memory needs.
const COPY_NS_MAX: u64 = 60_000_000_000;
