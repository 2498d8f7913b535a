//! What can be told of the files: nothing of ours needs a vendor's library, and the kernels are those of
//! their source.

use std::path::Path;

use libtest_mimic::{Failed, Trial};
use object::read::elf::{Dyn as _, ElfFile64};
use sha2::{Digest as _, Sha256};

use crate::judged;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        Trial::test("files::no_plugin_needs_a_library_of_a_vendor", || {
            let mut seen = 0;
            for entry in std::fs::read_dir(judged::plugins()?)? {
                let path = entry?.path();
                if path.extension().is_some_and(|extension| extension == "so") {
                    check_needed(&path)?;
                    seen += 1;
                }
            }
            if seen == 0 {
                return Err("no plugin is there".into());
            }
            Ok(())
        }),
        Trial::test("files::no_program_needs_a_library_of_a_vendor", || {
            // This one links the backend statically.
            check_needed(&std::env::current_exe()?)
        }),
        Trial::test("files::the_kernels_were_made_of_their_source", || {
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels");
            let source = std::fs::read(folder.join("flags.cu"))?;
            let ptx = std::fs::read_to_string(folder.join("flags.ptx"))?;
            let digest: String = Sha256::digest(&source)
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect();
            if !ptx.lines().next().unwrap_or_default().ends_with(&digest) {
                let message = "flags.ptx was made of another flags.cu: run kernels/build.py";
                return Err(message.into());
            }
            Ok(())
        }),
    ]
}

fn check_needed(path: &Path) -> Result<(), Failed> {
    let bytes = std::fs::read(path)?;
    let file = ElfFile64::<object::Endianness>::parse(&*bytes)?;
    let needed = needed(&file).ok_or_else(|| format!("{}: a bad ELF", path.display()))?;
    for name in needed {
        if !SYSTEM.iter().any(|system| name.starts_with(system)) {
            return Err(format!("{} needs {name}", path.display()).into());
        }
    }
    Ok(())
}

fn needed(file: &ElfFile64<'_, object::Endianness>) -> Option<Vec<String>> {
    let endian = file.endian();
    let table = file.elf_section_table();
    let (entries, strings) = table.dynamic(endian, file.data()).ok()??;
    let strings = table.strings(endian, file.data(), strings).ok()?;
    entries
        .iter()
        .filter(|entry| entry.tag(endian) == object::elf::DT_NEEDED)
        .map(|entry| {
            let name = entry.string(endian, strings).ok()?;
            Some(String::from_utf8_lossy(name).into_owned())
        })
        .collect()
}

/// What every Linux has.
const SYSTEM: &[&str] = &["libc.so", "libm.so", "libgcc_s.so", "ld-linux"];
