//! The guest's kernel and its initial file system, made from Debian's kernel package, which is
//! unpacked and not installed. What a booted guest does with them is in [`super::guest`].

use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail, ensure};

use super::SBIN;
use crate::workspace;

/// A kernel and an initramfs that QEMU can boot.
#[derive(Debug)]
pub(super) struct Image {
    pub(super) kernel: PathBuf,
    pub(super) initramfs: PathBuf,
}

/// Returns the image below `vm_dir`; makes it first when it is not there, or not of what goes into
/// it now.
pub(super) fn ensure(vm_dir: &Path) -> Result<Image> {
    ensure!(
        cfg!(target_arch = "x86_64"),
        "the guest is an x86-64 machine that runs this machine's programs, so it needs one"
    );
    let dir = vm_dir.join("image");
    let image = Image {
        kernel: dir.join("vmlinuz"),
        initramfs: dir.join("initramfs.cpio"),
    };
    let stamp_path = dir.join("stamp");
    let stamp = stamp()?;
    let is_current = fs::read_to_string(&stamp_path).is_ok_and(|old| old == stamp);
    if !(is_current && image.kernel.is_file() && image.initramfs.is_file()) {
        println!("building the guest's image from Debian's kernel package");
        let staging = vm_dir.join("image.part");
        remove_dir(&staging)?;
        build(&staging, &stamp)
            .context("cannot build the guest's image (`cargo xtask setup` installs its tools)")?;
        remove_dir(&dir)?;
        fs::rename(&staging, &dir).with_context(|| format!("cannot write {}", dir.display()))?;
    }
    Ok(image)
}

/// Everything that decides what the image holds, but for the kernel's version: a new kernel in the
/// archive is no reason to fetch it.
fn stamp() -> Result<String> {
    let busybox =
        fs::metadata(BUSYBOX).with_context(|| format!("no {BUSYBOX}: run `cargo xtask setup`"))?;
    Ok(format!(
        "{KERNEL_PACKAGE}\n{}\nbusybox {} {}\n{INIT}",
        MODULES.join(" "),
        busybox.len(),
        busybox.mtime()
    ))
}

fn build(dir: &Path, stamp: &str) -> Result<()> {
    let root = dir.join("root");
    let package = dir.join("package");
    create_dir(&package)?;
    unpack_kernel(&package, &root)?;
    let (version, kernel) = find_kernel(&root.join("boot"))?;
    fs::rename(&kernel, dir.join("vmlinuz")).context("cannot move the kernel")?;

    let tree = dir.join("tree");
    make_tree(&tree, &root, &version)?;
    // No compression: the machine that boots it unpacks it in software.
    let mut cpio = Command::new("sh");
    let script = "find . | sort | cpio --quiet --create --format=newc --owner=0:0";
    cpio.args(["-c", script]).current_dir(&tree);
    let archive = workspace::output_of(&mut cpio)?;
    fs::write(dir.join("initramfs.cpio"), archive).context("cannot write the initramfs")?;
    for leftover in [&root, &package, &tree] {
        remove_dir(leftover)?;
    }
    fs::write(dir.join("stamp"), stamp).context("cannot write the image's stamp")
}

/// Fetches the package that [`KERNEL_PACKAGE`] stands for and unpacks it to `root`.
fn unpack_kernel(dir: &Path, root: &Path) -> Result<()> {
    let depends =
        workspace::output_of(Command::new("apt-cache").args(["depends", KERNEL_PACKAGE]))?;
    let depends = String::from_utf8(depends).context("apt-cache printed no UTF-8")?;
    let package = depends
        .lines()
        .filter_map(|line| line.trim().strip_prefix("Depends: "))
        .find(|name| name.starts_with("linux-image-"))
        .with_context(|| {
            format!(
                "apt knows no `{KERNEL_PACKAGE}`: is this Debian, and was `apt-get update` run?"
            )
        })?;
    let mut download = Command::new("apt-get");
    // As whoever runs this: apt's own user cannot write here.
    download.args(["-qq", "-o", "APT::Sandbox::User=root", "download", package]);
    workspace::run(download.current_dir(dir))?;
    let file = only_entry(dir)?;
    workspace::run(
        Command::new("dpkg-deb")
            .arg("--extract")
            .arg(file)
            .arg(root),
    )
}

