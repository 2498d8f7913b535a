//! Text in fixed fields of the ABI's structs.

use core::ffi::c_char;

/// The text as a fixed field: cut at a character boundary, NUL-padded, with at least one NUL.
#[must_use]
pub fn text_field<const N: usize>(text: &str) -> [c_char; N] {
    let len = text.floor_char_boundary(N.saturating_sub(1));
    let mut field = [0; N];
    for (to, from) in field.iter_mut().zip(&text.as_bytes()[..len]) {
        *to = c_char::from_ne_bytes([*from]);
    }
    field
}
