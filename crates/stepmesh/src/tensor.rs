//! Tensors: typed, shaped, contiguous views of backend memory. No arithmetic lives here.

use std::sync::Arc;

use stepmesh_core::{Buffer, Device};

use crate::dtype::{DType, Element};
use crate::error::Error;
use crate::shape::Shape;

/// A contiguous, row-major view of a buffer. Cloning shares the memory and never allocates.
///
/// A tensor that was given to a push must not be written to until the request is done; one that
/// was given to a pull must not be read until then. A tensor taken from a
/// [`Batch`](crate::Batch) is a view of the slot that the worker wrote into: it shows the next
/// push's bytes once the batch was answered or dropped.
#[derive(Clone, Debug)]
pub struct Tensor {
    buffer: Arc<Buffer>,
    offset_bytes: u64,
    dtype: DType,
    shape: Shape,
}

impl Tensor {
    /// A tensor over the start of `buffer`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when the shape does not fit into the buffer.
    pub fn new(buffer: Arc<Buffer>, dtype: DType, dims: &[u64]) -> Result<Self, Error> {
        Self::at(buffer, 0, dtype, Shape::new(dims)?)
    }

    /// A tensor that starts `offset_bytes` into `buffer`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when it reaches outside of the buffer.
    pub fn at(
        buffer: Arc<Buffer>,
        offset_bytes: u64,
        dtype: DType,
        shape: Shape,
    ) -> Result<Self, Error> {
        let end = shape
            .len_bytes(dtype)
            .and_then(|len| len.checked_add(offset_bytes));
        if end.is_none_or(|end| end > buffer.len_bytes()) {
            return Err(Error::invalid(
                "tensor",
                format!(
                    "{dtype} {shape} at byte {offset_bytes} does not fit into a buffer of {} bytes",
                    buffer.len_bytes()
                ),
            ));
        }
        Ok(Self {
            buffer,
            offset_bytes,
            dtype,
            shape,
        })
    }

    /// A tensor in new memory of `device`, its contents undefined.
    ///
    /// # Errors
    /// [`Error::Backend`] when the memory cannot be had.
    pub fn empty(device: &Device, dtype: DType, dims: &[u64]) -> Result<Self, Error> {
        let shape = Shape::new(dims)?;
        let len_bytes = shape.len_bytes(dtype).ok_or_else(|| {
            Error::invalid(
                "tensor",
                format!("{dtype} {shape} is larger than any memory"),
            )
        })?;
        // A tensor without elements still has an address.
        let buffer = device
            .alloc(len_bytes.max(1))
            .map_err(Error::backend("allocating a tensor"))?;
        Self::at(Arc::new(buffer), 0, dtype, shape)
    }

    /// A tensor in new memory of `device` that holds a copy of `values`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when the count does not match the shape, [`Error::Backend`] when
    /// the memory cannot be had or written.
    pub fn from_slice<T: Element>(
        device: &Device,
        dims: &[u64],
        values: &[T],
    ) -> Result<Self, Error> {
        let tensor = Self::empty(device, T::DTYPE, dims)?;
        tensor.write(values)?;
        Ok(tensor)
    }

    /// Overwrites the elements with `values`, wherever the memory lies.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] on another dtype or count, [`Error::Backend`] when the copy
    /// fails.
    pub fn write<T: Element>(&self, values: &[T]) -> Result<(), Error> {
        self.check::<T>("tensor write", values.len())?;
        self.buffer
            .write_bytes(self.offset_bytes, bytemuck::cast_slice(values))
            .map_err(Error::backend("writing a tensor"))
    }

    /// Copies the elements out, wherever the memory lies.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] on another dtype or count, [`Error::Backend`] when the copy
    /// fails.
    pub fn read_into<T: Element>(&self, values: &mut [T]) -> Result<(), Error> {
        self.check::<T>("tensor read", values.len())?;
        self.buffer
            .read_bytes(self.offset_bytes, bytemuck::cast_slice_mut(values))
            .map_err(Error::backend("reading a tensor"))
    }

    /// A copy of the elements, wherever the memory lies.
    ///
    /// # Errors
    /// As [`read_into`](Self::read_into).
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>, Error> {
        let count = usize::try_from(self.elements()).map_err(|_| {
            Error::invalid("tensor read", "more elements than this host can address")
        })?;
        let mut values = vec![T::zeroed(); count];
        self.read_into(&mut values)?;
        Ok(values)
    }

    /// The elements in place, when the CPU can read the memory and the dtype is `T`'s.
    pub fn as_slice<T: Element>(&self) -> Option<&[T]> {
        let start = usize::try_from(self.offset_bytes).ok()?;
        let end = start.checked_add(usize::try_from(self.len_bytes()).ok()?)?;
        if T::DTYPE != self.dtype {
            return None;
        }
        bytemuck::try_cast_slice(self.buffer.host_bytes()?.get(start..end)?).ok()
    }

    /// The view of `count` rows from row `start`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when there are not so many rows.
    pub fn rows(&self, start: u64, count: u64) -> Result<Self, Error> {
        let end = start.checked_add(count);
        if self.shape.dims().is_empty() || end.is_none_or(|end| end > self.shape.rows()) {
            return Err(Error::invalid(
                "tensor rows",
                format!("{count} rows from row {start} are not in {}", self.shape),
            ));
        }
        Ok(Self {
            buffer: Arc::clone(&self.buffer),
            offset_bytes: self.offset_bytes + start * self.row_len_bytes(),
            dtype: self.dtype,
            shape: self.shape.with_rows(count),
        })
    }

    /// The memory.
    pub fn buffer(&self) -> &Arc<Buffer> {
        &self.buffer
    }

    /// Where the tensor starts in its buffer, in bytes.
    pub fn offset_bytes(&self) -> u64 {
        self.offset_bytes
    }

    /// The address of the first element, in the device's address space.
    pub fn device_ptr(&self) -> u64 {
        self.buffer.device_ptr() + self.offset_bytes
    }

    /// The type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The dimensions.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The number of elements.
    pub fn elements(&self) -> u64 {
        // Checked against the buffer when the tensor was made.
        self.shape.elements().unwrap_or_default()
    }

    /// The length in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.elements() * self.dtype.size_bytes()
    }

    /// The length of one row in bytes.
    pub fn row_len_bytes(&self) -> u64 {
        self.shape.row_len_bytes(self.dtype).unwrap_or_default()
    }

    fn check<T: Element>(&self, operation: &'static str, count: usize) -> Result<(), Error> {
        if T::DTYPE != self.dtype {
            return Err(Error::invalid(
                operation,
                format!("the tensor holds {}, not {}", self.dtype, T::DTYPE),
            ));
        }
        if u64::try_from(count).ok() != Some(self.elements()) {
            return Err(Error::invalid(
                operation,
                format!("{count} values for a tensor of {}", self.shape),
            ));
        }
        Ok(())
    }
}
