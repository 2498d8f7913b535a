//! What checks about extensions have in common: skipping where there is none, and faults on demand.
#![forbid(unsafe_code)]

use stepmesh_abi::Code;

use super::setting::Setting;
use crate::check::{Stop, Verdict, ensure, fail, skip};
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

/// Skips unless the plugin has an extension of which ABI 1.0 knows the name only; fails if it claims
/// the capability all the same.
pub(super) fn needs_extension(
    context: &Context<'_>,
    name: &str,
    capability: Option<u64>,
) -> Verdict {
    let setting = Setting::new(context)?;
    let is_claimed = match capability {
        Some(bit) => setting.has(bit)?,
        None => false,
    };
    match setting.session.extension(name, 1) {
        Err(failure) if failure.is_absent || failure.code == Code::NotFound => {
            ensure!(
                !is_claimed,
                "the capability bit is set, but get_extension does not find {name}"
            );
            skip(format!(
                "needs {name}, which the plugin has not (NOT_FOUND)"
            ))
        }
        Err(failure) => fail(format!("{failure}, where success or NOT_FOUND is due")),
        Ok(extension) => {
            let hdr = extension.header();
            ensure!(
                hdr.is_some_and(|hdr| hdr.struct_size % 8 == 0 && hdr.struct_size >= 8),
                "the table of {name} does not start with a header"
            );
            let version = extension.version;
            skip(format!(
                "{name} version {version} is there, but this suite knows no table for it yet"
            ))
        }
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
