//! Drives a tiny backend through the table that the kit makes of it, as a host does.

mod fake;
mod fork;
mod lifecycle;
mod misuse;
mod sizes;
mod support;
