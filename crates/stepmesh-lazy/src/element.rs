//! Elements and numbers of the host language, and tensors in host memory.

use std::borrow::Cow;

use half::{bf16, f16};
use stepmesh_graph::{DType, Op, Shape, TensorType, float8};

use crate::Error;

/// A type of Rust that is a type of elements.
pub trait Element: Copy + Send + Sync + 'static + sealed::Sealed {
    /// The type of elements.
    const DTYPE: DType;

    /// The bytes of elements, little-endian.
    fn to_bytes(elements: &[Self]) -> Vec<u8>;

    /// The elements of bytes; a rest shorter than an element is left out.
    fn from_bytes(bytes: &[u8]) -> Vec<Self>;
}

/// A number that is not a tensor. In a graph it is a parameter, so that another number is no other
/// graph, unless [`Options::bake_scalars`](crate::Options::bake_scalars) says otherwise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scalar {
    /// A truth value.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// A number with a fraction.
    Float(f64),
}

/// A tensor in host memory: bytes, row-major and little-endian.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostTensor {
    ty: TensorType,
    bytes: Vec<u8>,
}

impl HostTensor {
    /// A tensor of bytes.
    ///
    /// # Errors
    /// `Elements` if there are not as many as the type has.
    pub fn from_bytes(ty: TensorType, bytes: Vec<u8>) -> Result<Self, Error> {
        if bytes.len() != ty.len_bytes() {
            let fault = format!("{ty} has {} bytes, not {}", ty.len_bytes(), bytes.len());
            return Err(Error::elements("host tensor", fault));
        }
        Ok(Self { ty, bytes })
    }

    /// A tensor of elements.
    ///
    /// # Errors
    /// `Elements` if there are not as many as the extents say, `Graph` for extents that cannot be.
    pub fn from_slice<T: Element>(dims: &[usize], elements: &[T]) -> Result<Self, Error> {
        let ty = TensorType::new(T::DTYPE, Shape::new(dims)?)?;
        if elements.len() != ty.shape().element_count() {
            let fault = format!("{} elements for {ty}", elements.len());
            return Err(Error::elements("host tensor", fault));
        }
        Self::from_bytes(ty, T::to_bytes(elements))
    }

    /// Type and shape.
    #[must_use]
    pub fn ty(&self) -> TensorType {
        self.ty
    }

    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The bytes, by value.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// The same in another type, as `cast` converts.
    ///
    /// # Errors
    /// `Graph` if it would be too many bytes.
    pub fn to_dtype(&self, dtype: DType) -> Result<Self, Error> {
        crate::backend::interpret(&Op::Cast { dtype }, std::slice::from_ref(self))
    }

    /// The bytes as a device wants them: of this type, which has the same shape.
    ///
    /// # Errors
    /// `Elements` for another shape; as [`HostTensor::to_dtype`].
    pub fn bytes_as(&self, ty: TensorType) -> Result<Cow<'_, [u8]>, Error> {
        if self.ty.shape() != ty.shape() {
            let fault = format!("{} cannot be made {ty}", self.ty);
            return Err(Error::elements("upload", fault));
        }
        if self.ty.dtype() == ty.dtype() {
            return Ok(Cow::Borrowed(&self.bytes));
        }
        Ok(Cow::Owned(self.to_dtype(ty.dtype())?.into_bytes()))
    }

    /// The elements.
    ///
    /// # Errors
    /// `Elements` if they are of another type.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>, Error> {
        if self.ty.dtype() != T::DTYPE {
            let fault = format!("the tensor is {}, asked for was {}", self.ty, T::DTYPE);
            return Err(Error::elements("read", fault));
        }
        Ok(T::from_bytes(&self.bytes))
    }
}

impl Scalar {
    /// The type it counts as beside tensors: bool, i64 or f32.
    #[must_use]
    pub fn dtype(self) -> DType {
        match self {
            Self::Bool(_) => DType::Bool,
            Self::Int(_) => DType::I64,
            Self::Float(_) => crate::promote::DEFAULT_FLOAT,
        }
    }

    /// Whether it is 0 or 1, of which compilers make more than of other numbers.
    #[must_use]
    pub fn is_special(self) -> bool {
        match self {
            Self::Bool(_) => true,
            Self::Int(value) => value == 0 || value == 1,
            Self::Float(value) => value.to_bits() == 0 || value == 1.0,
        }
    }

