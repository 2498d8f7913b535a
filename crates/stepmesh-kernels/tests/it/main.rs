//! Plans against an interpreter in f64: every operation and type, fused and alone, in odd shapes.

mod chains;
mod donation;
mod fusion;
mod ops;
mod random_graphs;
mod samples;
mod shapes;
mod support;
mod threads;
