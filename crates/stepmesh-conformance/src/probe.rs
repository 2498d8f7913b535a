//! Opens a plugin in a child process and tells what devices it has: a crash becomes a line of text.
#![forbid(unsafe_code)]

use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::check::Stop;
use crate::context::Context;
use crate::error::Error;
use crate::process::{self, Job, Request};
use crate::runner::{Scale, Subject, absolute};

/// What a plugin says of itself and its devices.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ProbeReport {
    /// Name by which the backend is chosen.
    pub name: String,
    /// Version of the plugin.
    pub version: String,
    /// Usable devices, as `probe` counts them.
    pub device_count: u32,
    /// How good the backend is on this machine; 0: unusable.
    pub score: u32,
    /// What `open` and `device_info` then say of each.
    pub devices: Vec<ProbedDevice>,
}

/// What a plugin says of a device.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ProbedDevice {
    /// Marketing name.
    pub name: String,
    /// Architecture.
    pub arch: String,
    /// PCI address; empty if it has none.
    pub pci_bdf: String,
    /// Bytes of memory.
    pub total_memory_bytes: u64,
    /// `SM_CAP_*` bits.
    pub capabilities: u64,
}

/// Loads, probes and opens a plugin in a child process. The inner result is what the plugin said,
/// or how it failed: its error, the signal it died of and where, or that it hung.
///
/// # Errors
/// `ReadPlugin`, `Child`.
pub fn probe(path: &Path) -> Result<Result<ProbeReport, String>, Error> {
    let subject = absolute(&Subject::file(path))?;
    let child = |source| Error::Child {
        check: "probe",
        source,
    };
    let folder = tempfile::Builder::new()
        .prefix("stepmesh-probe-")
        .tempdir()
        .map_err(child)?;
    let request = Request {
        job: Job::Probe,
        part: None,
        subject,
        scale: Scale::Full,
    };
    let ended = process::run(None, folder.path(), &request, &[], LIMIT).map_err(child)?;
    let bad_end = ended.bad_end();
    let answer = ended.answer.as_deref().map(serde_json::from_str);
    Ok(match (answer, bad_end) {
        (Some(Ok(Err(why))), _) | (_, Some(why)) => Err(why),
        (Some(Ok(Ok(report))), None) => Ok(report),
        (_, None) => Err("the plugin ended the process".into()),
    })
}

/// The child's side: what it answers, as JSON.
pub(crate) fn answer(context: &Context<'_>) -> serde_json::Result<String> {
    let report = ask(context).map_err(|stop| match stop {
        Stop::Fail(why) | Stop::Skip(why) => why,
    });
    serde_json::to_string(&report)
}

fn ask(context: &Context<'_>) -> Result<ProbeReport, Stop> {
    let failed = |failure: crate::raw::failure::Failure| Stop::Fail(failure.to_string());
    let table = context.table()?;
    let info = table.info().map_err(Stop::Fail)?;
    let [name, version, _, _] = info.texts.map(Result::unwrap_or_default);
    let (device_count, score) = table.probe().map_err(failed)?;
    let mut devices = Vec::new();
    if device_count > 0 {
        let session = table.open().map_err(failed)?;
        for dev in 0..session.device_count().map_err(failed)? {
            let info = session.device_info(dev).map_err(failed)?;
            devices.push(ProbedDevice {
                name: text(&info.name),
                arch: text(&info.arch),
                pci_bdf: text(&info.pci_bdf),
                total_memory_bytes: info.total_mem,
                capabilities: session.capabilities(dev).map_err(failed)?,
            });
        }
        session.close().map_err(failed)?;
    }
    Ok(ProbeReport {
        name,
        version,
        device_count,
        score,
        devices,
    })
}

/// A text field of the ABI: NUL-padded.
pub(crate) fn text(field: &[std::ffi::c_char]) -> String {
    let bytes: Vec<u8> = field
        .iter()
        .map(|c| c.to_ne_bytes()[0])
        .take_while(|byte| *byte != 0)
        .collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Longer than any driver takes to start.
const LIMIT: Duration = Duration::from_secs(60);
