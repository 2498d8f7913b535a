//! The body of a data packet: one chain. Counts, then the writes, the message, and the bytes of
//! all writes in order. No memory is read or written here.

/// Where one write of a chain goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The receiver's number of the region.
    pub region: u32,
    /// The key under which it was shared.
    pub key: u64,
    /// Start in the region, in bytes.
    pub offset: u64,
    /// Length, in bytes.
    pub len_bytes: u64,
}

/// A chain as it was received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainBody<'a> {
    /// Where the writes go, in order.
    pub targets: Vec<Target>,
    /// The message.
    pub message: &'a [u8],
    /// The bytes of all writes, one after the other; as many as the targets' lengths together.
    pub bytes: &'a [u8],
}

/// Length of the body of such a chain, in bytes, or `None` if no machine could hold it.
pub fn body_len_bytes(targets: &[Target], message: &[u8]) -> Option<usize> {
    let bytes = targets
        .iter()
        .try_fold(0_u64, |sum, target| sum.checked_add(target.len_bytes))?;
    targets
        .len()
        .checked_mul(TARGET_LEN_BYTES)?
        .checked_add(COUNTS_LEN_BYTES)?
        .checked_add(message.len())?
        .checked_add(usize::try_from(bytes).ok()?)
}

/// Appends all of a chain but the bytes of its writes; those the caller appends afterwards.
pub fn encode_head(targets: &[Target], message: &[u8], body: &mut Vec<u8>) {
    body.extend_from_slice(&(targets.len() as u64).to_le_bytes());
    body.extend_from_slice(&(message.len() as u64).to_le_bytes());
    for target in targets {
        body.extend_from_slice(&target.region.to_le_bytes());
        body.extend_from_slice(&target.key.to_le_bytes());
        body.extend_from_slice(&target.offset.to_le_bytes());
        body.extend_from_slice(&target.len_bytes.to_le_bytes());
    }
    body.extend_from_slice(message);
}

/// Reads a chain. Allocates at most for `writes_max` targets.
///
/// # Errors
/// What is wrong, as a phrase.
pub fn decode(
    body: &[u8],
    writes_max: usize,
    message_len_bytes_max: usize,
) -> Result<ChainBody<'_>, &'static str> {
    let mut reader = Reader { rest: body };
    let count = reader.length(writes_max, "more writes than a chain may hold")?;
    let message_len = reader.length(message_len_bytes_max, "a message longer than allowed")?;
    let mut targets = Vec::with_capacity(count);
    let mut bytes_len = 0_u64;
    for _ in 0..count {
        let target = Target {
            region: u32::from_le_bytes(reader.array()?),
            key: u64::from_le_bytes(reader.array()?),
            offset: u64::from_le_bytes(reader.array()?),
            len_bytes: u64::from_le_bytes(reader.array()?),
        };
        bytes_len = bytes_len
            .checked_add(target.len_bytes)
            .ok_or("writes that are too long together")?;
        targets.push(target);
    }
    let (message, bytes) = reader
        .rest
        .split_at_checked(message_len)
        .ok_or("half a chain")?;
    if bytes.len() as u64 != bytes_len {
        return Err("not as many bytes as its writes are long");
    }
    Ok(ChainBody {
        targets,
        message,
        bytes,
    })
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], &'static str> {
        let (head, rest) = self.rest.split_first_chunk::<N>().ok_or("half a chain")?;
        self.rest = rest;
        Ok(*head)
    }

    fn length(&mut self, max: usize, too_long: &'static str) -> Result<usize, &'static str> {
        match usize::try_from(u64::from_le_bytes(self.array()?)) {
            Ok(length) if length <= max => Ok(length),
            _ => Err(too_long),
        }
    }
}

/// Two counts, of writes and of the message's bytes.
const COUNTS_LEN_BYTES: usize = 16;

/// Region, key, offset, length.
const TARGET_LEN_BYTES: usize = 28;
