//! Push and pull tensors between accelerators: scheduler, workers and servers.
