//! Reads what a plugin file says without running it. The file is hostile.
#![forbid(unsafe_code)]

use std::fs;
use std::path::Path;

use object::elf::{self, FileHeader64};
use object::read::elf::{ElfFile, FileHeader, ProgramHeader, Sym};
use object::{Endianness, Object, ObjectSection};
use stepmesh_abi::note::{NOTE_SECTION, NoteError, parse_note};

use crate::error::Error;

/// What is of interest in a library file.
#[derive(Clone, Debug)]
pub(crate) struct Image {
    /// The note in its segment: found by a host, kept by `strip`.
    pub(crate) segment_note: Result<NoteFacts, NoteError>,
    /// The note in its section: found where a tool moved the segment. `None`: no sections at all.
    pub(crate) section_note: Option<Result<NoteFacts, NoteError>>,
    /// The segment of the note is within a part that is loaded, so nothing may strip it.
    pub(crate) is_note_loaded: bool,
    pub(crate) exported: Vec<String>,
    pub(crate) undefined: Vec<Undefined>,
    pub(crate) needed: Vec<String>,
    /// Directories that the file itself names for its libraries.
    pub(crate) run_paths: Vec<String>,
    pub(crate) has_text_relocations: bool,
    pub(crate) has_static_tls: bool,
}

/// What a note says, as far as it can be compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NoteFacts {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) kind: u8,
    pub(crate) exported_symbols: u16,
    pub(crate) abi: (u16, u16, u16),
    pub(crate) target: String,
}

/// A symbol that another library must have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Undefined {
    pub(crate) name: String,
    pub(crate) is_weak: bool,
}

type Header = FileHeader64<Endianness>;

impl Image {
    /// Reads a file.
    ///
    /// # Errors
    /// `ReadPlugin`, `NotALibrary`.
    pub(crate) fn read(path: &Path) -> Result<Self, Error> {
        let data = fs::read(path).map_err(|source| Error::ReadPlugin {
            path: path.into(),
            source,
        })?;
        Self::parse(&data).map_err(|error| Error::NotALibrary {
            path: path.into(),
            fault: error.to_string(),
        })
    }

    pub(crate) fn parse(data: &[u8]) -> Result<Self, object::read::Error> {
        let header = Header::parse(data)?;
        let endian = header.endian()?;
        let segments = header.program_headers(endian, data)?;
        let (segment_note, is_note_loaded) = segment_note(segments, endian, data);
        let mut image = Self {
            segment_note,
            section_note: section_note(data),
            is_note_loaded,
            exported: Vec::new(),
            undefined: Vec::new(),
            needed: Vec::new(),
            run_paths: Vec::new(),
            has_text_relocations: false,
            has_static_tls: false,
        };
        let file = ElfFile::<Header>::parse(data)?;
        image.read_dynamic(&file)?;
        image.read_symbols(&file)?;
        Ok(image)
    }

    fn read_dynamic(&mut self, file: &ElfFile<'_, Header>) -> Result<(), object::read::Error> {
        let table = file.elf_dynamic_table()?;
        let text = |entry| {
            let bytes = table.string(entry).ok()?;
            Some(String::from_utf8_lossy(bytes).into_owned())
        };
        for entry in table.iter() {
            match entry.tag {
                elf::DT_NEEDED => self.needed.extend(text(entry)),
                elf::DT_RPATH | elf::DT_RUNPATH => {
                    let paths = text(entry).unwrap_or_default();
                    self.run_paths.extend(paths.split(':').map(str::to_owned));
                }
                elf::DT_TEXTREL => self.has_text_relocations = true,
                elf::DT_FLAGS => {
                    self.has_text_relocations |= entry.val & elf::DF_TEXTREL.0 != 0;
                    self.has_static_tls |= entry.val & elf::DF_STATIC_TLS.0 != 0;
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn read_symbols(&mut self, file: &ElfFile<'_, Header>) -> Result<(), object::read::Error> {
        let endian = file.endian();
        let table = file.elf_dynamic_symbol_table();
        for symbol in table.iter() {
            let name = String::from_utf8_lossy(table.symbol_name(endian, symbol)?).into_owned();
            let is_local = symbol.st_bind() == elf::STB_LOCAL;
            if name.is_empty() || is_local {
                continue;
            }
            if symbol.is_undefined(endian) {
                let is_weak = symbol.st_bind() == elf::STB_WEAK;
                self.undefined.push(Undefined { name, is_weak });
            } else {
                self.exported.push(name);
            }
        }
        Ok(())
    }
}

/// The note, and whether it is within a loaded segment.
fn segment_note(
    segments: &[elf::ProgramHeader64<Endianness>],
    endian: Endianness,
    data: &[u8],
) -> (Result<NoteFacts, NoteError>, bool) {
    let mut failure = NoteError::NotFound;
    for segment in segments.iter().filter(|s| s.p_type(endian) == elf::PT_NOTE) {
        let Ok(bytes) = segment.data(endian, data) else {
            continue;
        };
        match parse_note(bytes) {
            Ok(note) => {
                let (at, len) = segment.file_range(endian);
                let is_loaded = segments
                    .iter()
                    .filter(|s| s.p_type(endian) == elf::PT_LOAD)
                    .map(|s| s.file_range(endian))
                    .any(|(start, size)| {
                        start <= at && at.saturating_add(len) <= start.saturating_add(size)
                    });
                return (Ok(facts(&note)), is_loaded);
            }
            Err(NoteError::NotFound) => {}
            Err(error) => failure = error,
        }
    }
    (Err(failure), false)
}

fn section_note(data: &[u8]) -> Option<Result<NoteFacts, NoteError>> {
    let file = ElfFile::<Header>::parse(data).ok()?;
    file.sections().next()?;
    let section = file.section_by_name(NOTE_SECTION);
    let bytes = section.and_then(|section| section.data().ok());
    Some(match bytes {
        Some(bytes) => parse_note(bytes).map(|note| facts(&note)),
        None => Err(NoteError::NotFound),
    })
}

fn facts(note: &stepmesh_abi::note::Note<'_>) -> NoteFacts {
    NoteFacts {
        name: note.name.into(),
        version: note.version.into(),
        kind: note.kind,
        exported_symbols: note.exported_symbols,
        abi: (note.abi_major, note.abi_min_minor, note.abi_max_minor),
        target: note.target.into(),
    }
}
