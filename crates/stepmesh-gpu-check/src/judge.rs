//! The conformance checks of all tiers, counted. What failed is listed.
#![forbid(unsafe_code)]

use std::path::Path;

use anyhow::Result;
use stepmesh_conformance::{Options, Outcome, Scale, Subject, Tier, run};

use crate::rows::Rows;

pub(crate) fn judge(plugin: &Path, reduced: bool, rows: &mut Rows) -> Result<()> {
    let options = Options {
        tier: Tier::Stress,
        scale: if reduced { Scale::Reduced } else { Scale::Full },
        ..Options::default()
    };
    let report = run(&Subject::file(plugin), &options, &mut |result| {
        eprintln!("{:4} {}", result.check.id, result.outcome.as_str());
    })?;
    let counts = report.counts();
    let value = format!(
        "{} passed, {} failed, {} skipped",
        counts.pass, counts.fail, counts.skip
    );
    let what = "conformance, tiers 1 to 3";
    let size = if reduced {
        "a hundredth of the work"
    } else {
        "in full"
    };
    if report.is_good() {
        rows.add(what, value, size);
    } else {
        rows.add_bad(what, value, size);
    }
    for result in &report.results {
        if result.outcome == Outcome::Fail {
            rows.add(
                format!("{} {}", result.check.id, result.check.name),
                "FAIL",
                &result.text,
            );
        }
    }
    Ok(())
}