fn find_kernel(boot: &Path) -> Result<(String, PathBuf)> {
    for entry in fs::read_dir(boot).context("the kernel package has no /boot")? {
        let entry = entry.context("cannot list /boot of the kernel package")?;
        let name = entry.file_name();
        if let Some(version) = name.to_string_lossy().strip_prefix("vmlinuz-") {
            return Ok((version.to_owned(), entry.path()));
        }
    }
    bail!("the kernel package has no /boot/vmlinuz-*");
}

/// Fills `tree` with what the initramfs holds: busybox, the modules in the order in which they can
/// be loaded, and `/init`.
fn make_tree(tree: &Path, root: &Path, version: &str) -> Result<()> {
    for dir in ["bin", "bare", "dev", "host", "modules", "proc", "sys"] {
        create_dir(&tree.join(dir))?;
    }
    copy(Path::new(BUSYBOX), &tree.join("bin/busybox"))?;
    let init = tree.join("init");
    fs::write(&init, INIT).context("cannot write /init")?;
    workspace::run(Command::new("chmod").arg("755").arg(init))?;

    workspace::run(sbin("depmod").arg("-b").arg(root).arg(version))?;
    let mut order: Vec<String> = Vec::new();
    for module in MODULES {
        let mut modprobe = sbin("modprobe");
        modprobe
            .arg("-d")
            .arg(root)
            .args(["-S", version, "--show-depends", module]);
        let lines = String::from_utf8(workspace::output_of(&mut modprobe)?)
            .context("modprobe printed no UTF-8")?;
        // A module that is part of the kernel is told as `builtin`.
        for path in lines
            .lines()
            .filter_map(|line| line.strip_prefix("insmod "))
        {
            let path = Path::new(path.trim());
            let name = path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            if !order.contains(&name) {
                copy(path, &tree.join("modules").join(&name))?;
                order.push(name);
            }
        }
    }
    fs::write(tree.join("modules/order"), order.join("\n") + "\n").context("cannot list modules")
}

/// A program of the administrator.
fn sbin(name: &str) -> Command {
    let path = Path::new(SBIN).join(name);
    Command::new(if path.exists() { path } else { name.into() })
}

fn only_entry(dir: &Path) -> Result<PathBuf> {
    let mut entries =
        fs::read_dir(dir).with_context(|| format!("cannot list {}", dir.display()))?;
    let entry = entries.next().context("apt-get downloaded nothing")?;
    Ok(entry.context("cannot list the download")?.path())
}

fn create_dir(dir: &Path) -> Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))
}

fn remove_dir(dir: &Path) -> Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", dir.display()))
        }
        _ => Ok(()),
    }
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to).with_context(|| format!("cannot copy {}", from.display()))?;
    Ok(())
}

/// Programs that make it.
pub(super) const TOOLS: [&str; 7] = [
    "apt-cache",
    "apt-get",
    "busybox",
    "cpio",
    "depmod",
    "dpkg-deb",
    "modprobe",
];

/// The package that depends on the newest kernel of the system's Debian.
const KERNEL_PACKAGE: &str = "linux-image-amd64";

/// Of busybox-static: the only program that runs before the host's files are mounted.
const BUSYBOX: &str = "/bin/busybox";

const INIT: &str = include_str!("init.sh");

/// What a guest needs, in the order of loading; modprobe adds what these need themselves.
const MODULES: [&str; 10] = [
    // rxe asks for the checksum by name when a link is added.
    "crc32_generic",
    "virtio_pci",
    // The command's output.
    "virtio_console",
    // The network between two guests.
    "virtio_net",
    "9pnet_virtio",
    "9p",
    // The network within one guest.
    "veth",
    "ib_uverbs",
    "rdma_ucm",
    "rdma_rxe",
];
