//! Reading and writing of little-endian fields, shared by the packets of the fabrics.

#![forbid(unsafe_code)]

/// Takes fields off the front of untrusted bytes; `None` once they run out.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a>(
    /// What is left.
    pub &'a [u8],
);

impl<'a> Reader<'a> {
    /// The next `len` bytes.
    pub fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(head)
    }

    /// The next bytes as an array.
    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*head)
    }

    /// The next four bytes as a number.
    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    /// The next eight bytes as a number.
    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// `Some` when nothing is left over.
    pub fn end(self) -> Option<()> {
        self.0.is_empty().then_some(())
    }
}
