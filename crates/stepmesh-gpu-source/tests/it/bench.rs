//! A bench on which programs are run without a GPU: many are compiled as one library, because a compiler
//! takes longer to begin than for a kernel.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

use half::{bf16, f16};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use stepmesh_gpu_source::{Launch, Matrix, Place, Product, Program, STAND_IN_HEADER, Step};
use stepmesh_graph::samples::Sample;
use stepmesh_graph::{CompileOptions, DType};

use crate::joined::joined;

/// Memory as a device would have it: aligned for every element.
type Memory = Vec<u64>;

/// Compiles all cases and runs each; what went wrong.
pub(crate) fn judge(cases: &[Sample]) -> Vec<String> {
    let folder = tempfile::tempdir().expect("a folder");
    let programs: Vec<Program> = cases
        .iter()
        .map(|case| {
            let program = Program::compile(&case.graph, &CompileOptions::default());
            program.unwrap_or_else(|error| panic!("{}: {error}", case.name))
        })
        .collect();
    let halves = programs.len().div_ceil(2).max(1);
    let libraries: Vec<Library> = std::thread::scope(|scope| {
        let build = |(number, chunk): (usize, &[Program])| {
            let source = joined(chunk, number * halves);
            let path = folder.path().join(format!("{number}.so"));
            scope.spawn(move || build(&source, &path))
        };
        let builds: Vec<_> = programs.chunks(halves).enumerate().map(build).collect();
        let built = builds.into_iter().map(|build| build.join());
        built.map(|built| built.expect("a library")).collect()
    });
    let runs = cases.iter().zip(&programs).enumerate();
    runs.filter_map(|(number, (case, program))| {
        let why = run(&libraries[number / halves], number, case, program)?;
        let plan = program.text();
        Some(format!("{}: {why}\n{plan}", case.name))
    })
    .collect()
}

fn build(source: &str, path: &Path) -> Library {
    let (header, file) = (path.with_extension("hpp"), path.with_extension("cc"));
    std::fs::write(&header, STAND_IN_HEADER).expect("a written file");
    std::fs::write(&file, source).expect("a written file");
    let output = Command::new("c++")
        .args(["-std=c++17", "-O0", "-shared", "-fPIC", "-ffp-contract=off"])
        .args([
            "-Wall",
            "-Wextra",
            "-Werror",
            "-Wno-unused-function",
            "-Wno-unused-variable",
        ])
        .arg("-include")
        .args([
            header.as_os_str(),
            OsStr::new("-o"),
            path.as_os_str(),
            file.as_os_str(),
        ])
        .output()
        .expect("a C++ compiler: README.md names it");
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}", &log[..log.len().min(4000)]);
    // SAFETY: it has no constructors; it was made of this crate's source just now.
    let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) };
    library.expect("a library that was just built")
}

fn run(library: &Library, number: usize, case: &Sample, program: &Program) -> Option<String> {
    let mut memory = Addresses {
        args: case.args.iter().map(|bytes| to_memory(bytes)).collect(),
        // Whatever was there before.
        results: case
            .graph
            .result_types()
            .map(|ty| vec![0x5555_5555_5555_5555; ty.len_bytes().div_ceil(8)])
            .collect(),
        scratch: vec![0x5A5A_5A5A_5A5A_5A5A; to_usize(program.scratch_len_bytes).div_ceil(8)],
    };
    for step in &program.steps {
        match step {
            Step::Launch(launch) => launched(library, number, launch, &mut memory),
            Step::Product(product) => multiply(product, &mut memory),
        }
    }
    let wanted = case.expected().expect("arguments of the right types");
    for (position, (wanted, found)) in wanted.iter().zip(&memory.results).enumerate() {
        let bytes = found.iter().flat_map(|word| word.to_ne_bytes());
        let bytes: Vec<u8> = bytes.take(wanted.ty().len_bytes()).collect();
        if let Some(why) = wanted.mismatch(&bytes) {
            return Some(format!("result {position}, {}: {why}", wanted.ty()));
        }
    }
    let before = case.args.iter().map(|bytes| to_memory(bytes));
    (!before.eq(memory.args)).then(|| "an argument was written to".to_owned())
}

/// What a run works on.
struct Addresses {
    args: Vec<Memory>,
    results: Vec<Memory>,
    scratch: Memory,
}

impl Addresses {
    fn at(&mut self, place: Place) -> u64 {
        let (memory, offset) = match place {
            Place::Argument {
                index,
                offset_bytes,
            } => (&mut self.args[index], offset_bytes),
            Place::Result {
                index,
                offset_bytes,
            } => (&mut self.results[index], offset_bytes),
            Place::Scratch { offset_bytes } => (&mut self.scratch, offset_bytes),
        };
        assert!(
            to_usize(offset_bytes_of(place)) <= memory.len() * 8,
            "{place:?}"
        );
        memory.as_mut_ptr().expose_provenance() as u64 + offset
    }

    fn bytes(&self, place: Place, len: usize) -> Vec<u8> {
        let memory = match place {
            Place::Argument { index, .. } => &self.args[index],
            Place::Result { index, .. } => &self.results[index],
            Place::Scratch { .. } => &self.scratch,
        };
        let start = to_usize(offset_bytes_of(place));
        let bytes: Vec<u8> = memory.iter().flat_map(|word| word.to_ne_bytes()).collect();
        bytes[start..start + len].to_vec()
    }
}