    /// The bytes of the number as an element; fractions are cut for integers, what is out of range
    /// wraps, as PyTorch's casts do.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "conversions of numbers are what this is for"
    )]
    pub fn to_element(self, dtype: DType) -> ElementBytes {
        let (float, int) = (self.to_f64(), self.to_i64());
        match dtype {
            DType::F32 => ElementBytes::new(&(float as f32).to_le_bytes()),
            DType::F64 => ElementBytes::new(&float.to_le_bytes()),
            DType::F16 => ElementBytes::new(&f16::from_f64(float).to_le_bytes()),
            DType::BF16 => ElementBytes::new(&bf16::from_f64(float).to_le_bytes()),
            DType::I32 => ElementBytes::new(&(int as i32).to_le_bytes()),
            DType::I64 => ElementBytes::new(&int.to_le_bytes()),
            DType::U8 => ElementBytes::new(&[int as u8]),
            DType::Bool => ElementBytes::new(&[u8::from(self.is_true())]),
            DType::F8E4M3 => ElementBytes::new(&[float8::e4m3_from_f64(float)]),
            DType::F8E5M2 => ElementBytes::new(&[float8::e5m2_from_f64(float)]),
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "as the language converts")]
    fn to_f64(self) -> f64 {
        match self {
            Self::Bool(value) => f64::from(u8::from(value)),
            Self::Int(value) => value as f64,
            Self::Float(value) => value,
        }
    }

    #[expect(clippy::cast_possible_truncation, reason = "as the language converts")]
    fn to_i64(self) -> i64 {
        match self {
            Self::Bool(value) => i64::from(value),
            Self::Int(value) => value,
            Self::Float(value) => value as i64,
        }
    }

    fn is_true(self) -> bool {
        match self {
            Self::Bool(value) => value,
            Self::Int(value) => value != 0,
            Self::Float(value) => value != 0.0,
        }
    }
}

/// The bytes of one element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ElementBytes {
    bytes: [u8; 8],
    len: u8,
}

impl ElementBytes {
    fn new(bytes: &[u8]) -> Self {
        let mut own = [0; 8];
        own[..bytes.len()].copy_from_slice(bytes);
        #[expect(clippy::cast_possible_truncation, reason = "at most 8")]
        let len = bytes.len() as u8;
        Self { bytes: own, len }
    }

    /// The bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

macro_rules! scalar_from {
    ($($type:ty => $variant:ident),+ $(,)?) => {
        $(impl From<$type> for Scalar {
            fn from(value: $type) -> Self {
                Self::$variant(value.into())
            }
        })+
    };
}

scalar_from!(bool => Bool, i64 => Int, i32 => Int, u8 => Int, f64 => Float, f32 => Float);

macro_rules! elements {
    ($($type:ty => $dtype:ident),+ $(,)?) => {
        $(
            impl sealed::Sealed for $type {}

            impl Element for $type {
                const DTYPE: DType = DType::$dtype;

                fn to_bytes(elements: &[Self]) -> Vec<u8> {
                    bytemuck::cast_slice(elements).to_vec()
                }

                fn from_bytes(bytes: &[u8]) -> Vec<Self> {
                    let elements = bytes.chunks_exact(size_of::<Self>());
                    elements.map(bytemuck::pod_read_unaligned).collect()
                }
            }
        )+
    };
}

elements!(f32 => F32, f64 => F64, f16 => F16, bf16 => BF16, i32 => I32, i64 => I64, u8 => U8);

impl sealed::Sealed for bool {}

impl Element for bool {
    const DTYPE: DType = DType::Bool;

    fn to_bytes(elements: &[Self]) -> Vec<u8> {
        elements.iter().map(|element| u8::from(*element)).collect()
    }

    fn from_bytes(bytes: &[u8]) -> Vec<Self> {
        bytes.iter().map(|byte| *byte != 0).collect()
    }
}

mod sealed {
    #[expect(
        unnameable_types,
        reason = "that nobody can name it is what seals `Element`"
    )]
    /// Elements are read from raw memory: which types may be is decided here.
    pub trait Sealed {}
}
