//! Streams, events and the work that they are given: what each call checks first.
#![forbid(unsafe_code)]

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::driver::{Driver, driver};
use crate::event::{Last, Point};
use crate::work::{CopyWork, FillWork, PointWork};
use crate::{Answer, Capture, Event, Status, Stream, Work};

/// Which sides of a copy must be known memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sides {
    /// Any may be the host's.
    Any,
    /// The written side is a device's or known otherwise.
    ToDevice,
    /// The read side is.
    FromDevice,
    /// Both are.
    Both,
}

impl Driver {
    /// A stream.
    ///
    /// # Errors
    /// What broke the device.
    pub fn create_stream(&self, device: u32, is_blocking: bool) -> Answer<u64> {
        self.check(device)?;
        let state = Arc::clone(self.device(device)?);
        let stream = Stream::new(state, Arc::clone(&self.memory), is_blocking);
        Ok(self.streams.insert(Arc::new(stream)))
    }

    /// Ends a stream; its work is still done.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    pub fn destroy_stream(&self, handle: u64) -> Answer<()> {
        let stream = self.streams.remove(handle)?;
        if let Some(capture) = stream.capture() {
            capture.invalidate();
        }
        stream.end(false);
        stream.device.check()
    }

    /// The stream of a handle, where 0 and 1 are the device's legacy default stream and 2 is the
    /// thread's.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    pub fn stream(&self, device: u32, handle: u64) -> Answer<Arc<Stream>> {
        match handle {
            0 | 1 => self.legacy(device),
            2 => self.per_thread(device),
            _ => self.streams.get(handle),
        }
    }

    fn legacy(&self, device: u32) -> Answer<Arc<Stream>> {
        let state = Arc::clone(self.device(device)?);
        let captured = |capture: &Arc<Capture>| capture.device == device;
        if let Some(capture) = self
            .lock_captures()
            .iter()
            .find(|capture| captured(capture))
            && capture.forbids()
        {
            capture.invalidate();
            return Err(Status::CAPTURE_IMPLICIT);
        }
        let mut legacy = self.lock_legacy();
        let made = legacy
            .entry(device)
            .or_insert_with(|| Arc::new(Stream::new(state, Arc::clone(&self.memory), true)));
        Ok(Arc::clone(made))
    }

    fn per_thread(&self, device: u32) -> Answer<Arc<Stream>> {
        let known = PER_THREAD.try_with(|streams| streams.borrow().0.get(&device).copied());
        let known = known.map_err(|_| Status::DEINITIALIZED)?;
        if let Some(stream) = known.and_then(|handle| self.streams.get(handle).ok()) {
            return Ok(stream);
        }
        let handle = self.create_stream(device, true)?;
        // The thread is not ending, or the line above would not have been reached.
        let _ = PER_THREAD.try_with(|streams| streams.borrow_mut().0.insert(device, handle));
        self.streams.get(handle)
    }

    /// Gives work to a stream of the current device, or to what captures it.
    ///
    /// # Errors
    /// `INVALID_HANDLE` for another device's; what broke the device.
    pub fn submit(&self, device: u32, handle: u64, work: Work) -> Answer<()> {
        let stream = self.stream(device, handle)?;
        if stream.device() != device {
            return Err(Status::INVALID_HANDLE);
        }
        self.submit_to(&stream, work)
    }

    fn submit_to(&self, stream: &Arc<Stream>, work: Work) -> Answer<()> {
        stream.device.check()?;
        if let Some(capture) = stream.capture() {
            return capture.add(work);
        }
        self.order(stream)?;
        stream.enqueue(work)
    }

    /// The legacy default stream waits for the blocking ones, and they for it.
    fn order(&self, stream: &Arc<Stream>) -> Answer<()> {
        if !stream.is_blocking {
            return Ok(());
        }
        let legacy = self.lock_legacy().get(&stream.device()).cloned();
        let Some(legacy) = legacy else {
            return Ok(());
        };
        if !Arc::ptr_eq(&legacy, stream) {
            return wait_for(stream, &legacy);
        }
        let is_other = |other: &Arc<Stream>| other.is_blocking && other.device() == stream.device();
        for other in self.streams.all(is_other) {
            wait_for(stream, &other)?;
        }
        Ok(())
    }

    /// A copy. `sides` says what the call promises.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is not so, or a range leaves its block.
    pub fn copy(
        &self,
        device: u32,
        stream: u64,
        (dst, src, len_bytes): (u64, u64, u64),
        sides: Sides,
    ) -> Answer<()> {
        if len_bytes == 0 {
            return self.stream(device, stream).map(|_| ());
        }
        let to = self.memory.place(dst, len_bytes)?;
        let from = self.memory.place(src, len_bytes)?;
        let is_kept = match sides {
            Sides::Any => true,
            Sides::ToDevice => to.kind.is_some(),
            Sides::FromDevice => from.kind.is_some(),
            Sides::Both => to.kind.is_some() && from.kind.is_some(),
        };
        if !is_kept {
            return Err(Status::INVALID_VALUE);
        }
        let work = CopyWork {
            dst,
            src,
            len_bytes,
            ids: [to.id, from.id],
        };
        self.submit(device, stream, Work::Copy(work))
    }

    /// A fill of `count` values of `width` bytes.
    ///
    /// # Errors
    /// `INVALID_VALUE` for memory that is not known, or not aligned.
    pub fn fill(
        &self,
        device: u32,
        stream: u64,
        (dst, value, width, count): (u64, u32, u32, u64),
    ) -> Answer<()> {
        if count == 0 {
            return self.stream(device, stream).map(|_| ());
        }
        let len = count.checked_mul(u64::from(width));
        let place = self.memory.place(dst, len.ok_or(Status::INVALID_VALUE)?)?;
        if place.kind.is_none() || !dst.is_multiple_of(u64::from(width)) {
            return Err(Status::INVALID_VALUE);
        }
        let work = FillWork {
            dst,
            value,
            width,
            count,
            id: place.id,
        };
        self.submit(device, stream, Work::Fill(work))
    }

    /// Waits for a stream.
    ///
    /// # Errors
    /// `CAPTURE_UNSUPPORTED` while it is captured; what broke the device.
    pub fn synchronize(&self, device: u32, handle: u64) -> Answer<()> {
        let stream = self.stream(device, handle)?;
        refuse_captured(&stream)?;
        stream.synchronize()
    }

    /// Whether a stream is done.
    ///
    /// # Errors
    /// `NOT_READY`; as [`Driver::synchronize`].
    pub fn query(&self, device: u32, handle: u64) -> Answer<()> {
        let stream = self.stream(device, handle)?;
        refuse_captured(&stream)?;
        stream.device.check()?;
        if stream.is_idle() {
            Ok(())
        } else {
            Err(Status::NOT_READY)
        }
    }

    /// Waits for all streams of a device.
    ///
    /// # Errors
    /// What broke the device.
    pub fn synchronize_device(&self, device: u32) -> Answer<()> {
        self.check_captures()?;
        let mut streams = self.streams.all(|stream| stream.device() == device);
        streams.extend(self.lock_legacy().get(&device).cloned());
        streams.iter().try_for_each(|stream| stream.synchronize())?;
        self.check(device)
    }

    /// An event.
    ///
    /// # Errors
    /// What broke the device.
    pub fn create_event(&self, device: u32, has_timing: bool) -> Answer<u64> {
        self.check(device)?;
        Ok(self.events.insert(Arc::new(Event::new(device, has_timing))))
    }

    /// Ends an event, also a pending one.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    pub fn destroy_event(&self, handle: u64) -> Answer<()> {
        self.events.remove(handle).map(|_| ())
    }

    /// Records an event.
    ///
    /// # Errors
    /// `INVALID_HANDLE` if stream and event are of different devices.
    pub fn record(&self, device: u32, event: u64, handle: u64) -> Answer<()> {
        let event = self.events.get(event)?;
        let stream = self.stream(device, handle)?;
        if event.device != stream.device() {
            return Err(Status::INVALID_HANDLE);
        }
        if let Some(capture) = stream.capture() {
            event.set(Last::Captured(capture));
            return Ok(());
        }
        let point = Arc::new(Point::default());
        self.submit_to(&stream, Work::Reach(PointWork(Arc::clone(&point))))?;
        event.set(Last::Point(point));
        Ok(())
    }

    /// Makes a stream wait for an event. One that was captured takes the stream into its capture.
    ///
    /// # Errors
    /// `CAPTURE_ISOLATION` for a captured stream and an event from outside.
    pub fn wait_event(&self, device: u32, handle: u64, event: u64) -> Answer<()> {
        let event = self.events.get(event)?;
        let stream = self.stream(device, handle)?;
        let capture = stream.capture();
        match (event.last(), capture) {
            (Last::Nothing, _) => Ok(()),
            (Last::Point(point), None) => self.submit_to(&stream, Work::Wait(PointWork(point))),
            (Last::Point(_), Some(capture)) => {
                capture.invalidate();
                Err(Status::CAPTURE_ISOLATION)
            }
            (Last::Captured(capture), None) => {
                stream.set_capture(Some(capture));
                Ok(())
            }
            (Last::Captured(of_event), Some(capture)) if of_event.id != capture.id => {
                Err(Status::CAPTURE_MERGE)
            }
            // All of a capture is in one order.
            (Last::Captured(_), Some(_)) => Ok(()),
        }
    }

    /// Whether an event was reached.
    ///
    /// # Errors
    /// `NOT_READY`; what broke its device.
    pub fn query_event(&self, handle: u64) -> Answer<()> {
        let event = self.events.get(handle)?;
        self.check(event.device)?;
        event.query()
    }

    /// Waits for an event.
    ///
    /// # Errors
    /// What broke its device.
    pub fn synchronize_event(&self, handle: u64) -> Answer<()> {
        loop {
            match self.query_event(handle) {
                Err(Status::NOT_READY) => std::thread::yield_now(),
                answer => return answer,
            }
        }
    }

    /// Milliseconds between two events.
    ///
    /// # Errors
    /// `INVALID_HANDLE` if one measures no time; `NOT_READY`.
    pub fn elapsed_ms(&self, start: u64, end: u64) -> Answer<f32> {
        self.events.get(start)?.elapsed_ms(&*self.events.get(end)?)
    }
}

