//! Options that servers and workers share: where the scheduler is, and who they are.

use anyhow::Result;
use stepmesh_core::config::Config;
use stepmesh_core::{Backend, Device};

use crate::config::Overrides;

/// Where a member joins and as whom. Most override a configuration key.
#[derive(Debug, clap::Args)]
pub(crate) struct MemberOptions {
    /// Where the scheduler listens [mesh.scheduler_host, mesh.scheduler_port]
    #[arg(long, value_name = "HOST:PORT", value_parser = host_and_port)]
    scheduler: Option<(String, u16)>,

    /// Rank among the members of this role [mesh.rank; the scheduler gives one]
    #[arg(long)]
    rank: Option<u32>,

    /// Device of the backend whose memory is used
    #[arg(long, value_name = "ORDINAL", default_value_t = 0)]
    device: u32,
}

impl MemberOptions {
    /// As configuration keys.
    pub(crate) fn overrides(&self) -> Overrides {
        let (host, port) = self.scheduler.as_ref().map(|(h, p)| (h, p)).unzip();
        Overrides::default()
            .with("mesh.scheduler_host", host)
            .with("mesh.scheduler_port", port)
            .with("mesh.rank", self.rank)
    }

    /// The device of the configured backend.
    pub(crate) fn open_device(&self, config: &Config) -> Result<Device> {
        Ok(Backend::open(config)?.device(self.device)?)
    }
}

/// Nobody said where the scheduler listens.
#[derive(Debug, thiserror::Error)]
#[error(
    "no scheduler to join: give its port with --scheduler HOST:PORT or STEPMESH_MESH_SCHEDULER_PORT"
)]
pub(crate) struct NoScheduler;

/// There must be a scheduler to join.
pub(crate) fn check_scheduler(config: &Config) -> Result<(), NoScheduler> {
    if config.mesh.scheduler_port == 0 {
        return Err(NoScheduler);
    }
    Ok(())
}

/// Where it is, for messages.
pub(crate) fn scheduler(config: &Config) -> String {
    let (host, port) = (&config.mesh.scheduler_host, config.mesh.scheduler_port);
    if host.contains(':') {
        return format!("[{host}]:{port}");
    }
    format!("{host}:{port}")
}

/// `127.0.0.1:4000`, `node7:4000` or `[::1]:4000`.
fn host_and_port(text: &str) -> Result<(String, u16), String> {
    let help = || format!("`{text}` is not HOST:PORT, for example 127.0.0.1:4000 or [::1]:4000");
    let (host, port) = text.rsplit_once(':').ok_or_else(help)?;
    let host = host
        .strip_prefix('[')
        .map_or(Some(host), |host| host.strip_suffix(']'));
    let host = host.filter(|host| !host.is_empty()).ok_or_else(help)?;
    match port.parse() {
        Ok(port) if port > 0 => Ok((host.into(), port)),
        _ => Err(help()),
    }
}

#[cfg(test)]
mod tests {
    use stepmesh_core::config::Config;

    use super::{host_and_port, scheduler};

    #[test]
    fn addresses_are_read_as_people_write_them() {
        for (text, host, port) in [
            ("127.0.0.1:4000", "127.0.0.1", 4000),
            ("node7:1", "node7", 1),
            ("[::1]:65535", "::1", 65535),
        ] {
            assert_eq!(host_and_port(text), Ok((host.into(), port)), "{text}");
            let mut config = Config::default();
            config.mesh.scheduler_host = host.into();
            config.mesh.scheduler_port = port;
            assert_eq!(scheduler(&config), text);
        }
        for text in [
            "",
            "4000",
            "node7",
            ":4000",
            "node7:0",
            "node7:70000",
            "[::1:4000",
            "[]:1",
        ] {
            let error = host_and_port(text).unwrap_err();
            assert!(error.contains("HOST:PORT"), "{text}: {error}");
        }
    }
}
