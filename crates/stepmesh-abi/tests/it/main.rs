//! Checks the ABI from outside: layout, note and C header. One binary, one module per noun.
#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests may, as tests themselves do"
)]

mod header_file;
mod layout;
mod note;
mod status;
