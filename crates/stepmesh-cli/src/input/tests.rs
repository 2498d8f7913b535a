//! Good and bad safetensors files.

use std::path::{Path, PathBuf};

use safetensors::Dtype;
use safetensors::tensor::{TensorView, serialize_to_file};

use super::{Input, InputError};

/// The layer that comes with the source.
pub(crate) fn layer_path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../stepmesh/examples/data/minilm-ffn0.safetensors")
}

#[test]
fn a_matrix_has_the_shape_and_values_of_the_file() {
    let input = Input::open(&layer_path()).unwrap();
    let matrix = input.matrix("w1", None, Some(384)).unwrap();
    assert_eq!(matrix.dim(), (1536, 384));
    assert!(matrix.iter().all(|value| value.is_finite()));
    assert_eq!(input.vector("b1", Some(1536)).unwrap().len(), 1536);
}

#[test]
fn a_missing_file_is_named_with_a_remedy() {
    let error = Input::open(Path::new("/nowhere/x.safetensors")).unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("/nowhere/x.safetensors") && text.contains("--input"),
        "{text}"
    );
}

#[test]
fn a_damaged_file_is_refused_wherever_it_is_cut() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cut.safetensors");
    let bytes = std::fs::read(layer_path()).unwrap();
    for len in [0, 4, 8, 100, 500, bytes.len() - 1] {
        std::fs::write(&path, &bytes[..len]).unwrap();
        let error = Input::open(&path).unwrap_err();
        assert!(
            matches!(error, InputError::Damaged { .. }),
            "{len}: {error}"
        );
    }
    std::fs::write(&path, b"not a tensor file at all, but long enough").unwrap();
    assert!(matches!(
        Input::open(&path),
        Err(InputError::Damaged { .. })
    ));
}

#[test]
fn a_missing_tensor_is_told_with_those_that_are_there() {
    let dir = tempfile::tempdir().unwrap();
    let input = file_with(dir.path(), Dtype::F32, &[2, 3]);
    let text = input.matrix("w1", None, None).unwrap_err().to_string();
    assert!(
        text.contains("no tensor `w1`") && text.contains("x"),
        "{text}"
    );
}

#[test]
fn another_shape_is_told_with_the_expected_one() {
    let dir = tempfile::tempdir().unwrap();
    let input = file_with(dir.path(), Dtype::F32, &[2, 3]);
    let text = input.matrix("x", None, Some(4)).unwrap_err().to_string();
    assert!(
        text.contains("`x` is F32 [2, 3], expected F32 [any, 4]"),
        "{text}"
    );
    let text = input.vector("x", Some(6)).unwrap_err().to_string();
    assert!(text.contains("[2, 3], expected F32 [6]"), "{text}");
}

#[test]
fn another_dtype_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let input = file_with(dir.path(), Dtype::I32, &[2, 3]);
    let text = input.matrix("x", None, None).unwrap_err().to_string();
    assert!(
        text.contains("`x` is I32 [2, 3], expected F32 [any, any]"),
        "{text}"
    );
}

/// A file with one tensor `x` of four-byte elements.
fn file_with(dir: &Path, dtype: Dtype, shape: &[usize]) -> Input {
    let path = dir.join("x.safetensors");
    let bytes = vec![0; 4 * shape.iter().product::<usize>()];
    let view = TensorView::new(dtype, shape.into(), &bytes).unwrap();
    serialize_to_file([("x", view)], None, &path).unwrap();
    Input::open(&path).unwrap()
}