fn refuse_captured(stream: &Stream) -> Answer<()> {
    let Some(capture) = stream.capture() else {
        return Ok(());
    };
    capture.invalidate();
    Err(Status::CAPTURE_UNSUPPORTED)
}

/// Makes a stream wait for what another one has now.
fn wait_for(stream: &Arc<Stream>, other: &Arc<Stream>) -> Answer<()> {
    if other.is_idle() || other.capture().is_some() {
        return Ok(());
    }
    let point = Arc::new(Point::default());
    match other.enqueue(Work::Reach(PointWork(Arc::clone(&point)))) {
        Ok(()) => stream.enqueue(Work::Wait(PointWork(point))),
        // It was destroyed meanwhile.
        Err(Status::INVALID_HANDLE) => Ok(()),
        Err(status) => Err(status),
    }
}

/// Default streams of a thread, ended with it.
#[derive(Default)]
struct PerThread(BTreeMap<u32, u64>);

impl Drop for PerThread {
    fn drop(&mut self) {
        let Ok(driver) = driver() else { return };
        for handle in self.0.values() {
            // It may be gone with its device's context.
            let _ = driver.destroy_stream(*handle);
        }
    }
}

thread_local! {
    static PER_THREAD: RefCell<PerThread> = RefCell::default();
}
