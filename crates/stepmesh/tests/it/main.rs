//! Tests of whole meshes, every member in a thread of its own, over the real fabrics.

mod mesh;
mod requests;
