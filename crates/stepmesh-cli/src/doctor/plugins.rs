//! Backends: every candidate, and whether the one that would be used works.

use stepmesh_core::config::Config;
use stepmesh_core::{Backend, Candidate, Registry, State as CandidateState};

use super::{Finding, State};
use crate::{backends, report};

pub(super) fn examine(config: &Config) -> Vec<Finding> {
    let registry = Registry::discover(&config.plugins);
    let mut findings: Vec<Finding> = registry.candidates().iter().map(candidate).collect();
    findings.push(selected(config));
    findings
}

fn candidate(candidate: &Candidate) -> Finding {
    let name = candidate.name().unwrap_or("?");
    let file = match candidate.path().and_then(|path| path.file_name()) {
        Some(file) => file.to_string_lossy().into_owned(),
        None => "built in".into(),
    };
    let state = backends::name_of(candidate.state());
    let reason = candidate.reason().map(ToString::to_string);
    match (candidate.state(), reason) {
        (CandidateState::Loaded, None) => devices(candidate, name, &file),
        (CandidateState::Rejected, reason) => {
            let reason = reason.unwrap_or_default();
            Finding::ok(AREA, name, format!("{file}: {state}: {reason}")).at(
                State::Warn,
                "mend what it says, take the file away, or list it in plugins.disable",
            )
        }
        (_, reason) => {
            let reason = reason
                .map(|reason| format!(": {reason}"))
                .unwrap_or_default();
            Finding::ok(AREA, name, format!("{file}: {state}{reason}"))
        }
    }
}

fn devices(candidate: &Candidate, name: &str, file: &str) -> Finding {
    match candidate.probe() {
        Ok(probe) => {
            let devices = report::count(probe.device_count as usize, "device");
            let why = (probe.device_count == 0)
                .then(|| candidate.why_no_device())
                .flatten()
                .map_or_else(String::new, |why| format!(": {why}"));
            Finding::ok(AREA, name, format!("{file}: {devices}{why}"))
        }
        // A vendor's plugin on a machine without that vendor's devices is no fault.
        Err(reason) => Finding::ok(AREA, name, format!("{file}: no device: {reason}")),
    }
}

/// The backend that a role would open now.
fn selected(config: &Config) -> Finding {
    let what = "STEPMESH_BACKEND";
    match Backend::open(config) {
        Ok(backend) => {
            let devices: Vec<String> = backend
                .devices()
                .iter()
                .map(|device| device.info().name.clone())
                .collect();
            let name = backend.name();
            if devices.is_empty() {
                return Finding::ok(AREA, what, format!("{name} has no device")).at(
                    State::Bad,
                    "see the reason of that plugin above, or choose another",
                );
            }
            Finding::ok(AREA, what, format!("{name}: {}", devices.join(", ")))
        }
        Err(error) => Finding::ok(AREA, what, error.to_string()).at(
            State::Bad,
            "set it to one of the backends above that have devices",
        ),
    }
}

const AREA: &str = "plugins";
