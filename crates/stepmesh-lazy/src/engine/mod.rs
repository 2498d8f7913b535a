//! The engine: which tensors live, what is traced of them, when it is compiled and launched. What
//! users write operations with is in `tensor`.

mod device;
mod explain;
mod fallback;
mod live;
mod options;
mod step;
mod sync;

pub use device::{LazyDevice, MemoryReport};
pub use explain::{Difference, DifferenceKind, Recompilation};
pub use fallback::{Fallback, FallbackPolicy, FallbackReport};
pub use options::{BakeScalars, Options};
pub use step::{PendingStep, Step};

pub(crate) use device::DeviceContext;
