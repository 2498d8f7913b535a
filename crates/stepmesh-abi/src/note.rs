//! The ELF note by which a host knows a plugin before any of its code runs: its layout, a `const`
//! builder and a parser that trusts nothing. Finding the note in a file lives in stepmesh-core.

use core::fmt;
use core::mem::{offset_of, size_of};

use crate::header::{SM_ABI_MAJOR, SM_ABI_MINOR};

/// What a plugin says about itself in its note.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoteParams<'a> {
    /// Major version of the ABI.
    pub abi_major: u16,
    /// Oldest minor version of a host that the plugin works with.
    pub abi_min_minor: u16,
    /// Minor version that the plugin was built with. A newer host is fine.
    pub abi_max_minor: u16,
    /// Symbols the plugin exports, checked by the tools that build it.
    pub exported_symbols: u16,
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
    /// The higher wins between plugins of one name or alias.
    pub priority: i32,
    /// Name by which the backend is chosen: lower case letters, digits, `-` and `_`.
    pub name: &'a str,
    /// More names, separated by commas, without regard to case (`GPU`). May be empty.
    pub aliases: &'a str,
    /// Version of the plugin.
    pub version: &'a str,
    /// Target triple the plugin was built for.
    pub target: &'a str,
}

impl<'a> NoteParams<'a> {
    /// The note of a plugin of this build and target, of the kind CPU, without aliases.
    #[must_use]
    pub const fn new(name: &'a str, version: &'a str) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "4 or 8")]
        let pointer_width = size_of::<usize>() as u8;
        Self {
            abi_major: SM_ABI_MAJOR,
            abi_min_minor: 0,
            abi_max_minor: SM_ABI_MINOR,
            exported_symbols: 1,
            kind: SM_KIND_CPU,
            pointer_width,
            panic_strategy: SM_PANIC_NONE,
            sanitizer: 0,
            flags: 0,
            priority: 0,
            name,
            aliases: "",
            version,
            target: TARGET_TRIPLE,
        }
    }
}

/// A parsed note. The texts point into the bytes that were parsed.
pub type Note<'a> = NoteParams<'a>;

/// Why bytes are not the note of a plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NoteError {
    /// No note of the owner `StepMesh` and type 1 is there.
    NotFound,
    /// A note claims more bytes than there are.
    Truncated {
        /// Where the note starts.
        offset: usize,
    },
    /// The fixed part is shorter than that of version 1.
    FixedPartTooShort {
        /// Its length in bytes, as the note says.
        len: usize,
    },
    /// A text is not where its length says.
    TextOutOfBounds {
        /// Which text.
        field: &'static str,
    },
    /// A text is longer than a host accepts.
    TextTooLong {
        /// Which text.
        field: &'static str,
        /// Its length in bytes.
        len: usize,
    },
    /// A text is not UTF-8 or has control characters.
    TextInvalid {
        /// Which text.
        field: &'static str,
    },
    /// The name is empty or has other than lower case letters, digits, `-` and `_`.
    NameInvalid,
    /// The oldest minor version is newer than the newest.
    VersionRangeInvalid {
        /// Oldest minor version.
        min: u16,
        /// Newest minor version.
        max: u16,
    },
    /// More than one note of the owner `StepMesh` and type 1.
    Duplicate,
}

impl fmt::Display for NoteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound => write!(f, "no note of the owner `StepMesh` and type 1"),
            Self::Truncated { offset } => {
                write!(
                    f,
                    "the note at byte {offset} claims more bytes than there are"
                )
            }
            Self::FixedPartTooShort { len } => write!(
                f,
                "the fixed part of the note has {len} bytes, at least {NOTE_FIXED_LEN} are needed"
            ),
            Self::TextOutOfBounds { field } => {
                write!(f, "the {field} in the note reaches beyond its end")
            }
            Self::TextTooLong { field, len } => {
                write!(
                    f,
                    "the {field} in the note has {len} bytes, too many to be true"
                )
            }
            Self::TextInvalid { field } => {
                write!(f, "the {field} in the note is not printable utf-8")
            }
            Self::NameInvalid => write!(
                f,
                "the name in the note is empty or has other than lower case letters, digits, `-` \
                 and `_`"
            ),
            Self::VersionRangeInvalid { min, max } => write!(
                f,
                "the note's oldest minor version {min} is newer than its newest {max}"
            ),
            Self::Duplicate => write!(f, "more than one note of the owner `StepMesh`"),
        }
    }
}

