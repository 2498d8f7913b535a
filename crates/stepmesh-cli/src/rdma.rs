//! `stepmesh rdma`: what there is of network adapters, and why which of them is used. The choice itself
//! is made in stepmesh-rdma.

use anyhow::{Result, bail};
use clap::Subcommand;
use comfy_table::{ColumnConstraint, Width};
use serde_json::json;
use stepmesh_core::{Backend, config::Config};
use stepmesh_rdma::select::{
    Adapter, Choice, GidVerdict, LinkLayer, Location, Options as Rules, PortVerdict, System, choose,
};

use crate::args::Global;
use crate::exit::Exit;
use crate::{config, report};

/// What `stepmesh rdma` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Shows the adapters, ports and addresses, which of them would be used, and why not the others
    ///
    /// Ends with 1 and one line when no port can be used.
    Explain(Explain),

    /// Measures round trips over the adapter, and prints the numbers as JSON
    ///
    /// Two processes of this host push and pull 8 KiB, 896 KiB and 14 MiB; the posts, credits and heap
    /// allocations of each request are counted at both ends. They wait as `transport.poll` and
    /// `transport.spin_us` say. The look-up of a registration needs no adapter.
    #[cfg(feature = "rdma")]
    Bench(Bench),
}

/// What `stepmesh rdma explain` takes.
#[derive(Debug, clap::Args)]
struct Explain {
    /// For this device of the chosen backend; without, only the ports themselves are compared
    #[arg(long, value_name = "N")]
    device: Option<u32>,

    /// Only these adapters (`mlx5_0`) or ports (`mlx5_0:1`); `*` is any text; repeatable
    #[arg(long, value_name = "NAME")]
    include: Vec<String>,

    /// None of these adapters or ports; repeatable
    #[arg(long, value_name = "NAME")]
    exclude: Vec<String>,

    /// Prints JSON
    #[arg(long)]
    json: bool,
}

/// What `stepmesh rdma bench` takes.
#[cfg(feature = "rdma")]
#[derive(Debug, clap::Args)]
struct Bench {
    /// Measures only this; repeatable
    #[arg(long, value_name = "SUBJECT", value_enum)]
    only: Vec<crate::bench::verbs::Subject>,
}

/// Runs the subcommand.
pub(crate) fn run(global: &Global, args: &Args) -> Result<Exit> {
    #[cfg_attr(
        not(feature = "rdma"),
        expect(
            clippy::infallible_destructuring_match,
            reason = "there is one more with the feature"
        )
    )]
    let options = match &args.command {
        Command::Explain(options) => options,
        #[cfg(feature = "rdma")]
        Command::Bench(options) => {
            let config = config::load_quietly(global)?.config;
            let numbers = crate::bench::verbs::measure(config, &options.only)?;
            report::print_json(&json!(numbers))?;
            return Ok(Exit::Done);
        }
    };
    let loaded = config::load_quietly(global)?;
    let system = System::this();
    let device = match options.device {
        Some(ordinal) => location(&system, &loaded.config, ordinal)?,
        None => Location::default(),
    };
    let mut rules = Rules {
        include: options.include.clone(),
        exclude: options.exclude.clone(),
        ..Rules::default()
    };
    let interface = &loaded.config.mesh.interface;
    rules.gid.interface = Some(interface.clone()).filter(|name| !name.is_empty());
    let choice = choose(&Adapter::all(&system), &device, &rules);
    let library = library();
    let absence = library.as_ref().err().cloned().or_else(|| choice.absence());
    if options.json {
        let mut page = json!({ "library": library.ok(), "absence": absence });
        page["choice"] = serde_json::to_value(&choice)?;
        report::print_json(&page)?;
        return Ok(absence.map_or(Exit::Done, |_| Exit::Failed));
    }
    if !choice.ports.is_empty() {
        show(&choice)?;
    }
    match (absence, library) {
        (Some(absence), _) => bail!("{absence}"),
        (None, Ok(library)) => report::print(library)?,
        (None, Err(_)) => {}
    }
    Ok(Exit::Done)
}

