//! The `stepmesh` program.

fn main() {}