impl core::error::Error for NoteError {}

/// The note as it lies in the section: aligned as the ELF specification wants it.
#[repr(C, align(4))]
#[derive(Clone, Copy, Debug)]
pub struct NoteSection<const N: usize>(pub [u8; N]);

/// Header of an ELF note, for authors in C. All numbers are little-endian.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SmNoteHeader {
    /// 9: the owner with its NUL.
    pub name_len: u32,
    /// Bytes of the description.
    pub desc_len: u32,
    /// `SM_NOTE_TYPE`.
    pub note_type: u32,
    /// `StepMesh` and NULs.
    pub owner: [u8; 12],
}

/// Fixed part of the note's description, for authors in C. All numbers are little-endian. The
/// texts follow at `struct_size`: name, aliases, version and target, without gaps.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SmNoteDesc {
    /// Bytes of the fixed part.
    pub struct_size: u32,
    /// Major version of the ABI.
    pub abi_major: u16,
    /// Oldest minor version of a host that the plugin works with.
    pub abi_min_minor: u16,
    /// Minor version that the plugin was built with.
    pub abi_max_minor: u16,
    /// Symbols the plugin exports.
    pub exported_symbols: u16,
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
    /// The higher wins between plugins of one name or alias.
    pub priority: i32,
    /// Bytes of the name.
    pub plugin_name_len: u16,
    /// Bytes of the aliases.
    pub aliases_len: u16,
    /// Bytes of the version.
    pub version_len: u16,
    /// Bytes of the target triple.
    pub target_len: u16,
    /// Zero.
    pub reserved: u32,
}

/// Length in bytes of the note that [`note_bytes`] builds, for the array's type.
#[must_use]
pub const fn note_len(params: &NoteParams<'_>) -> usize {
    NOTE_HEADER_LEN + desc_len(params).next_multiple_of(NOTE_ALIGN)
}

/// Builds a note.
///
/// # Panics
/// When `N` is not [`note_len`], or a text is longer than the parser accepts; in a constant that
/// is a compile error.
#[must_use]
pub const fn note_bytes<const N: usize>(params: &NoteParams<'_>) -> [u8; N] {
    assert!(
        N == note_len(params),
        "the array must be note_len(params) long"
    );
    assert!(
        name_is_valid(params.name.as_bytes()),
        "name: lower case letters, digits, - and _"
    );
    assert!(params.name.len() <= TEXT_LEN_MAX && params.aliases.len() <= TEXT_LEN_MAX);
    assert!(params.version.len() <= TEXT_LEN_MAX && params.target.len() <= TEXT_LEN_MAX);
    let out = [0; N];
    let out = put(out, 0, &u32_le(OWNER.len()));
    let out = put(out, 4, &u32_le(desc_len(params)));
    let out = put(out, 8, &SM_NOTE_TYPE.to_le_bytes());
    let out = put(out, 12, OWNER);
    let at = NOTE_HEADER_LEN;
    let out = put(out, at, &u32_le(NOTE_FIXED_LEN));
    let out = put(out, at + 4, &params.abi_major.to_le_bytes());
    let out = put(out, at + 6, &params.abi_min_minor.to_le_bytes());
    let out = put(out, at + 8, &params.abi_max_minor.to_le_bytes());
    let out = put(out, at + 10, &params.exported_symbols.to_le_bytes());
    let bytes = [
        params.kind,
        params.pointer_width,
        params.panic_strategy,
        params.sanitizer,
    ];
    let out = put(out, at + 12, &bytes);
    let out = put(out, at + 16, &params.flags.to_le_bytes());
    let out = put(out, at + 20, &params.priority.to_le_bytes());
    let out = put(out, at + 24, &u16_le(params.name.len()));
    let out = put(out, at + 26, &u16_le(params.aliases.len()));
    let out = put(out, at + 28, &u16_le(params.version.len()));
    let out = put(out, at + 30, &u16_le(params.target.len()));
    let at = at + NOTE_FIXED_LEN;
    let out = put(out, at, params.name.as_bytes());
    let at = at + params.name.len();
    let out = put(out, at, params.aliases.as_bytes());
    let at = at + params.aliases.len();
    let out = put(out, at, params.version.as_bytes());
    let at = at + params.version.len();
    put(out, at, params.target.as_bytes())
}

