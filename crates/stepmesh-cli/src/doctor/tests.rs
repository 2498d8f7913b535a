//! How findings add up, and trees of files that stand for machines.

use std::fs;
use std::os::unix::fs::symlink;

use tempfile::TempDir;

use super::system::System;
use super::{Finding, State, Tally};
use crate::exit::Exit;

/// A machine of files for the modules' tests.
pub(super) struct Machine(TempDir);

impl Machine {
    pub(super) fn with(files: &[(&str, &str)]) -> Self {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        Self(root)
    }

    pub(super) fn link(self, path: &str, target: &str) -> Self {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(target, path).unwrap();
        self
    }

    pub(super) fn system(&self) -> System {
        System::under(self.0.path())
    }
}

fn finding(state: State) -> Finding {
    Finding {
        state,
        ..Finding::ok("host", "thing", "there")
    }
}

#[test]
fn the_worst_finding_decides_the_exit() {
    let exit = |states: &[State]| {
        let findings: Vec<Finding> = states.iter().copied().map(finding).collect();
        Tally::of(&findings).exit()
    };
    assert_eq!(exit(&[]), Exit::Done);
    assert_eq!(exit(&[State::Ok]), Exit::Done);
    assert_eq!(exit(&[State::Ok, State::Warn]), Exit::Warned);
    assert_eq!(exit(&[State::Bad, State::Warn]), Exit::Failed);
}

#[test]
fn what_is_not_good_says_how_to_mend_it() {
    let mended = finding(State::Ok).at(State::Warn, "turn it off and on again");
    let json = serde_json::to_value(&mended).unwrap();
    assert_eq!(json["state"], "warn");
    assert_eq!(json["mend"], "turn it off and on again");
}

#[test]
fn an_empty_machine_is_examined_without_a_fault() {
    let machine = Machine::with(&[]);
    let config = stepmesh_core::config::Config::default();
    let mut findings = super::host::examine(&machine.system(), &config);
    findings.extend(super::accelerators::examine(&machine.system()));
    findings.extend(super::adapters::examine(&machine.system(), &config));
    assert!(
        findings.iter().all(|finding| finding.state != State::Bad),
        "{findings:?}"
    );
    let unmended = |finding: &&Finding| finding.state != State::Ok && finding.mend.is_none();
    assert_eq!(findings.iter().find(unmended), None);
}
