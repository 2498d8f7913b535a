//! The list of checks, the lists of expectations, the reports.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::check::{Stop, Tier};
use crate::runner::matches_glob;
use crate::{CheckResult, Counts, Expectations, Outcome, Report, Subject, checks};

#[test]
fn identities_are_unique_and_start_with_the_letters_of_their_group() {
    let mut seen = BTreeSet::new();
    for check in checks() {
        assert!(seen.insert(check.id), "{} twice", check.id);
        let letters = check.group.letters();
        let number = check.id.strip_prefix(letters).unwrap_or_default();
        assert!(number.parse::<u32>().is_ok(), "{}", check.id);
        assert!(!check.name.is_empty() && !check.proves.is_empty());
    }
}

/// The row of a check in docs/conformance.md.
fn row(check: &crate::Check) -> String {
    let (id, tier) = (check.id, check.tier.number());
    format!("| {id} | {tier} | {} | {} |", check.name, check.proves)
}

#[test]
fn the_document_has_the_table_of_the_checks() {
    let document = include_str!("../../../docs/conformance.md");
    let rows: Vec<String> = checks().map(row).collect();
    let is_row = |line: &&str| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        cells
            .get(2)
            .is_some_and(|tier| ["1", "2", "3"].contains(tier))
    };
    let shown: Vec<&str> = document.lines().filter(is_row).collect();
    let is_same = shown == rows;
    assert!(is_same, "docs/conformance.md wants:\n{}", rows.join("\n"));
}

#[test]
fn tiers_have_the_numbers_of_the_command_line() {
    for number in 1..=3 {
        assert_eq!(Tier::of(number).map(Tier::number), Some(number));
    }
    assert_eq!(Tier::of(0), None);
    assert_eq!(Tier::of(4), None);
}

#[test]
fn globs_match_whole_identities_in_any_case() {
    for (glob, text, matches) in [
        ("M3", "M3", true),
        ("m3", "M3", true),
        ("M", "M3", false),
        ("M*", "ME1", true),
        ("M?", "M10", false),
        ("*0", "M10", true),
        ("", "M3", false),
    ] {
        assert_eq!(matches_glob(glob, text), matches, "{glob} {text}");
    }
}

#[test]
fn expectations_need_a_reason_a_check_and_one_list() {
    let lists = Expectations::parse(
        "[unsupported]\n\"R*\" = \"no adapter\"\n[expected_failures]\nK5 = \"driver 5\"",
    )
    .unwrap();
    assert_eq!(lists.unsupported[0].reason, "no adapter");
    assert_eq!(lists.expected_failures[0].checks, "K5");
    for (text, part) in [
        ("[unsupported]\nR1 = \" \"", "has no reason"),
        ("[unsupported]\nQ9 = \"what\"", "matches no check"),
        ("[unsuported]\nR1 = \"x\"", "unknown field"),
        (
            "[unsupported]\n\"M*\" = \"x\"\n[expected_failures]\nM3 = \"y\"",
            "M3 is on both lists",
        ),
    ] {
        let fault = Expectations::parse(text).unwrap_err();
        assert!(fault.contains(part), "{fault}");
    }
}

fn report() -> Report {
    let outcomes = [
        (Outcome::Pass, ""),
        (
            Outcome::Fail,
            "SIGSEGV (in alloc); it printed: <oh> & \"ah\"\u{1b}[0m",
        ),
        (Outcome::Skip, "needs two devices"),
        (Outcome::ExpectedFailure, "driver 5: timeout"),
    ];
    let results = checks()
        .zip(outcomes)
        .map(|(check, (outcome, text))| CheckResult {
            check,
            outcome,
            text: text.into(),
            duration: Duration::from_millis(7),
        });
    Report {
        subject: Subject::file("libstepmesh_backend_x.so"),
        results: results.collect(),
    }
}

#[test]
fn a_report_counts_each_outcome() {
    let counts = Counts {
        pass: 1,
        fail: 1,
        skip: 1,
        xfail: 1,
    };
    assert_eq!(report().counts(), counts);
    assert!(!report().is_good());
    assert_eq!(report().result("L3").unwrap().outcome, Outcome::Skip);
}

#[test]
fn a_table_shows_every_check_and_the_counts() {
    let table = report().to_string();
    for part in [
        "libstepmesh_backend_x.so",
        "L2",
        "FAIL",
        "SIGSEGV",
        "xfail",
        "1 passed",
    ] {
        assert!(table.contains(part), "{part}: {table}");
    }
}

#[test]
fn json_has_the_documented_fields() {
    let json = report().to_json();
    assert_eq!(json["counts"]["fail"], 1);
    assert_eq!(json["checks"][1]["id"], "L2");
    assert_eq!(json["checks"][1]["outcome"], "fail");
    assert_eq!(json["checks"][1]["duration_ms"], 7);
}

#[test]
fn junit_escapes_what_a_plugin_printed() {
    let xml = report().to_junit();
    assert!(
        xml.contains("tests=\"4\" failures=\"1\" skipped=\"2\""),
        "{xml}"
    );
    let message = "it printed: &lt;oh&gt; &amp; &quot;ah&quot; [0m";
    assert!(xml.contains(message), "{xml}");
    assert!(xml.contains("expected failure: driver 5: timeout"), "{xml}");
}

#[test]
fn a_verdict_survives_the_way_from_the_child() {
    use crate::process::Answer;

    let skipped = Answer::from(Err(Stop::Skip("why".into())));
    let text = serde_json::to_string(&skipped).unwrap();
    assert!(matches!(serde_json::from_str(&text), Ok(Answer::Skip(why)) if why == "why"));
}
