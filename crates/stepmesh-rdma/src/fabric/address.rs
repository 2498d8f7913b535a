//! The address of a verbs fabric: that of its control listener behind a tag of its own.

#![forbid(unsafe_code)]

use stepmesh_transport::fabric::Address;

/// Marks the address of a control listener as one of this fabric.
pub(super) fn encode(control: &Address) -> Address {
    let mut out = TAG.to_vec();
    out.extend_from_slice(&control.0);
    Address(out)
}

/// The address of the control listener, or nothing when this is no address of this fabric. What
/// follows the tag is checked by the fabric that connects to it.
pub(super) fn decode(address: &Address) -> Option<Address> {
    let control = address.0.strip_prefix(&TAG)?;
    Some(Address(control.to_vec()))
}

/// Fabric and version of the address.
const TAG: [u8; 5] = *b"rdma1";

#[cfg(test)]
mod tests {
    //! Round trip, and what is no address.

    use super::{decode, encode};
    use stepmesh_transport::fabric::Address;

    #[test]
    fn an_address_comes_back_and_anothers_does_not() {
        let control = Address(b"tcp1 and so on".to_vec());
        assert_eq!(decode(&encode(&control)), Some(control.clone()));
        for other in [control, Address(Vec::new()), Address(b"rdma2".to_vec())] {
            assert_eq!(decode(&other), None, "{other:?}");
        }
    }
}
