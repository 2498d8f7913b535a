//! Tensors of a safetensors file, checked for name, dtype and shape. What they mean is not known
//! here.

use std::path::{Path, PathBuf};
use std::{fmt, fs, io};

use ndarray::{Array1, Array2};
use safetensors::{Dtype, SafeTensorError, SafeTensors};

/// A safetensors file in memory.
#[derive(Debug)]
pub(crate) struct Input {
    path: PathBuf,
    bytes: Vec<u8>,
}

/// What is wrong with an input file.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InputError {
    /// It cannot be read.
    #[error("cannot read {}; name an existing safetensors file with --input", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// It is not a safetensors file, or not all of one.
    #[error("{} is not a whole safetensors file; copy or export it again", path.display())]
    Damaged {
        path: PathBuf,
        source: SafeTensorError,
    },
    /// A tensor is not there.
    #[error("{} has no tensor `{tensor}` but {present}; {REMEDY}", path.display())]
    Missing {
        path: PathBuf,
        tensor: &'static str,
        present: String,
    },
    /// A tensor is of another dtype or shape.
    #[error(
        "{}: tensor `{tensor}` is {found_dtype:?} {found:?}, expected F32 {expected}; {REMEDY}",
        path.display()
    )]
    Unfit {
        path: PathBuf,
        tensor: &'static str,
        found_dtype: Dtype,
        found: Vec<usize>,
        expected: Dims,
    },
    /// There are fewer rows than are needed.
    #[error("{}: `ffn_in` has {rows} rows for {workers} workers; run fewer workers", path.display())]
    TooFewRows {
        path: PathBuf,
        rows: usize,
        workers: usize,
    },
    /// No file was named.
    #[error(
        "the handler `{handler}` needs the weights of a layer; name a safetensors file with --input"
    )]
    None { handler: &'static str },
}

/// The dimensions that a tensor must have; `None` fits any.
#[derive(Debug, Clone)]
pub(crate) struct Dims(pub(crate) Vec<Option<usize>>);

impl Input {
    /// Reads a file whole.
    pub(crate) fn open(path: &Path) -> Result<Self, InputError> {
        let bytes = fs::read(path).map_err(|source| InputError::Read {
            path: path.into(),
            source,
        })?;
        let input = Self {
            path: path.into(),
            bytes,
        };
        input.tensors()?;
        Ok(input)
    }

    /// The file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// A matrix of f32.
    pub(crate) fn matrix(
        &self,
        tensor: &'static str,
        rows: Option<usize>,
        columns: Option<usize>,
    ) -> Result<Array2<f32>, InputError> {
        let (shape, values) = self.values(tensor, &Dims(vec![rows, columns]))?;
        let shape = (shape[0], shape[1]);
        Ok(
            Array2::from_shape_vec(shape, values)
                .expect("invariant: the file's length was checked"),
        )
    }

    /// A vector of f32.
    pub(crate) fn vector(
        &self,
        tensor: &'static str,
        len: Option<usize>,
    ) -> Result<Array1<f32>, InputError> {
        let (_, values) = self.values(tensor, &Dims(vec![len]))?;
        Ok(Array1::from_vec(values))
    }

    fn values(
        &self,
        tensor: &'static str,
        expected: &Dims,
    ) -> Result<(Vec<usize>, Vec<f32>), InputError> {
        let tensors = self.tensors()?;
        let Ok(view) = tensors.tensor(tensor) else {
            let mut names = tensors.names();
            names.sort_unstable();
            return Err(InputError::Missing {
                path: self.path.clone(),
                tensor,
                present: if names.is_empty() {
                    "none at all".into()
                } else {
                    names.join(", ")
                },
            });
        };
        if view.dtype() != Dtype::F32 || !expected.fit(view.shape()) {
            return Err(InputError::Unfit {
                path: self.path.clone(),
                tensor,
                found_dtype: view.dtype(),
                found: view.shape().into(),
                expected: expected.clone(),
            });
        }
        let (words, _) = view.data().as_chunks::<4>();
        let values = words.iter().map(|word| f32::from_le_bytes(*word)).collect();
        Ok((view.shape().into(), values))
    }

    fn tensors(&self) -> Result<SafeTensors<'_>, InputError> {
        SafeTensors::deserialize(&self.bytes).map_err(|source| InputError::Damaged {
            path: self.path.clone(),
            source,
        })
    }
}

impl Dims {
    fn fit(&self, shape: &[usize]) -> bool {
        self.0.len() == shape.len()
            && self
                .0
                .iter()
                .zip(shape)
                .all(|(expected, found)| expected.is_none_or(|expected| expected == *found))
    }
}

impl fmt::Display for Dims {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dims = self.0.iter();
        let dims = dims.map(|dim| dim.map_or_else(|| "any".into(), |dim| dim.to_string()));
        write!(f, "[{}]", dims.collect::<Vec<_>>().join(", "))
    }
}

/// What a user can do about a tensor that is not as it must be.
const REMEDY: &str = "a layer is f32 w1 [hidden, width], b1, w2 [width, hidden], b2, ffn_in and \
                      ffn_out [rows, width]";

#[cfg(test)]
pub(crate) mod tests;
