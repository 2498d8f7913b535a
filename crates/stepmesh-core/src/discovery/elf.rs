//! Reads the note of an ELF file without mapping or running it. The file is hostile.
#![forbid(unsafe_code)]

use std::fs::File;

use object::elf::{self, FileHeader64};
use object::read::elf::{Dyn, ElfFile, FileHeader, ProgramHeader, SectionHeader};
use object::{Endianness, ReadCache, ReadRef};
use stepmesh_abi::note::{NOTE_SECTION, NoteError, TARGET_TRIPLE, parse_note};
use stepmesh_abi::{SM_ABI_MAJOR, SM_ABI_MINOR};

use super::Reason;

/// What a plugin's note says; see `stepmesh_abi::note`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Note {
    /// Major version of the ABI.
    pub abi_major: u16,
    /// Oldest minor version of a host that the plugin works with.
    pub abi_min_minor: u16,
    /// Minor version that the plugin was built with.
    pub abi_max_minor: u16,
    /// `SM_KIND_*`.
    pub kind: u8,
    /// Bytes of a pointer.
    pub pointer_width: u8,
    /// `SM_PANIC_*`.
    pub panic_strategy: u8,
    /// `SM_SANITIZER_*` bits.
    pub sanitizer: u8,
    /// `SM_NOTE_*` bits.
    pub flags: u32,
    /// The higher wins.
    pub priority: i32,
    /// Name of the backend.
    pub name: String,
    /// Other names, such as `GPU`.
    pub aliases: Vec<String>,
    /// Version of the plugin.
    pub version: String,
    /// Target triple.
    pub target: String,
}

/// What is of interest in a plugin file.
pub(super) struct Image {
    /// The note, or why there is none.
    pub(super) note: Result<Note, Reason>,
    /// Identity of the build; empty if the linker wrote none.
    pub(super) build_id: Vec<u8>,
}

/// Reads what is of interest in a plugin file.
///
/// # Errors
/// `NotALibrary`, `WrongMachine`, `StaticTls`.
pub(super) fn read(file: &File) -> Result<Image, Reason> {
    read_from(&ReadCache::new(file))
}

/// The same from what stands for the file.
pub(super) fn read_from<'data, R: ReadRef<'data>>(data: R) -> Result<Image, Reason> {
    let header = FileHeader64::<Endianness>::parse(data).map_err(not_a_library)?;
    let endian = header.endian().map_err(not_a_library)?;
    let machine = header.e_machine(endian);
    if machine.0 != MACHINE || endian != Endianness::Little {
        return Err(Reason::WrongMachine {
            machine: format!("ELF machine {}", machine.0),
        });
    }
    if header.e_type(endian) != elf::ET_DYN {
        return Err(Reason::NotALibrary {
            fault: "it is not a dynamic ELF object".into(),
        });
    }
    let segments = header
        .program_headers(endian, data)
        .map_err(not_a_library)?;
    check_segments(segments, endian, data)?;
    check_static_tls(segments, endian, data)?;
    let note = match segment_note(segments, endian, data) {
        Err(Reason::Note(NoteError::NotFound)) => section_note(data),
        other => other,
    };
    Ok(Image {
        note,
        build_id: build_id(segments, endian, data),
    })
}

impl Note {
    /// Whether this host can use the plugin.
    pub(crate) fn check(&self) -> Result<(), Reason> {
        if self.abi_major != SM_ABI_MAJOR {
            return Err(Reason::WrongMajor {
                plugin: self.abi_major,
                host: SM_ABI_MAJOR,
            });
        }
        if self.abi_min_minor > SM_ABI_MINOR {
            let needed = self.abi_min_minor;
            return Err(Reason::HostTooOld {
                needed,
                host: SM_ABI_MINOR,
            });
        }
        let is_same_width = usize::from(self.pointer_width) == size_of::<usize>();
        if self.target != TARGET_TRIPLE || !is_same_width {
            let plugin = format!(
                "{} ({} bit)",
                self.target,
                8 * u32::from(self.pointer_width)
            );
            let host = format!("{TARGET_TRIPLE} ({} bit)", usize::BITS);
            return Err(Reason::WrongTarget { plugin, host });
        }
        if self.sanitizer != 0 {
            return Err(Reason::Sanitizer {
                bits: self.sanitizer,
            });
        }
        Ok(())
    }
}

type Segment = elf::ProgramHeader64<Endianness>;

/// A segment beyond the end of the file would be a bus error inside dlopen.
fn check_segments<'data, R: ReadRef<'data>>(
    segments: &[Segment],
    endian: Endianness,
    data: R,
) -> Result<(), Reason> {
    let truncated = || Reason::NotALibrary {
        fault: "the file is shorter than its parts".into(),
    };
    let file_len = data.len().map_err(|()| truncated())?;
    let ends = segments
        .iter()
        .filter(|segment| segment.p_type(endian) != elf::PT_NULL)
        .map(|segment| {
            let (offset, len) = segment.file_range(endian);
            offset.checked_add(len)
        });
    for end in ends {
        if end.is_none_or(|end| end > file_len) {
            return Err(truncated());
        }
    }
    Ok(())
}

