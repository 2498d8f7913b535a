//! Graphs as bytes, for caches. Reading trusts nothing: what comes out is a valid graph.

use std::sync::Arc;

use stepmesh_abi::compute::{
    SM_ATTR_KIND_BYTES, SM_ATTR_KIND_FLOAT, SM_ATTR_KIND_INT, SM_ATTR_KIND_INTS,
};

use crate::raw::{Attribute, RawGraph, RawNode, RawValue};
use crate::{Alias, Error, Graph};

impl Graph {
    /// The graph as bytes; equal graphs give equal bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let raw = self.to_raw();
        let mut out = Writer(Vec::new());
        out.u32(VERSION);
        out.text(&raw.name);
        out.list(&raw.nodes, Writer::node);
        out.list(&raw.params, |out, param| out.u32(*param));
        out.list(&raw.results, Writer::value);
        out.list(&raw.aliases, |out, alias| {
            out.u32(alias.param);
            out.u32(alias.result);
        });
        out.0
    }

    /// The graph of such bytes, which nobody need trust.
    ///
    /// # Errors
    /// `Encoding` if they are not what [`Graph::encode`] wrote; as for [`Graph::from_raw`].
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let mut from = Reader { bytes, offset: 0 };
        if from.u32()? != VERSION {
            return Err(from.fault("unknown version"));
        }
        let raw = RawGraph {
            name: from.text()?,
            nodes: from.list(Reader::node)?,
            params: from.list(Reader::u32)?,
            results: from.list(Reader::value)?,
            aliases: from.list(|from| {
                Ok(Alias {
                    param: from.u32()?,
                    result: from.u32()?,
                })
            })?,
        };
        if from.offset != bytes.len() {
            return Err(from.fault("more follows"));
        }
        Self::from_raw(raw)
    }
}

struct Writer(Vec<u8>);

impl Writer {
    fn u32(&mut self, number: u32) {
        self.0.extend(number.to_le_bytes());
    }

    fn u64(&mut self, number: u64) {
        self.0.extend(number.to_le_bytes());
    }

    fn list<T>(&mut self, list: &[T], write: impl Fn(&mut Self, &T)) {
        self.u64(list.len() as u64);
        for item in list {
            write(self, item);
        }
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.u64(bytes.len() as u64);
        self.0.extend(bytes);
    }

    fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    fn value(&mut self, value: &RawValue) {
        self.u32(value.node);
        self.u32(value.output);
    }

    fn node(&mut self, node: &RawNode) {
        self.u32(node.op);
        self.u32(node.dtype);
        self.list(&node.dims, |out, dim| out.u64(*dim));
        self.list(&node.operands, Self::value);
        self.list(&node.attributes, |out, (key, attribute)| {
            out.u32(*key);
            out.attribute(attribute);
        });
        self.text(node.location.as_deref().unwrap_or_default());
    }

    fn attribute(&mut self, attribute: &Attribute) {
        match attribute {
            Attribute::Int(int) => {
                self.u32(SM_ATTR_KIND_INT);
                self.u64(int.cast_unsigned());
            }
            Attribute::Float(float) => {
                self.u32(SM_ATTR_KIND_FLOAT);
                self.u64(float.to_bits());
            }
            Attribute::Ints(ints) => {
                self.u32(SM_ATTR_KIND_INTS);
                self.list(ints, |out, int| out.u64(int.cast_unsigned()));
            }
            Attribute::Bytes(bytes) => {
                self.u32(SM_ATTR_KIND_BYTES);
                self.bytes(bytes);
            }
        }
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    offset: usize,
}

impl<'a> Reader<'a> {
    fn fault(&self, fault: &'static str) -> Error {
        Error::Encoding {
            offset: self.offset,
            fault,
        }
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], Error> {
        let end = self.offset.checked_add(len);
        let Some(taken) = end.and_then(|end| self.bytes.get(self.offset..end)) else {
            return Err(self.fault("the bytes end"));
        };
        self.offset += len;
        Ok(taken)
    }

    fn number<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let mut number = [0; N];
        number.copy_from_slice(self.take(N)?);
        Ok(number)
    }

    fn u32(&mut self) -> Result<u32, Error> {
        self.number().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Error> {
        self.number().map(u64::from_le_bytes)
    }

    /// A count of things that are one byte each at least, so that it cannot be beyond what is left.
    fn count(&mut self) -> Result<usize, Error> {
        let count = usize::try_from(self.u64()?).unwrap_or(usize::MAX);
        if count > self.bytes.len() - self.offset {
            return Err(self.fault("a count beyond the end"));
        }
        Ok(count)
    }

    fn list<T>(&mut self, read: impl Fn(&mut Self) -> Result<T, Error>) -> Result<Vec<T>, Error> {
        let count = self.count()?;
        // Grown as it is read: what an item takes here may be much more than a byte.
        let mut list = Vec::new();
        for _ in 0..count {
            list.push(read(self)?);
        }
        Ok(list)
    }

    fn byte_list(&mut self) -> Result<&'a [u8], Error> {
        let count = self.count()?;
        self.take(count)
    }

    fn text(&mut self) -> Result<String, Error> {
        let text = std::str::from_utf8(self.byte_list()?);
        text.map(ToOwned::to_owned)
            .map_err(|_| self.fault("text that is not UTF-8"))
    }

    fn value(&mut self) -> Result<RawValue, Error> {
        Ok(RawValue {
            node: self.u32()?,
            output: self.u32()?,
        })
    }

    fn node(&mut self) -> Result<RawNode, Error> {
        Ok(RawNode {
            op: self.u32()?,
            dtype: self.u32()?,
            dims: self.list(Self::u64)?,
            operands: self.list(Self::value)?,
            attributes: self.list(|from| Ok((from.u32()?, from.attribute()?)))?,
            location: Some(self.text()?)
                .filter(|text| !text.is_empty())
                .map(Arc::from),
        })
    }

    fn attribute(&mut self) -> Result<Attribute, Error> {
        Ok(match self.u32()? {
            SM_ATTR_KIND_INT => Attribute::Int(self.u64()?.cast_signed()),
            SM_ATTR_KIND_FLOAT => Attribute::Float(f64::from_bits(self.u64()?)),
            SM_ATTR_KIND_INTS => {
                Attribute::Ints(self.list(|from| from.u64().map(u64::cast_signed))?)
            }
            SM_ATTR_KIND_BYTES => Attribute::Bytes(self.byte_list()?.into()),
            _ => return Err(self.fault("unknown kind of attribute")),
        })
    }
}

/// Version of the encoding; another one is refused, and a cache then compiles anew.
const VERSION: u32 = 1;