/// Where a device of the chosen backend sits.
fn location(system: &System, config: &Config, ordinal: u32) -> Result<Location> {
    let device = Backend::open(config)?.device(ordinal)?;
    let info = device.info();
    let by_address = info
        .pci_bdf
        .as_deref()
        .map(|address| Location::of_pci(system, address));
    let known = by_address.filter(|location| !location.is_unknown());
    Ok(known.unwrap_or_else(|| Location::of_numa_node(info.numa_node)))
}

/// What libibverbs says, or why nothing can be asked of it.
#[cfg(feature = "rdma")]
fn library() -> Result<String, String> {
    use stepmesh_rdma::verbs;

    let devices = verbs::devices().map_err(|error| error.to_string())?;
    let forks = match verbs::fork_support() {
        Ok(verbs::ForkSupport::Unneeded) => "forks are harmless with this kernel",
        Ok(verbs::ForkSupport::Enabled { huge_pages: true }) => "forks are guarded",
        Ok(verbs::ForkSupport::Enabled { huge_pages: false }) => {
            "forks are guarded; RDMAV_HUGEPAGES_SAFE=1 is needed to register huge pages"
        }
        _ => "forks are not guarded: children must not touch registered memory",
    };
    let count = report::count(devices.len(), "device");
    Ok(format!("libibverbs.so.1 lists {count}; {forks}"))
}

#[cfg(not(feature = "rdma"))]
fn library() -> Result<String, String> {
    Err("this program was built without verbs: build it with --features rdma".into())
}

fn show(choice: &Choice) -> Result<()> {
    let mut table = report::table(PORT_HEADINGS);
    for port in &choice.ports {
        table.add_row(port_cells(port));
    }
    if let Some(reason) = table.column_mut(PORT_HEADINGS.len() - 1) {
        reason.set_constraint(ColumnConstraint::UpperBoundary(Width::Fixed(WIDTH_MAX)));
    }
    report::print(&table)?;
    let mut table = report::table(GID_HEADINGS);
    for port in &choice.ports {
        for gid in &port.gids {
            table.add_row(gid_cells(port, gid));
        }
    }
    report::print(&table)
}

fn port_cells(port: &PortVerdict) -> [String; 8] {
    let dash = || "-".to_owned();
    let link = match &port.link_layer {
        LinkLayer::InfiniBand => "InfiniBand",
        LinkLayer::Ethernet => "Ethernet",
        LinkLayer::Other(other) => other,
    };
    [
        port.rank.map_or_else(dash, |rank| rank.to_string()),
        port_name(port),
        link.to_owned(),
        format!("{} Gbit/s", port.rate_gbps),
        port.pci_address.clone().unwrap_or_else(dash),
        port.numa_node.map_or_else(dash, |node| node.to_string()),
        port.distance.proximity.as_str().to_owned(),
        port.reason.clone().unwrap_or_else(|| "used".into()),
    ]
}

fn gid_cells(port: &PortVerdict, verdict: &GidVerdict) -> [String; 6] {
    let gid = &verdict.gid;
    [
        port_name(port),
        gid.index.to_string(),
        gid.kind.as_str().to_owned(),
        gid.interface.clone().unwrap_or_else(|| "-".into()),
        gid.to_string(),
        verdict.rejected.clone().unwrap_or_else(|| "used".into()),
    ]
}

fn port_name(port: &PortVerdict) -> String {
    format!("{}:{}", port.adapter, port.port)
}

const PORT_HEADINGS: [&str; 8] = [
    "rank", "port", "link", "rate", "PCI", "NUMA", "way", "reason",
];
const GID_HEADINGS: [&str; 6] = ["port", "GID", "type", "interface", "address", "reason"];
/// Reasons are sentences: beyond this, they go on in the next line.
const WIDTH_MAX: u16 = 60;
