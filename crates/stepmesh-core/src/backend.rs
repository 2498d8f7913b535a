//! An open backend. How it is found and chosen is in `registry`.
#![forbid(unsafe_code)]

use std::path::Path;
use std::sync::Arc;

use stepmesh_abi::{SmBackend, SmBackendApi};

use crate::config::Config;
use crate::instance::Instance;
use crate::loader::Plugin;
use crate::{Device, Error, Reason, Registry, StaticPlugin, host};

/// An open backend: devices that allocate, copy and signal. Clones share it; it is closed when the
/// last clone and the last handle made from it are gone.
///
/// Any thread may use it.
#[derive(Debug, Clone)]
pub struct Backend {
    instance: Arc<Instance>,
}

/// The C side of a [`Backend`], for code that calls slots itself. Valid while the backend lives.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct RawBackend {
    /// First argument of most slots.
    pub handle: *mut SmBackend,
    /// The plugin's own table, cut or padded to this host's; optional slots may be missing.
    pub api: &'static SmBackendApi,
}

impl Backend {
    /// Finds the plugins and opens the backend that the configuration names, or the best one; see
    /// [`Registry::select`].
    ///
    /// # Errors
    /// `BackendUnavailable` with the reason for every file that was looked at, `BackendAmbiguous`.
    pub fn open(config: &Config) -> Result<Self, Error> {
        Self::open_from(config, || Registry::discover(&config.plugins))
    }

    /// The same with these backends linked into the program instead of `cpu`: for tests, and for
    /// programs that bring their own.
    ///
    /// # Errors
    /// As [`Backend::open`].
    pub fn open_with(config: &Config, built_in: &[StaticPlugin]) -> Result<Self, Error> {
        Self::open_from(config, || {
            Registry::discover_with(&config.plugins, built_in)
        })
    }

    fn open_from(config: &Config, discover: impl FnOnce() -> Registry) -> Result<Self, Error> {
        let name = Some(config.backend.as_str()).filter(|name| !name.is_empty());
        host::with_config(config, || discover().select(name))
    }

    pub(crate) fn open_plugin(plugin: &'static Plugin) -> Result<Self, Reason> {
        Ok(Self {
            instance: Instance::open(plugin)?,
        })
    }

    /// Name by which it is chosen, such as `cpu`.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.instance.name()
    }

    /// Version of the plugin.
    #[must_use]
    pub fn version(&self) -> &'static str {
        &self.instance.plugin().version
    }

    /// Who made the plugin; may be empty.
    #[must_use]
    pub fn vendor(&self) -> &'static str {
        &self.instance.plugin().vendor
    }

    /// The plugin's file; `None` when it is linked into the program.
    #[must_use]
    pub fn path(&self) -> Option<&'static Path> {
        self.instance.plugin().path.as_deref()
    }

    /// How many devices it has.
    #[must_use]
    pub fn device_count(&self) -> u32 {
        self.instance.device_count()
    }

    /// One device.
    ///
    /// # Errors
    /// `NoSuchDevice`.
    pub fn device(&self, ordinal: u32) -> Result<Device, Error> {
        if ordinal >= self.device_count() {
            let (backend, count) = (self.name(), self.device_count());
            return Err(Error::NoSuchDevice {
                backend,
                ordinal,
                count,
            });
        }
        Ok(Device::new(self.clone(), ordinal))
    }

    /// All devices, in order.
    #[must_use]
    pub fn devices(&self) -> Vec<Device> {
        (0..self.device_count())
            .map(|ordinal| Device::new(self.clone(), ordinal))
            .collect()
    }

    /// Whether two handles belong to one open backend and may be used together.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.instance, &other.instance)
    }

    /// The C side.
    #[must_use]
    pub fn as_raw(&self) -> RawBackend {
        RawBackend {
            handle: self.instance.handle(),
            api: &self.instance.plugin().api,
        }
    }

    pub(crate) fn instance(&self) -> &Arc<Instance> {
        &self.instance
    }

    /// Handles of two instances must not meet in one call.
    pub(crate) fn check_same(&self, other: &Self, operation: &'static str) -> Result<(), Error> {
        if self.is_same(other) {
            return Ok(());
        }
        Err(Error::ForeignHandle {
            operation,
            first: self.name(),
            second: other.name(),
        })
    }
}
