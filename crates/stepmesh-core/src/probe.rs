//! Asks a loaded plugin what devices it has, without opening it.
#![expect(unsafe_code, reason = "calls into the plugin")]

use stepmesh_abi::SmError;
use stepmesh_abi::error::SM_OK;

use crate::Reason;
use crate::loader::Plugin;
use crate::registry::Probe;
use crate::status::Failure;

pub(crate) fn probe(plugin: &Plugin) -> Result<Probe, Reason> {
    let (mut device_count, mut score) = (0, 0);
    let mut error = SmError::new();
    // SAFETY: all pointers are live locals; `probe` is of class A and needs no instance.
    let status =
        unsafe { (plugin.table.probe)(&raw mut device_count, &raw mut score, &raw mut error) };
    if status != SM_OK {
        return Err(Reason::Probe {
            message: Failure::new(status, &error).message,
        });
    }
    Ok(Probe {
        device_count,
        score,
    })
}
