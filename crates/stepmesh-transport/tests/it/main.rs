//! The fabrics as their users see them.

#[cfg(test)]
mod suite;
#[cfg(test)]
mod support;