/// Finds and reads the plugin's note in the bytes of a `PT_NOTE` segment or a note section, which
/// may hold the notes of others too.
///
/// Any bytes are fine as input: the answer is a note whose texts are short, printable UTF-8, or the
/// reason why not. Whether this host can use the plugin (major version, target, kind) is not
/// judged here.
///
/// # Errors
/// [`NoteError`], which names the fault.
pub fn parse_note(segment: &[u8]) -> Result<Note<'_>, NoteError> {
    let mut found = None;
    let mut offset = 0;
    // Each round moves on by at least the 12 bytes of a header, so the loop ends.
    while offset < segment.len() && segment.len() - offset >= ELF_NOTE_WORDS_LEN {
        let truncated = NoteError::Truncated { offset };
        let name_len = read_len(segment, offset).ok_or(truncated)?;
        let desc_len = read_len(segment, offset + 4).ok_or(truncated)?;
        let note_type = read_u32(segment, offset + 8).ok_or(truncated)?;
        let name_at = offset + ELF_NOTE_WORDS_LEN;
        let name = slice(segment, name_at, name_len).ok_or(truncated)?;
        let desc_at = aligned_end(name_at, name_len).ok_or(truncated)?;
        let desc = slice(segment, desc_at, desc_len).ok_or(truncated)?;
        offset = aligned_end(desc_at, desc_len).ok_or(truncated)?;
        if name == OWNER && note_type == SM_NOTE_TYPE {
            if found.is_some() {
                return Err(NoteError::Duplicate);
            }
            found = Some(parse_desc(desc)?);
        }
    }
    found.ok_or(NoteError::NotFound)
}

/// Reads the description of a note whose owner and type were checked.
fn parse_desc(desc: &[u8]) -> Result<Note<'_>, NoteError> {
    let short = NoteError::FixedPartTooShort { len: desc.len() };
    let fixed_len = read_len(desc, 0).ok_or(short)?;
    if fixed_len < NOTE_FIXED_LEN {
        return Err(NoteError::FixedPartTooShort { len: fixed_len });
    }
    let u16_at = |at| read_u16(desc, at).ok_or(short);
    let u32_at = |at| read_u32(desc, at).ok_or(short);
    let u8_at = |at: usize| desc.get(at).copied().ok_or(short);
    let mut at = fixed_len;
    let mut text = |field, len_at| {
        let len = usize::from(read_u16(desc, len_at).ok_or(short)?);
        if len > TEXT_LEN_MAX {
            return Err(NoteError::TextTooLong { field, len });
        }
        let bytes = slice(desc, at, len).ok_or(NoteError::TextOutOfBounds { field })?;
        at += len;
        let text = core::str::from_utf8(bytes).map_err(|_| NoteError::TextInvalid { field })?;
        if text.chars().any(char::is_control) {
            return Err(NoteError::TextInvalid { field });
        }
        Ok(text)
    };
    let name = text("name", 24)?;
    let aliases = text("aliases", 26)?;
    let version = text("version", 28)?;
    let target = text("target", 30)?;
    if !name_is_valid(name.as_bytes()) {
        return Err(NoteError::NameInvalid);
    }
    let (min, max) = (u16_at(6)?, u16_at(8)?);
    if min > max {
        return Err(NoteError::VersionRangeInvalid { min, max });
    }
    Ok(Note {
        abi_major: u16_at(4)?,
        abi_min_minor: min,
        abi_max_minor: max,
        exported_symbols: u16_at(10)?,
        kind: u8_at(12)?,
        pointer_width: u8_at(13)?,
        panic_strategy: u8_at(14)?,
        sanitizer: u8_at(15)?,
        flags: u32_at(16)?,
        priority: u32_at(20)?.cast_signed(),
        name,
        aliases,
        version,
        target,
    })
}

const fn desc_len(params: &NoteParams<'_>) -> usize {
    NOTE_FIXED_LEN
        + params.name.len()
        + params.aliases.len()
        + params.version.len()
        + params.target.len()
}

const fn name_is_valid(name: &[u8]) -> bool {
    let mut idx = 0;
    while idx < name.len() {
        if !matches!(name[idx], b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_') {
            return false;
        }
        idx += 1;
    }
    !name.is_empty()
}

const fn put<const N: usize>(mut out: [u8; N], at: usize, bytes: &[u8]) -> [u8; N] {
    let mut idx = 0;
    while idx < bytes.len() {
        out[at + idx] = bytes[idx];
        idx += 1;
    }
    out
}

