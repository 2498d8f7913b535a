//! Text of kernels: lines and blocks, and a kernel's parameters as its body asks for them.

use stepmesh_fusion::{Items, Kind};
use stepmesh_graph::DType;

use crate::element::stored;
use crate::index::Width;

/// Lines of C++.
#[derive(Debug, Default)]
pub(crate) struct Body {
    text: String,
    depth: usize,
}

/// A kernel that is being written.
#[derive(Debug)]
pub(crate) struct Kernel {
    pub(crate) name: String,
    pub(crate) body: Body,
    params: Vec<Param>,
    constants: Vec<usize>,
}

#[derive(Debug, PartialEq, Eq)]
struct Param {
    buffer: usize,
    /// What it points to.
    pointee: String,
    is_written: bool,
}

/// A launch before it is known where buffers lie.
#[derive(Debug)]
pub(crate) struct Launched {
    pub(crate) function: String,
    pub(crate) blocks: u32,
    pub(crate) threads: u32,
    pub(crate) buffers: Vec<usize>,
}

impl Body {
    pub(crate) fn line(&mut self, line: impl AsRef<str>) {
        for _ in 0..self.depth {
            self.text.push_str("    ");
        }
        self.text.push_str(line.as_ref());
        self.text.push('\n');
    }

    /// A line that begins a block, which `close` ends.
    pub(crate) fn open(&mut self, head: impl AsRef<str>) {
        self.line(format!("{} {{", head.as_ref()));
        self.depth += 1;
    }

    pub(crate) fn close(&mut self) {
        self.depth -= 1;
        self.line("}");
    }
}

impl Kernel {
    pub(crate) fn new(name: String) -> Self {
        Self {
            name,
            body: Body {
                depth: 1,
                ..Body::default()
            },
            params: Vec::new(),
            constants: Vec::new(),
        }
    }

    /// The name by which the body reads an item.
    pub(crate) fn read(&mut self, items: &Items, item: usize, buffer: usize) -> String {
        let own = &items.list[item];
        if let Kind::Data(number) = own.kind {
            if !self.constants.contains(&number) {
                self.constants.push(number);
                let pointee = stored(own.dtype);
                let line =
                    format!("const {pointee}* const c{number} = (const {pointee}*)data{number};");
                // In front of the body, where it is known whatever block asks for it.
                self.body.text.insert_str(0, &format!("    {line}\n"));
            }
            return format!("c{number}");
        }
        self.pointer(buffer, stored(own.dtype), false)
    }

    /// The name by which the body writes elements of a type to a buffer.
    pub(crate) fn written(&mut self, buffer: usize, dtype: DType) -> String {
        self.pointer(buffer, stored(dtype), true)
    }

    /// A parameter that points to elements of a C++ type.
    pub(crate) fn pointer(&mut self, buffer: usize, pointee: &str, is_written: bool) -> String {
        let is_it = |param: &Param| param.buffer == buffer && param.pointee == pointee;
        let position = self.params.iter().position(is_it).unwrap_or_else(|| {
            self.params.push(Param {
                buffer,
                pointee: pointee.to_owned(),
                is_written,
            });
            self.params.len() - 1
        });
        self.params[position].is_written |= is_written;
        format!("p{position}")
    }

    /// A loop of all threads of the grid over elements: two blocks.
    pub(crate) fn open_elements(&mut self, width: Width, number: &str, count: usize) {
        let (name, count) = (width.name(), width.literal(count));
        self.body.open("STEPMESH_EACH(t)");
        self.body.open(format!(
            "for ({name} {number} = ({name})blockIdx.x * blockDim.x + t; {number} < {count}; \
             {number} += ({name})gridDim.x * blockDim.x)"
        ));
    }

    /// Ends it: the text goes to `source`.
    pub(crate) fn finish(self, blocks: u32, threads: u32, source: &mut String) -> Launched {
        let params = self.params.iter().enumerate().map(|(position, param)| {
            let constness = if param.is_written { "" } else { "const " };
            format!("{constness}{}* p{position}", param.pointee)
        });
        let params: Vec<String> = params.collect();
        let (name, params, body) = (&self.name, params.join(", "), &self.body.text);
        source.push_str(&format!(
            "STEPMESH_KERNEL({name}, {params}) {{\n{body}}}\n\n"
        ));
        Launched {
            function: self.name,
            blocks,
            threads,
            buffers: self.params.iter().map(|param| param.buffer).collect(),
        }
    }
}

/// Blocks for as many threads, each of which goes on to further elements if that is not enough.
pub(crate) fn blocks_of(threads: usize) -> u32 {
    blocks(threads.div_ceil(THREADS as usize))
}

/// As many blocks as are wanted, within what every device takes.
pub(crate) fn blocks(wanted: usize) -> u32 {
    u32::try_from(wanted)
        .unwrap_or(BLOCKS_MAX)
        .clamp(1, BLOCKS_MAX)
}

/// Threads of a block that goes through elements: eight warps, of which a multiprocessor holds several.
pub(crate) const THREADS: u32 = 256;
/// Blocks of a launch at most: beyond some thousands all multiprocessors are busy, and a block does
/// better to go on than to end.
const BLOCKS_MAX: u32 = 1 << 14;
