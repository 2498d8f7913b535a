//! Captures, graphs and kernels.

use stepmesh_simdriver::{Capture, CaptureState, ImageAt, Out, Params, Text, Values, api, driver};

use crate::context::current;

api! {
    fn cuStreamBeginCapture_v2(stream: u64, mode: u32) {
        let (driver, device) = current()?;
        driver.begin_capture(device, stream, mode)
    }

    fn cuStreamEndCapture(stream: u64, graph: Out<u64>) {
        let (driver, device) = current()?;
        let captured = driver.end_capture(device, stream);
        graph.set(*captured.as_ref().unwrap_or(&0))?;
        captured.map(|_| ())
    }

    fn cuStreamIsCapturing(stream: u64, status: Out<i32>) {
        let (driver, device) = current()?;
        status.set(number(driver.capture_state(device, stream)?))
    }

    fn cuStreamGetCaptureInfo_v2(
        stream: u64, status: Out<i32>, id: Out<u64>, graph: Out<u64>, dependencies: Out<u64>,
        count: Out<usize>,
    ) {
        let (driver, device) = current()?;
        let state = driver.capture_state(device, stream)?;
        status.set(number(state))?;
        if let CaptureState::Active(number) = state {
            id.set_if_wanted(number);
            // The nodes of a capture have no handles here.
            graph.set_if_wanted(0);
            dependencies.set_if_wanted(0);
            count.set_if_wanted(0);
        }
        Ok(())
    }

    fn cuThreadExchangeStreamCaptureMode(mode: Out<u32>) {
        driver()?;
        let set = mode.get()?;
        mode.set(Capture::exchange_mode(set)?)
    }

    fn cuGraphInstantiateWithFlags(exec: Out<u64>, graph: u64, _flags: u64) {
        exec.set(driver()?.instantiate(graph)?)
    }

    fn cuGraphLaunch(exec: u64, stream: u64) {
        let (driver, device) = current()?;
        driver.launch_graph(device, exec, stream)
    }

    fn cuGraphExecDestroy(exec: u64) {
        driver()?.destroy_graph(exec)
    }

    fn cuGraphDestroy(graph: u64) {
        driver()?.destroy_graph(graph)
    }

    fn cuModuleLoadData(module: Out<u64>, image: ImageAt) {
        let (driver, device) = current()?;
        module.set(driver.load_module(device, image)?)
    }

    fn cuModuleLoadDataEx(
        module: Out<u64>, image: ImageAt, _count: u32, _options: Values<u32>, _values: Values<u64>,
    ) {
        let (driver, device) = current()?;
        module.set(driver.load_module(device, image)?)
    }

    fn cuModuleGetFunction(function: Out<u64>, module: u64, name: Text) {
        let (driver, _) = current()?;
        function.set(driver.function(module, &name.get()?)?)
    }

    fn cuModuleUnload(module: u64) {
        let (driver, _) = current()?;
        driver.unload_module(module)
    }

    fn cuLaunchKernel(
        function: u64, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32,
        block_z: u32, shared_bytes: u32, stream: u64, params: Params, _extra: Params,
    ) {
        let (driver, device) = current()?;
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        driver.launch((device, stream), function, (grid, block, shared_bytes), params)
    }
}

/// `CUstreamCaptureStatus`.
fn number(state: CaptureState) -> i32 {
    match state {
        CaptureState::None => 0,
        CaptureState::Active(_) => 1,
        CaptureState::Invalidated => 2,
    }
}