const fn u32_le(len: usize) -> [u8; 4] {
    assert!(len <= u32::MAX as usize);
    #[expect(clippy::cast_possible_truncation, reason = "checked on the line above")]
    let len = len as u32;
    len.to_le_bytes()
}

const fn u16_le(len: usize) -> [u8; 2] {
    assert!(len <= u16::MAX as usize);
    #[expect(clippy::cast_possible_truncation, reason = "checked on the line above")]
    let len = len as u16;
    len.to_le_bytes()
}

fn slice(bytes: &[u8], at: usize, len: usize) -> Option<&[u8]> {
    bytes.get(at..at.checked_add(len)?)
}

fn read_u16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(slice(bytes, at, 2)?.try_into().ok()?))
}

fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(slice(bytes, at, 4)?.try_into().ok()?))
}

fn read_len(bytes: &[u8], at: usize) -> Option<usize> {
    usize::try_from(read_u32(bytes, at)?).ok()
}

fn aligned_end(at: usize, len: usize) -> Option<usize> {
    at.checked_add(len)?.checked_next_multiple_of(NOTE_ALIGN)
}

/// Name of the section. The linker makes a `PT_NOTE` segment of it, which survives `strip`.
pub const NOTE_SECTION: &str = ".note.stepmesh";
/// Type of the note within its owner; another layout gets another number.
pub const SM_NOTE_TYPE: u32 = 1;

/// Kind: the host's own processor.
pub const SM_KIND_CPU: u8 = 1;
/// Kind: a GPU.
pub const SM_KIND_GPU: u8 = 2;
/// Kind: another accelerator.
pub const SM_KIND_ACCELERATOR: u8 = 3;

/// Panic strategy: the plugin's language has none.
pub const SM_PANIC_NONE: u8 = 0;
/// Panic strategy: panics unwind and are caught at the boundary.
pub const SM_PANIC_UNWIND: u8 = 1;
/// Panic strategy: a panic ends the process.
pub const SM_PANIC_ABORT: u8 = 2;

/// Sanitizer bit: address.
pub const SM_SANITIZER_ADDRESS: u8 = 1 << 0;
/// Sanitizer bit: thread.
pub const SM_SANITIZER_THREAD: u8 = 1 << 1;
/// Sanitizer bit: memory.
pub const SM_SANITIZER_MEMORY: u8 = 1 << 2;

/// Note flag: the plugin has `stepmesh.lazy.v1`.
pub const SM_NOTE_LAZY: u32 = 1 << 0;
/// Note flag: the plugin starts threads once it is open.
pub const SM_NOTE_THREADS: u32 = 1 << 1;
/// Note flag: instances share state of the process, so one failing may harm another.
pub const SM_NOTE_PROCESS_STATE: u32 = 1 << 2;

/// Target triple of this build, as far as the ABI tells targets apart.
pub const TARGET_TRIPLE: &str = if cfg!(not(target_os = "linux")) {
    "unknown"
} else if cfg!(all(target_arch = "x86_64", target_env = "gnu")) {
    "x86_64-unknown-linux-gnu"
} else if cfg!(all(target_arch = "x86_64", target_env = "musl")) {
    "x86_64-unknown-linux-musl"
} else if cfg!(all(target_arch = "aarch64", target_env = "gnu")) {
    "aarch64-unknown-linux-gnu"
} else if cfg!(all(target_arch = "aarch64", target_env = "musl")) {
    "aarch64-unknown-linux-musl"
} else {
    "unknown"
};

/// Longest text that a note may hold, in bytes: enough for any name, short enough for a message.
pub const TEXT_LEN_MAX: usize = 128;

/// The owner, with its NUL as ELF wants it.
const OWNER: &[u8] = b"StepMesh\0";
/// Bytes of the three words that start an ELF note.
const ELF_NOTE_WORDS_LEN: usize = 12;
/// Bytes before the description: three words and the owner, padded.
const NOTE_HEADER_LEN: usize = 24;
/// Bytes of the fixed part of version 1.
const NOTE_FIXED_LEN: usize = 36;
/// Alignment of the parts of a note.
const NOTE_ALIGN: usize = 4;

const _: () = assert!(size_of::<SmNoteHeader>() == NOTE_HEADER_LEN);
const _: () = assert!(size_of::<SmNoteDesc>() == NOTE_FIXED_LEN);
const _: () = assert!(offset_of!(SmNoteDesc, plugin_name_len) == 24);
