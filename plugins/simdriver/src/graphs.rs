//! Modules, captures and graphs.
#![forbid(unsafe_code)]

use std::sync::Arc;

use crate::boundary::{ImageAt, Params};
use crate::code::{Launch, Module};
use crate::driver::Driver;
use crate::{Answer, Capture, CaptureState, Status, Stream, Work};

impl Driver {
    /// Loads a module.
    ///
    /// # Errors
    /// `INVALID_IMAGE` if there is nothing to run in it.
    pub fn load_module(&self, device: u32, image: ImageAt) -> Answer<u64> {
        self.check(device)?;
        self.check_captures()?;
        Ok(self.modules.insert(Module::load(image.get()?)?))
    }

    /// A function of a module.
    ///
    /// # Errors
    /// `NOT_FOUND`.
    pub fn function(&self, module: u64, name: &str) -> Answer<u64> {
        let function = self.modules.get(module)?.function(name)?;
        Ok(self.functions.insert(function))
    }

    /// Queues a run of a function, whose parameters are read as many as it takes.
    ///
    /// # Errors
    /// `INVALID_HANDLE`; `INVALID_VALUE` for a launch that no device does.
    pub fn launch(
        &self,
        (device, stream): (u32, u64),
        function: u64,
        (grid, block, shared_len_bytes): ([u32; 3], [u32; 3], u32),
        params: Params,
    ) -> Answer<()> {
        let function = self.functions.get(function)?;
        let params = params.words(function.param_count())?;
        let launch = Launch {
            function,
            grid,
            block,
            shared_len_bytes,
            params,
        };
        if !launch.is_valid() {
            return Err(Status::INVALID_VALUE);
        }
        self.submit(device, stream, Work::Launch(launch))
    }

    /// Ends a module, and its functions with it.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    pub fn unload_module(&self, module: u64) -> Answer<()> {
        let module = self.modules.remove(module)?;
        module.unload();
        self.functions.take_if(|function| module.has(function));
        Ok(())
    }

    /// Begins to capture a stream.
    ///
    /// # Errors
    /// `CAPTURE_UNSUPPORTED` for the legacy default stream; `INVALID_VALUE`.
    pub fn begin_capture(&self, device: u32, handle: u64, mode: u32) -> Answer<()> {
        if handle < 2 {
            return Err(Status::CAPTURE_UNSUPPORTED);
        }
        let stream = self.stream(device, handle)?;
        if stream.capture().is_some() || mode > crate::capture::RELAXED {
            return Err(Status::INVALID_VALUE);
        }
        let capture = Arc::new(Capture::new(handle, stream.device(), mode));
        stream.set_capture(Some(Arc::clone(&capture)));
        self.lock_captures().push(capture);
        Ok(())
    }

    /// Ends a capture and gives its graph.
    ///
    /// # Errors
    /// `CAPTURE_UNMATCHED` on a stream where none began; `CAPTURE_INVALIDATED`.
    pub fn end_capture(&self, device: u32, handle: u64) -> Answer<u64> {
        let stream = self.stream(device, handle)?;
        let capture = stream.capture().ok_or(Status::INVALID_VALUE)?;
        if capture.origin != handle {
            return Err(Status::CAPTURE_UNMATCHED);
        }
        self.lock_captures()
            .retain(|active| active.id != capture.id);
        let is_captured = |stream: &Arc<Stream>| {
            stream
                .capture()
                .is_some_and(|active| active.id == capture.id)
        };
        for stream in self.streams.all(is_captured) {
            stream.set_capture(None);
        }
        Ok(self.graphs.insert(capture.end()?))
    }

    /// Whether a stream is captured.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    pub fn capture_state(&self, device: u32, handle: u64) -> Answer<CaptureState> {
        if handle < 2 {
            // Asking is no use of the stream that a capture could forbid.
            return Ok(CaptureState::None);
        }
        let capture = self.stream(device, handle)?.capture();
        Ok(capture.map_or(CaptureState::None, |capture| capture.state()))
    }

    /// A graph that can be launched: a copy.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    pub fn instantiate(&self, graph: u64) -> Answer<u64> {
        Ok(self.graphs.insert(self.graphs.get(graph)?))
    }

    /// Launches a graph.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    pub fn launch_graph(&self, device: u32, graph: u64, stream: u64) -> Answer<()> {
        let work = self.graphs.get(graph)?.work;
        self.submit(device, stream, Work::Graph(work))
    }

    /// Ends a graph, launchable or not.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    pub fn destroy_graph(&self, graph: u64) -> Answer<()> {
        self.graphs.remove(graph).map(|_| ())
    }
}
