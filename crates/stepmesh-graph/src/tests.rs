//! What graphs are accepted and refused, how they survive a trip through bytes, and the arithmetics
//! that stand here. The operations' values are tested with the interpreter.

mod arithmetic;
mod bytes;
mod graphs;
mod values;
