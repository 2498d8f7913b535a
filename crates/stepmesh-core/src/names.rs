//! The nearest known name to a misspelt one. Shared by the configuration and the registry.
#![forbid(unsafe_code)]

/// The entry of `known` that `name` was most likely meant to be, or `None` when nothing is close.
pub(crate) fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let name = name.to_lowercase();
    known
        .into_iter()
        .map(|candidate| {
            (
                strsim::damerau_levenshtein(&name, &candidate.to_lowercase()),
                candidate,
            )
        })
        .min_by_key(|(distance, _)| *distance)
        .filter(|(distance, candidate)| *distance <= edits_max(&name, candidate))
        .map(|(_, candidate)| candidate)
}

/// One edit for each three letters of the shorter name: `cud` finds `cuda`, `xyz` finds nothing.
fn edits_max(name: &str, candidate: &str) -> usize {
    name.len().min(candidate.len()).div_ceil(EDIT_PER_LETTERS)
}

/// With fewer letters an edit, short unrelated names (`cpu`, `gpu`) would all look alike.
const EDIT_PER_LETTERS: usize = 3;

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn a_misspelt_name_finds_the_known_one_and_an_alien_one_finds_nothing() {
        let known = ["cpu", "cuda", "rocm"];
        assert_eq!(nearest("cdua", known), Some("cuda"));
        assert_eq!(nearest("CUDDA", known), Some("cuda"));
        assert_eq!(nearest("cp", known), Some("cpu"));
        assert_eq!(nearest("tensorflow", known), None);
        assert_eq!(nearest("cpu", []), None);
    }
}
