//! Checks about extensions that this version of the ABI names without a table: all that can be
//! judged is that bit and name agree.
#![forbid(unsafe_code)]

use stepmesh_abi::Code;

use super::setting::Setting;
use crate::check::{Verdict, ensure, fail, skip};
use crate::context::Context;

/// Skips unless the plugin has an extension; fails if it claims the capability all the same.
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
                "{name} version {version} is there, but ABI 1.0 defines no table for it yet"
            ))
        }
    }
}
