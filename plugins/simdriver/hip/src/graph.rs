//! Captures, graphs and kernels.

use stepmesh_simdriver::{Capture, CaptureState, ImageAt, Out, Params, Text, Values};

use crate::current::{current, functions, hip};

functions! {
    fn hipStreamBeginCapture(stream: u64, mode: u32) {
        let (driver, device) = current()?;
        driver.begin_capture(device, stream, mode)
    }

    fn hipStreamEndCapture(stream: u64, graph: Out<u64>) {
        let (driver, device) = current()?;
        let captured = driver.end_capture(device, stream);
        graph.set(*captured.as_ref().unwrap_or(&0))?;
        captured.map(|_| ())
    }

    fn hipStreamIsCapturing(stream: u64, status: Out<i32>) {
        let (driver, device) = current()?;
        status.set(number(driver.capture_state(device, stream)?))
    }

    fn hipStreamGetCaptureInfo(stream: u64, status: Out<i32>, id: Out<u64>) {
        let (driver, device) = current()?;
        let state = driver.capture_state(device, stream)?;
        status.set(number(state))?;
        if let CaptureState::Active(number) = state {
            id.set_if_wanted(number);
        }
        Ok(())
    }

    fn hipThreadExchangeStreamCaptureMode(mode: Out<u32>) {
        hip()?;
        let set = mode.get()?;
        mode.set(Capture::exchange_mode(set)?)
    }

    fn hipGraphInstantiateWithFlags(exec: Out<u64>, graph: u64, _flags: u64) {
        exec.set(hip()?.instantiate(graph)?)
    }

    fn hipGraphLaunch(exec: u64, stream: u64) {
        let (driver, device) = current()?;
        driver.launch_graph(device, exec, stream)
    }

    fn hipGraphExecDestroy(exec: u64) {
        hip()?.destroy_graph(exec)
    }

    fn hipGraphDestroy(graph: u64) {
        hip()?.destroy_graph(graph)
    }

    fn hipModuleLoadData(module: Out<u64>, image: ImageAt) {
        let (driver, device) = current()?;
        module.set(driver.load_module(device, image)?)
    }

    fn hipModuleLoadDataEx(
        module: Out<u64>, image: ImageAt, _count: u32, _options: Values<u32>, _values: Values<u64>,
    ) {
        let (driver, device) = current()?;
        module.set(driver.load_module(device, image)?)
    }

    fn hipModuleGetFunction(function: Out<u64>, module: u64, name: Text) {
        let (driver, _) = current()?;
        function.set(driver.function(module, &name.get()?)?)
    }

    fn hipModuleUnload(module: u64) {
        let (driver, _) = current()?;
        driver.unload_module(module)
    }

    fn hipModuleLaunchKernel(
        function: u64, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32,
        block_z: u32, shared_bytes: u32, stream: u64, params: Params, _extra: Params,
    ) {
        let (driver, device) = current()?;
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        driver.launch((device, stream), function, (grid, block, shared_bytes), params)
    }
}

/// `hipStreamCaptureStatus`.
fn number(state: CaptureState) -> i32 {
    match state {
        CaptureState::None => 0,
        CaptureState::Active(_) => 1,
        CaptureState::Invalidated => 2,
    }
}
