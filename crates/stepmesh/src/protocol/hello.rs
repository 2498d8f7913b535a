//! What the two sides of a connection say of themselves before anything else.

use serde::{Deserialize, Serialize};

use crate::protocol::wire::WireError;
use crate::role::Member;

/// Who is calling, and by what right.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hello {
    magic: [u8; 4],
    version: u16,
    pub(crate) member: Member,
    /// The mesh that it belongs to: chosen by the scheduler when it starts.
    pub(crate) mesh: u64,
    /// A digest of the mesh's token.
    pub(crate) token: [u8; 32],
}

impl Hello {
    pub(crate) fn new(member: Member, mesh: u64, token: [u8; 32]) -> Self {
        Self {
            magic: MAGIC,
            version: VERSION,
            member,
            mesh,
            token,
        }
    }

    /// The bytes that travel; see `HELLO_LEN_BYTES_MAX` of the transport.
    pub(crate) fn encode(&self) -> Vec<u8> {
        postcard::to_stdvec(self).unwrap_or_default()
    }

    /// Reads a hello and checks that it comes from a member of this mesh.
    ///
    /// # Errors
    /// Why the other side is turned away.
    pub(crate) fn check(bytes: &[u8], mesh: u64, token: &[u8; 32]) -> Result<Self, WireError> {
        let hello: Self =
            postcard::from_bytes(bytes).map_err(|_| WireError("it does not speak StepMesh"))?;
        if hello.magic != MAGIC {
            return Err(WireError("it does not speak StepMesh"));
        }
        if hello.version != VERSION {
            return Err(WireError("it speaks another version of the protocol"));
        }
        if !same_digest(&hello.token, token) {
            return Err(WireError(
                "it does not know the token of this mesh (mesh.token)",
            ));
        }
        if hello.mesh != mesh {
            return Err(WireError("it belongs to another mesh"));
        }
        Ok(hello)
    }
}

/// The digest of a token that is sent in its place: a member that was pointed at the wrong mesh
/// does not hand that mesh its secret.
pub(crate) fn digest(token: &str) -> [u8; 32] {
    use sha2::Digest;
    let mut hasher = sha2::Sha256::new();
    hasher.update(b"stepmesh token\0");
    hasher.update(token.as_bytes());
    hasher.finalize().into()
}

/// Compares in a time that does not depend on where the first difference is.
pub(crate) fn same_digest(a: &[u8; 32], b: &[u8; 32]) -> bool {
    a.iter()
        .zip(b)
        .fold(0, |difference, (a, b)| difference | (a ^ b))
        == 0
}

const MAGIC: [u8; 4] = *b"SMSH";

/// Raised by every change of a message; members of different versions do not talk.
const VERSION: u16 = 1;

#[cfg(test)]
mod tests {
    use super::{Hello, digest};
    use crate::role::{Member, Role};

    #[test]
    fn strangers_are_turned_away_with_the_reason() {
        let member = Member {
            role: Role::Worker,
            rank: 3,
            generation: 1,
        };
        let token = digest("secret");
        let bytes = Hello::new(member, 7, token).encode();
        let hello = Hello::check(&bytes, 7, &token).unwrap();
        assert_eq!(hello.member, member);
        let reason = |bytes: &[u8], mesh, token: &[u8; 32]| {
            Hello::check(bytes, mesh, token).unwrap_err().to_string()
        };
        assert!(reason(&bytes, 8, &token).contains("another mesh"));
        assert!(reason(&bytes, 7, &digest("guess")).contains("token"));
        assert!(reason(&bytes[..9], 7, &token).contains("does not speak"));
        assert!(reason(b"GET / HTTP/1.1\r\n\r\n", 7, &token).contains("does not speak"));
        assert!(reason(b"", 7, &token).contains("does not speak"));
    }

    #[test]
    fn hello_fits_into_what_a_fabric_carries() {
        let member = Member {
            role: Role::Worker,
            rank: u32::MAX,
            generation: u32::MAX,
        };
        let bytes = Hello::new(member, u64::MAX, [255; 32]).encode();
        assert!(bytes.len() <= stepmesh_transport::fabric::HELLO_LEN_BYTES_MAX);
        assert!(!bytes.is_empty());
    }
}
