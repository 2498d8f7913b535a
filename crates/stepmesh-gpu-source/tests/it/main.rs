//! The source is compiled as C++ for the host, by the stand-in header, and run: values must be those of
//! the interpreter within its bounds, by which plugins are judged too.

mod bench;
mod joined;
mod random_graphs;
mod samples;
mod shapes;
mod text;