/// Libraries with initial-exec TLS share a small reserve of the dynamic linker's.
fn check_static_tls<'data, R: ReadRef<'data>>(
    segments: &[Segment],
    endian: Endianness,
    data: R,
) -> Result<(), Reason> {
    let mut is_static = false;
    for segment in segments {
        let entries = segment
            .dynamic(endian, data)
            .map_err(not_a_library)?
            .unwrap_or_default();
        is_static |= entries.iter().any(|entry| {
            entry.tag(endian) == elf::DT_FLAGS && entry.val(endian) & elf::DF_STATIC_TLS.0 != 0
        });
    }
    let tls = segments
        .iter()
        .filter(|segment| segment.p_type(endian) == elf::PT_TLS);
    let bytes: u64 = tls
        .map(|segment| segment.p_memsz(endian))
        .fold(0, u64::saturating_add);
    if is_static && bytes > STATIC_TLS_LEN_MAX_BYTES {
        return Err(Reason::StaticTls {
            bytes,
            max: STATIC_TLS_LEN_MAX_BYTES,
        });
    }
    Ok(())
}

/// The note as a segment: survives `strip`.
fn segment_note<'data, R: ReadRef<'data>>(
    segments: &[Segment],
    endian: Endianness,
    data: R,
) -> Result<Note, Reason> {
    let mut failure = NoteError::NotFound;
    for segment in segments
        .iter()
        .filter(|segment| segment.p_type(endian) == elf::PT_NOTE)
    {
        if segment.p_filesz(endian) > NOTE_LEN_MAX_BYTES {
            continue;
        }
        let bytes = segment
            .data(endian, data)
            .map_err(|()| Reason::NotALibrary {
                fault: "a note lies outside the file".into(),
            })?;
        match parse_note(bytes) {
            Ok(note) => return Ok(owned(&note)),
            Err(NoteError::NotFound) => {}
            // Perhaps another owner's oddity: it counts only when ours is nowhere.
            Err(error) => failure = error,
        }
    }
    Err(failure.into())
}

/// The note as a section: survives tools that move the segment.
fn section_note<'data, R: ReadRef<'data>>(data: R) -> Result<Note, Reason> {
    let none = || Reason::Note(NoteError::NotFound);
    let file = ElfFile::<FileHeader64<Endianness>, R>::parse(data).map_err(|_| none())?;
    let endian = file.endian();
    let table = file.elf_section_table();
    let (_, section) = table
        .section_by_name(endian, NOTE_SECTION.as_bytes())
        .ok_or_else(none)?;
    if section.sh_size(endian) > NOTE_LEN_MAX_BYTES {
        return Err(none());
    }
    let bytes = section.data(endian, data).map_err(|_| none())?;
    Ok(owned(&parse_note(bytes)?))
}

fn build_id<'data, R: ReadRef<'data>>(
    segments: &[Segment],
    endian: Endianness,
    data: R,
) -> Vec<u8> {
    for segment in segments {
        let is_small = segment.p_filesz(endian) <= NOTE_LEN_MAX_BYTES;
        let Some(mut notes) = segment
            .notes(endian, data)
            .ok()
            .flatten()
            .filter(|_| is_small)
        else {
            continue;
        };
        while let Ok(Some(note)) = notes.next() {
            if note.name() == elf::ELF_NOTE_GNU && note.n_type(endian) == elf::NT_GNU_BUILD_ID {
                return note.desc().to_vec();
            }
        }
    }
    Vec::new()
}

fn owned(note: &stepmesh_abi::note::Note<'_>) -> Note {
    let aliases = note
        .aliases
        .split(',')
        .map(str::trim)
        .filter(|alias| !alias.is_empty());
    Note {
        abi_major: note.abi_major,
        abi_min_minor: note.abi_min_minor,
        abi_max_minor: note.abi_max_minor,
        kind: note.kind,
        pointer_width: note.pointer_width,
        panic_strategy: note.panic_strategy,
        sanitizer: note.sanitizer,
        flags: note.flags,
        priority: note.priority,
        name: note.name.into(),
        aliases: aliases.map(str::to_owned).collect(),
        version: note.version.into(),
        target: note.target.into(),
    }
}

fn not_a_library(error: object::read::Error) -> Reason {
    Reason::NotALibrary {
        fault: error.to_string(),
    }
}

/// `e_machine` of this host.
const MACHINE: u16 = if cfg!(target_arch = "x86_64") {
    elf::EM_X86_64.0
} else if cfg!(target_arch = "aarch64") {
    elf::EM_AARCH64.0
} else {
    elf::EM_NONE.0
};
/// Far above any true note (a few hundred bytes), far below what would hurt to read.
const NOTE_LEN_MAX_BYTES: u64 = 64 << 10;
/// glibc reserves 1664 bytes for all late libraries together; one may take a third.
const STATIC_TLS_LEN_MAX_BYTES: u64 = 512;