fn offset_bytes_of(place: Place) -> u64 {
    match place {
        Place::Argument { offset_bytes, .. }
        | Place::Result { offset_bytes, .. }
        | Place::Scratch { offset_bytes } => offset_bytes,
    }
}

fn launched(library: &Library, number: usize, launch: &Launch, memory: &mut Addresses) {
    type Kernel = unsafe extern "C" fn(*const u64);
    type Run = unsafe extern "C" fn(Kernel, *const u64, *const u32, *const u32);
    let name = format!("g{number}_{}\0", launch.function);
    // SAFETY: the header gives kernels this signature.
    let kernel = unsafe { library.get::<Kernel>(name.as_bytes()) }.expect("the kernel");
    let count = format!("g{number}_{}_params\0", launch.function);
    // SAFETY: the header says so of this symbol.
    let count = unsafe { library.get::<*const u32>(count.as_bytes()) }.expect("its parameters");
    // SAFETY: a constant of the loaded library.
    let count = unsafe { **count };
    assert_eq!(Ok(count), u32::try_from(launch.arguments.len()));
    // SAFETY: the header says so of this symbol.
    let run = unsafe { library.get::<Run>(&b"stepmesh_stand_in_run\0"[..]) }.expect("the runner");
    let params: Vec<u64> = launch
        .arguments
        .iter()
        .map(|place| memory.at(*place))
        .collect();
    // SAFETY: the parameters are as many as the kernel takes, and point to memory of the sizes that the
    // program was made for, which nothing else uses meanwhile.
    unsafe {
        run(
            *kernel,
            params.as_ptr(),
            launch.grid.as_ptr(),
            launch.block.as_ptr(),
        )
    };
}

/// What the vendors' libraries would do.
fn multiply(product: &Product, memory: &mut Addresses) {
    let Product {
        rows,
        columns,
        depth,
        batch,
        dtype,
        ..
    } = *product;
    let left = Values::of(product.left, [rows, depth], batch, dtype, memory);
    let right = Values::of(product.right, [depth, columns], batch, dtype, memory);
    assert!(!product.out.is_transposed);
    let mut bytes = Vec::new();
    for matrix in 0..batch {
        for row in 0..rows {
            for column in 0..columns {
                let terms =
                    (0..depth).map(|k| left.at(matrix, row, k) * right.at(matrix, k, column));
                let sum: f64 = if dtype == DType::F64 {
                    terms.sum()
                } else {
                    f64::from(terms.map(narrow).sum::<f32>())
                };
                bytes.extend(element(dtype, sum));
            }
        }
    }
    assert_eq!(product.out.leading, columns);
    let place = memory.at(product.out.place);
    let to = std::ptr::with_exposed_provenance_mut::<u8>(to_usize(place));
    // SAFETY: the result's place has room for all of its elements.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
}

/// The elements of an operand.
struct Values {
    matrix: Matrix,
    numbers: Vec<f64>,
}

impl Values {
    fn of(matrix: Matrix, dims: [u64; 2], batch: u64, dtype: DType, memory: &Addresses) -> Self {
        let [lines, len] = if matrix.is_transposed {
            [dims[1], dims[0]]
        } else {
            dims
        };
        assert!(matrix.leading >= len, "{matrix:?}");
        let count = (batch - 1) * matrix.batch_stride + (lines - 1) * matrix.leading + len;
        let size = dtype.size_bytes();
        let bytes = memory.bytes(matrix.place, to_usize(count) * size);
        let numbers = bytes
            .chunks(size)
            .map(|bytes| number(dtype, bytes))
            .collect();
        Self { matrix, numbers }
    }

    fn at(&self, matrix: u64, row: u64, column: u64) -> f64 {
        let (line, within) = if self.matrix.is_transposed {
            (column, row)
        } else {
            (row, column)
        };
        let at = matrix * self.matrix.batch_stride + line * self.matrix.leading + within;
        self.numbers[to_usize(at)]
    }
}

fn number(dtype: DType, bytes: &[u8]) -> f64 {
    match dtype {
        DType::F64 => f64::from_le_bytes(bytes.try_into().expect("8 bytes")),
        DType::F32 => f32::from_le_bytes(bytes.try_into().expect("4 bytes")).into(),
        DType::F16 => f16::from_le_bytes(bytes.try_into().expect("2 bytes")).into(),
        _ => bf16::from_le_bytes(bytes.try_into().expect("2 bytes")).into(),
    }
}

fn element(dtype: DType, number: f64) -> Vec<u8> {
    match dtype {
        DType::F64 => number.to_le_bytes().to_vec(),
        DType::F32 => narrow(number).to_le_bytes().to_vec(),
        DType::F16 => f16::from_f64(number).to_le_bytes().to_vec(),
        DType::BF16 => bf16::from_f64(number).to_le_bytes().to_vec(),
        other => panic!("no library multiplies {other}"),
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "the rounding that is meant"
)]
fn narrow(number: f64) -> f32 {
    number as f32
}

fn to_memory(bytes: &[u8]) -> Memory {
    let word = |part: &[u8]| {
        let mut word = [0; 8];
        word[..part.len()].copy_from_slice(part);
        u64::from_ne_bytes(word)
    };
    bytes.chunks(8).map(word).collect()
}

fn to_usize(number: u64) -> usize {
    usize::try_from(number).expect("an address")
}
