//! Build, test and release tasks of the workspace.

fn main() {}
