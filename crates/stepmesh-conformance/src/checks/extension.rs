//! What checks about extensions have in common: skipping where there is none, and faults on demand.
#![forbid(unsafe_code)]

use stepmesh_abi::Code;

use super::setting::Setting;
use crate::check::{Stop, ensure, skip};
use crate::context::Context;
use crate::raw::failure::Failure;
use crate::raw::host;

/// The functions of an extension that has a table; the check is skipped if the plugin has not it,
/// which a capability bit must not deny.
pub(super) fn with_extension<T>(
    setting: &Setting,
    capability: u64,
    name: &str,
    extension: Result<T, Failure>,
) -> Result<T, Stop> {
    let is_claimed = setting.has(capability)?;
    match extension {
        Ok(extension) => Ok(extension),
        Err(failure) if failure.is_absent || failure.code == Code::NotFound => {
            ensure!(
                !is_claimed,
                "the capability bit is set, but get_extension does not find the extension"
            );
            skip(format!(
                "capability {name} is not set, and the extension is NOT_FOUND"
            ))
        }
        Err(failure) => Err(failure.into()),
    }
}

/// An instance in which something goes wrong on purpose; skipped if the plugin has no such means. A
/// plugin that has asks the host for the value of `<name>.faults`.
pub(super) fn needs_fault_injection(context: &Context<'_>, faults: &str) -> Result<Setting, Stop> {
    let info = context.table()?.info().map_err(Stop::Fail)?;
    let [name, ..] = info.texts;
    let key = format!("{}.faults", name.map_err(Stop::Fail)?);
    host::set_config(&key, faults);
    let setting = Setting::new(context)?;
    if !host::was_asked(&key) {
        return skip(format!(
            "faults cannot be injected: the plugin does not ask for `{key}`"
        ));
    }
    Ok(setting)
}
