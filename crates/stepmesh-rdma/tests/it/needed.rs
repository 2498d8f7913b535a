//! What a program with verbs in it needs to start: this test itself is one.

use object::elf::{DT_NEEDED, FileHeader64};
use object::read::elf::{Dyn as _, FileHeader as _};
use object::{Endianness, read::elf::ElfFile64};
use stepmesh_rdma::verbs;

#[test]
fn no_program_needs_libibverbs_to_start() {
    // The functions of all rings are linked in.
    let devices = verbs::devices();
    println!("{devices:?}");
    let names = needed();
    assert!(
        names.iter().any(|name| name.starts_with("libc.so")),
        "{names:?}"
    );
    for name in ["libibverbs", "librdmacm", "libmlx5"] {
        assert!(
            !names.iter().any(|needed| needed.starts_with(name)),
            "{name}: {names:?}"
        );
    }
}

/// The libraries that this program needs, by its own file.
fn needed() -> Vec<String> {
    let bytes = std::fs::read("/proc/self/exe").unwrap();
    let file: ElfFile64<'_, Endianness> = ElfFile64::parse(&*bytes).unwrap();
    let endian = file.endian();
    let header: &FileHeader64<Endianness> = file.elf_header();
    let sections = header.sections(endian, &*bytes).unwrap();
    let (entries, link) = sections.dynamic(endian, &*bytes).unwrap().unwrap();
    let strings = sections.strings(endian, &*bytes, link).unwrap();
    let entries = entries
        .iter()
        .filter(|entry| entry.tag(endian) == DT_NEEDED);
    entries
        .map(|entry| {
            let name = entry.string(endian, strings).unwrap();
            String::from_utf8(name.to_vec()).unwrap()
        })
        .collect()
}
