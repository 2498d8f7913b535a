//! Compiled code as bytes, beside the graph that the kit keeps with it: what the compiler made, and the
//! digest of the source of which it did. The steps are not written: they are made of the graph again, so
//! that no bytes decide what is launched.
#![forbid(unsafe_code)]

/// What [`read`] takes.
pub(super) fn write(source: &str, image: &[u8]) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    for part in digest(source) {
        out.extend(part.to_le_bytes());
    }
    out.extend((image.len() as u64).to_le_bytes());
    out.extend(image);
    out
}

/// The compiled code in such bytes; `None` if they are none, are cut, or are of another source.
pub(super) fn read<'a>(source: &str, bytes: &'a [u8]) -> Option<&'a [u8]> {
    let mut rest = bytes.strip_prefix(MAGIC)?;
    for part in digest(source) {
        let (found, behind) = rest.split_first_chunk()?;
        if u64::from_le_bytes(*found) != part {
            return None;
        }
        rest = behind;
    }
    let (len, image) = rest.split_first_chunk()?;
    (u64::from_le_bytes(*len) == image.len() as u64).then_some(image)
}

/// Two sums of FNV-1a, the second from another start: equal sources give equal ones in any process.
fn digest(source: &str) -> [u64; 2] {
    [FNV_OFFSET, !FNV_OFFSET].map(|start| {
        source.bytes().fold(start, |sum, byte| {
            (sum ^ u64::from(byte)).wrapping_mul(FNV_PRIME)
        })
    })
}

/// First bytes, with the version of the form.
const MAGIC: &[u8] = b"SMGPU\x01";
const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0000_0100_0000_01b3;

#[cfg(test)]
mod tests {
    //! What is no image is not taken for one.

    use super::{read, write};

    #[test]
    fn code_comes_back_for_its_own_source_alone() {
        let bytes = write("source", b"code");
        assert_eq!(read("source", &bytes), Some(&b"code"[..]));
        assert_eq!(read("another", &bytes), None);
        assert_eq!(read("", &write("", b"")), Some(&b""[..]));
    }

    #[test]
    fn what_was_cut_or_changed_is_refused() {
        let bytes = write("source", b"code");
        for len in 0..bytes.len() {
            assert_eq!(read("source", &bytes[..len]), None, "{len} bytes");
        }
        for at in 0..bytes.len() - b"code".len() {
            let mut bytes = bytes.clone();
            bytes[at] ^= 1;
            assert_eq!(read("source", &bytes), None, "byte {at}");
        }
        let longer = [&bytes[..], b"more"].concat();
        assert_eq!(read("source", &longer), None);
    }
}
