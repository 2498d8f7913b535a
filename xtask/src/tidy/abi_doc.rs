//! Ties docs/abi.md to the source of the ABI: the document holds a hash of the source, so that
//! whoever changes one looks at the other. The hash proves that someone looked, no more.

use super::{Violation, files::File};

pub(super) fn check(files: &[File]) -> Vec<Violation> {
    let Some(document) = files.iter().find(|file| file.path == DOCUMENT) else {
        return vec![Violation::new(
            DOCUMENT,
            "missing: the ABI is documented there",
        )];
    };
    let expected = marker(files);
    let text = document.text.as_deref().unwrap_or_default();
    if text.lines().any(|line| line.trim() == expected) {
        return Vec::new();
    }
    let message = format!(
        "the source of the ABI has changed since this document was last compared with it; read \
         both, then put this line here in place of the old one: {expected}"
    );
    vec![Violation::new(DOCUMENT, message)]
}

/// The line that the document holds while it matches the source.
pub(super) fn marker(files: &[File]) -> String {
    let mut hash = FNV_OFFSET;
    let mut feed = |text: &str| {
        for byte in text.bytes() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(FNV_PRIME);
        }
    };
    // `git ls-files` sorts by path, so the order is the same everywhere.
    for file in files.iter().filter(|file| is_abi_source(&file.path)) {
        feed(&file.path);
        feed(file.text.as_deref().unwrap_or_default());
    }
    format!("<!-- abi source: {hash:016x} -->")
}

fn is_abi_source(path: &str) -> bool {
    path.starts_with(SOURCE_DIR) && path.ends_with(".rs") && !path.contains("tests")
}

const DOCUMENT: &str = "docs/abi.md";
const SOURCE_DIR: &str = "crates/stepmesh-abi/src/";

/// FNV-1a with 64 bits: short, the same on every machine, and nobody attacks this.
const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0000_0100_0000_01b3;
