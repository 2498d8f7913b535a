//! How a lazy device works. Each default is said where the option is.

use std::path::PathBuf;

use crate::{BackendOptions, FallbackPolicy};

/// How a [`LazyDevice`](crate::LazyDevice) works. Make one by `Options::default()` and set fields.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// How the device's backend works; for devices that are opened by
    /// [`LazyDevice::open`](crate::LazyDevice::open), which makes the backend too.
    pub backend: BackendOptions,
    /// Operations that may be traced before they are launched without being asked to. 100 000.
    pub trim_threshold: usize,
    /// Compiled graphs that are kept. 1024.
    pub cache_entries_max: usize,
    /// Bytes of host memory for compiled graphs, as far as they are known. 256 MiB.
    pub cache_len_bytes_max: usize,
    /// Compilations after which one more is an error; `None`: any number. `None`.
    pub max_compiles: Option<u64>,
    /// Steps after which every compilation is an error; `None`: never. `None`.
    pub no_recompile_after: Option<u64>,
    /// What to do about operations that the backend lacks. Warn.
    pub fallback: FallbackPolicy,
    /// Which numbers become part of graphs. None.
    pub bake_scalars: BakeScalars,
    /// Whether results may take over the memory of arguments that nobody needs any more. Yes.
    pub donate: bool,
    /// Explanations of recompilations that are kept. 64.
    pub recompilations_max: usize,
    /// A file to which the text of each graph that is compiled is appended, as
    /// `LTC_SAVE_TENSORS_FILE` names one. `None`.
    pub save_graphs_to: Option<PathBuf>,
}

/// Which numbers are part of a graph and not parameters of it. Another number is then another
/// graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum BakeScalars {
    /// None.
    #[default]
    Never,
    /// 0 and 1, of which compilers make more than of others.
    Special,
    /// All.
    Always,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            backend: BackendOptions::default(),
            trim_threshold: 100_000,
            cache_entries_max: 1024,
            cache_len_bytes_max: 256 << 20,
            max_compiles: None,
            no_recompile_after: None,
            fallback: FallbackPolicy::default(),
            bake_scalars: BakeScalars::default(),
            donate: true,
            recompilations_max: 64,
            save_graphs_to: None,
        }
    }
}
