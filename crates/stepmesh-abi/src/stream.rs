//! The numbers that name streams and their flags. A stream argument is always the pair
//! (`stream_dev`, `stream`); the slots are in [`crate::SmBackendApi`].

/// Stream: none. Refused by every slot, so that a forgotten stream never means the default one.
pub const SM_STREAM_INVALID: u64 = 0;
/// Stream: the device's legacy default stream (DLPack's number for CUDA).
pub const SM_STREAM_LEGACY: u64 = 1;
/// Stream: the calling thread's default stream of the device (DLPack's number for CUDA).
pub const SM_STREAM_PER_THREAD: u64 = 2;
/// Stream: the one the framework holds current. Resolved by the host; never reaches a plugin.
pub const SM_STREAM_CURRENT: u64 = u64::MAX;

/// Stream flag: not ordered with the legacy default stream.
pub const SM_STREAM_NON_BLOCKING: u32 = 1 << 0;
