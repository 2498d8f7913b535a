//! The fabrics as their users see them.

#[cfg(test)]
mod alloc;
#[cfg(test)]
mod child;
#[cfg(test)]
mod contract;
#[cfg(test)]
mod many;
#[cfg(test)]
mod node;
#[cfg(test)]
mod shm;
#[cfg(test)]
mod suite;
#[cfg(test)]
mod support;
#[cfg(test)]
mod tcp;
