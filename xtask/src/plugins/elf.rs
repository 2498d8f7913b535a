//! What can be told about a plugin from its file alone: the symbols that it exports and its note.
//! Nothing here runs the plugin.

use anyhow::{Context, Result};
use object::{
    Endianness, Object as _, ObjectSymbol as _,
    elf::PT_NOTE,
    read::elf::{ElfFile64, ProgramHeader as _},
};
use stepmesh_abi::note::{Note, NoteError, parse_note};

/// Names of the symbols that other objects can bind to, sorted.
pub(super) fn exported_symbols(bytes: &[u8]) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for symbol in parse(bytes)?.dynamic_symbols() {
        if symbol.is_global() && !symbol.is_undefined() {
            names.push(
                symbol
                    .name()
                    .context("a dynamic symbol has no name")?
                    .to_owned(),
            );
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// The plugin's note, from the segment that survives `strip`.
pub(super) fn note(bytes: &[u8]) -> Result<Note<'_>> {
    let file = parse(bytes)?;
    let endian = file.endian();
    let mut failure = NoteError::NotFound;
    for header in file.elf_program_headers() {
        if header.p_type(endian) != PT_NOTE {
            continue;
        }
        let segment = header
            .data(endian, bytes)
            .ok()
            .context("a note lies beyond the file")?;
        match parse_note(segment) {
            Ok(note) => return Ok(note),
            Err(NoteError::NotFound) => {}
            // Notes of others may follow rules of their own; ours may be in a later segment.
            Err(error) => failure = error,
        }
    }
    Err(failure.into())
}

fn parse(bytes: &[u8]) -> Result<ElfFile64<'_, Endianness>> {
    ElfFile64::parse(bytes).context("not a 64-bit ELF file")
}
