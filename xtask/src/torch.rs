//! `torch-test`: the tests of stepmesh-torch, with a libtorch for the CPU that is fetched once. Its
//! wheel is the one for CUDA, of which only what a CPU needs is kept (docs/torch.md).

use std::{env, fs, path::PathBuf};

use anyhow::{Context, Result, bail};

use crate::{
    plugins::{self, plugins_dir},
    test::PLUGIN_DIR_VARIABLE,
    workspace::{self, Profile, Workspace},
};

/// Which tests run.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Options {
    /// Runs only the tests whose name contains this
    filter: Option<String>,

    /// Fetches libtorch, prints where it is, and runs nothing
    #[arg(long)]
    fetch: bool,

    /// Goes to the test programs, for example `-- --nocapture`
    #[arg(last = true)]
    args: Vec<String>,
}

/// Fetches libtorch where it is missing, and runs the tests with it.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    let libtorch = libtorch(workspace)?;
    println!(
        "libtorch {VERSION}: {}",
        workspace.relative(&libtorch).display()
    );
    if options.fetch {
        return Ok(());
    }
    let plugin_options = plugins::Options {
        only: Vec::new(),
        release: false,
    };
    plugins::build(workspace, &plugin_options)?;
    let plugin_dir = plugins_dir(&workspace.metadata()?.target_dir()?, Profile::Dev);
    let test = |backend: &str, which: &[&str]| {
        let mut command = workspace.cargo("test");
        command.args(["--package", "stepmesh-torch", "--features", "lazy"]);
        command.args(which).args(&options.filter);
        command.arg("--").args(&options.args);
        command.env(PLUGIN_DIR_VARIABLE, &plugin_dir);
        command.env(BACKEND_VARIABLE, backend);
        workspace::run(command.env(LIBTORCH_VARIABLE, &libtorch))
    };
    test("cpu", &[])?;
    // PyTorch's lazy core once more, on devices that are none of the host's.
    test("sim", &["--test", "lazy"])?;
    if options.filter.is_some() {
        return Ok(());
    }
    ["mesh", "lazy"].iter().try_for_each(|example| {
        let mut command = workspace.cargo("run");
        command.args(["--package", "stepmesh-torch", "--features", "lazy"]);
        command.args(["--example", example]);
        workspace::run(command.env(LIBTORCH_VARIABLE, &libtorch))
    })
}

/// How much `torch-bench` measures.
#[derive(Debug, clap::Args)]
pub(crate) struct BenchOptions {
    /// Fewer rounds: ends within some seconds
    #[arg(long)]
    quick: bool,
}

/// Measures PyTorch beside us, and writes target/bench/torch.json.
pub(crate) fn bench(workspace: &Workspace, options: &BenchOptions) -> Result<()> {
    let libtorch = libtorch(workspace)?;
    let out_dir = workspace.metadata()?.target_dir()?.join("bench");
    fs::create_dir_all(&out_dir).with_context(|| format!("cannot make {}", out_dir.display()))?;
    let out = out_dir.join("torch.json");
    let mut command = workspace.cargo("bench");
    command.args([
        "--package",
        "stepmesh-torch",
        "--features",
        "lazy",
        "--bench",
        "torch",
        "--",
    ]);
    command.arg("--out").arg(&out);
    command.args(options.quick.then_some("--quick"));
    workspace::run(command.env(LIBTORCH_VARIABLE, libtorch))?;
    println!("results: {}", workspace.relative(&out).display());
    Ok(())
}

/// The folder with `include` and `lib`: the caller's, or ours, which is fetched the first time.
pub(crate) fn libtorch(workspace: &Workspace) -> Result<PathBuf> {
    if let Some(own) = env::var_os(LIBTORCH_VARIABLE) {
        let own = PathBuf::from(own);
        if !own.join("lib").is_dir() {
            bail!(
                "{LIBTORCH_VARIABLE} is {}, which has no folder `lib`; name the root of a libtorch \
                 {VERSION}, or unset it to have one fetched",
                own.display()
            );
        }
        return Ok(own);
    }
    let dir = workspace.metadata()?.target_dir()?.join("libtorch");
    let root = dir.join("torch");
    // Written last, and read by torch-sys too.
    let marker = root.join("build-version");
    if fs::read_to_string(&marker).is_ok_and(|version| version.trim() == VERSION) {
        return Ok(root);
    }
    let wheels = dir.join("wheels");
    fs::create_dir_all(&wheels).with_context(|| format!("cannot make {}", wheels.display()))?;
    println!("fetching libtorch {VERSION} from PyPI (530 MB, of which 500 MB stay)");
    let mut pip = workspace.program("python3");
    pip.args([
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-cache-dir",
        "--no-deps",
    ]);
    pip.args(["--disable-pip-version-check", "--only-binary=:all:"]);
    // The wheels' own names, so that any Python will do.
    pip.args(["--python-version", "311", "--implementation", "cp"]);
    pip.args(
        PLATFORMS
            .iter()
            .flat_map(|platform| ["--platform", platform]),
    );
    pip.arg("--dest").arg(&wheels).args(WHEELS);
    workspace::run(&mut pip).context("Python 3 with pip fetches libtorch (Debian: python3-pip)")?;
    let mut unpack = workspace.program("python3");
    unpack.args(["-c", UNPACK]).arg(&wheels).arg(&dir);
    workspace::run(&mut unpack)?;
    fs::remove_dir_all(&wheels).with_context(|| format!("cannot remove {}", wheels.display()))?;
    fs::write(&marker, VERSION).with_context(|| format!("cannot write {}", marker.display()))?;
    Ok(root)
}

/// Which plugin the tests of the lazy core use.
const BACKEND_VARIABLE: &str = "STEPMESH_BACKEND";

/// Where torch-sys looks for libtorch.
pub(crate) const LIBTORCH_VARIABLE: &str = "LIBTORCH";

/// What tch 0.24 was made for.
const VERSION: &str = "2.11.0";

/// PyTorch, and the two libraries that its CPU half needs to load.
const WHEELS: [&str; 3] = [
    "torch==2.11.0",
    "nvidia-cuda-runtime==13.0.96",
    "nvidia-cuda-cupti==13.0.85",
];

/// What the wheels call the platforms that they are for.
const PLATFORMS: [&str; 3] = [
    "manylinux_2_28_x86_64",
    "manylinux_2_25_x86_64",
    "manylinux2014_x86_64",
];

const UNPACK: &str = include_str!("torch/unpack.py");
