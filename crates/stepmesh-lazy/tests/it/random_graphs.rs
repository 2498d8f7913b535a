//! Random programs over every operation and type, against the interpreter in f64 and its bounds.

use proptest::prelude::{ProptestConfig, any, proptest};
use stepmesh_graph::reference;
use stepmesh_lazy::{DType, Error, HostTensor, LazyDevice, LazyTensor, OpKind, TensorType};

use crate::common::{compiled, interpreted};

/// Numbers from a seed (SplitMix64).
struct Random(u64);

/// A program that is being made up.
struct Program<'a> {
    device: &'a LazyDevice,
    random: Random,
    tensors: Vec<LazyTensor>,
}

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound.max(1) as u64).unwrap()
    }

    fn dim(&mut self, of: &LazyTensor) -> isize {
        isize::try_from(self.below(of.rank())).unwrap()
    }
}

impl Program<'_> {
    /// A leaf of any type, small whole numbers and halves so that all types have them.
    fn leaf(&mut self) -> Result<LazyTensor, Error> {
        let dtype = DType::ALL[self.random.below(DType::ALL.len())];
        let rank = self.random.below(4);
        let dims: Vec<usize> = (0..rank)
            .map(|_| [1, 2, 3, 2, 0][self.random.below(5)])
            .collect();
        let ty = TensorType::new(dtype, stepmesh_graph::Shape::new(&dims)?)?;
        let values: Vec<f64> = (0..ty.shape().element_count())
            .map(|_| (self.random.below(17) as f64 - 8.0) / 2.0)
            .collect();
        let bytes = reference::Tensor::from_f64(ty, &values).to_bytes();
        Ok(self.device.from_host(HostTensor::from_bytes(ty, bytes)?))
    }

    fn any(&mut self) -> LazyTensor {
        let at = self.random.below(self.tensors.len());
        self.tensors[at].clone()
    }

    /// One that fits beside another: itself, or any.
    fn beside(&mut self, other: &LazyTensor) -> LazyTensor {
        if self.random.below(3) == 0 {
            return self.any();
        }
        let fits = |tensor: &&LazyTensor| tensor.ty() == other.ty();
        let fitting: Vec<LazyTensor> = self.tensors.iter().filter(fits).cloned().collect();
        fitting[self.random.below(fitting.len())].clone()
    }

    fn float(&mut self) -> Result<LazyTensor, Error> {
        let x = self.any();
        let floats = [DType::F32, DType::F16, DType::BF16, DType::F64];
        if x.dtype().is_float() {
            return Ok(x);
        }
        x.cast(floats[self.random.below(4)])
    }

    fn indices(&mut self, bound: usize) -> Result<LazyTensor, Error> {
        let count = 1 + self.random.below(3);
        let indices: Vec<i64> = (0..count)
            .map(|_| i64::try_from(self.random.below(bound)).unwrap())
            .collect();
        let indices = self.device.from_slice(&[count], &indices)?;
        if self.random.below(2) == 0 {
            return indices.cast(DType::I32);
        }
        Ok(indices)
    }

    fn elementwise(&mut self, choice: usize) -> Result<LazyTensor, Error> {
        let x = self.any();
        let y = self.beside(&x);
        match choice {
            0 => &x + &y,
            1 => &x - &y,
            2 => &x * &y,
            3 => &x / &y,
            4 => x.abs_small()?.pow(2_i64),
            5 => x.maximum(&y),
            6 => x.minimum(&y),
            7 => x.neg(),
            8 => x.exp(),
            9 => x.log(),
            10 => x.sqrt(),
            11 => x.rsqrt(),
            12 => x.tanh(),
            13 => x.sigmoid(),
            14 => x.relu(),
            15 => self.float()?.silu(),
            16 => self.float()?.gelu(),
            17 => self.float()?.gelu_tanh(),
            18 => x.eq(&y),
            19 => x.lt(&y),
            20 => x.ge(0.5),
            21 => x.gt(&y)?.select(&x, &y),
            22 => x.clamp(-1.0, 1.5),
            23 => x.cast(DType::ALL[self.random.below(DType::ALL.len())]),
            24 => x.rsub(1.5),
            _ => x.rdiv(2_i64),
        }
    }

    fn over_dims(&mut self, choice: usize) -> Result<LazyTensor, Error> {
        let x = self.any();
        let dim = self.random.dim(&x);
        let keep = self.random.below(2) == 0;
        match choice {
            0 => x.sum(&[dim], keep),
            1 => self.float()?.mean(&[], keep),
            2 => x.amax(&[dim], keep),
            3 => x.argmax(dim, keep),
            4 => self.float()?.softmax(-1),
            5 => self.float()?.layer_norm(-1, None, None, 1e-3),
            6 => {
                let x = self.float()?;
                let weight = self
                    .device
                    .full(&x.dims()[x.rank().max(1) - 1..], 1.5, x.dtype())?;
                x.rms_norm(-1, Some(&weight), 1e-3)
            }
            7 => x.matmul(&x.t()?),
            8 => {
                let y = self.any().cast(x.dtype())?;
                x.matmul(&y)
            }
            9 => {
                let extent = x.dims().get(dim.unsigned_abs()).copied().unwrap_or(0);
                x.gather(dim, &self.indices(extent)?)
            }
            _ => {
                let indices = self.indices(4)?;
                let mut dims = x.dims();
                *dims.get_mut(dim.unsigned_abs()).ok_or_else(skip)? = indices.element_count();
                let updates = self.device.full(&dims, 2.0, x.dtype())?;
                x.index_add(dim, &indices, &updates)
            }
        }
    }

    fn arrange(&mut self, choice: usize) -> Result<LazyTensor, Error> {
        let x = self.any();
        let dim = self.random.dim(&x);
        match choice {
            0 => x.flatten(),
            1 => x.transpose(0, -1),
            2 => x.broadcast_to(&[&[2], &*x.dims()].concat()),
            3 => {
                let extent = x.dims().get(dim.unsigned_abs()).copied().unwrap_or(0);
                x.slice(
                    dim,
                    self.random.below(2).min(extent)..extent,
                    1 + self.random.below(2),
                )
            }
            4 => LazyTensor::concat(&[&x, &self.beside(&x)], dim),
            5 => x.unsqueeze(-1),
            6 => self.device.rand(&[3, 2], DType::F32),
            7 => self.device.randn(&[5], DType::F64),
            _ => self.device.randn(&[2, 2], DType::BF16),
        }
    }

    fn grow(&mut self) -> Result<LazyTensor, Error> {
        match self.random.below(48) {
            choice @ 0..26 => self.elementwise(choice),
            choice @ 26..37 => self.over_dims(choice - 26),
            choice @ 37..46 => self.arrange(choice - 37),
            46 => self.device.full(&[2, 2], 0.25, DType::F32),
            _ => self.leaf(),
        }
    }
}

trait AbsSmall: Sized {
    fn abs_small(&self) -> Result<Self, Error>;
}

impl AbsSmall for LazyTensor {
    /// Within bounds in which powers are no huge numbers.
    fn abs_small(&self) -> Result<Self, Error> {
        self.clamp(-3_i64, 3_i64)
    }
}

/// Says that a choice makes no sense here.
fn skip() -> Error {
    stepmesh_graph::Shape::new(&[0; 9]).unwrap_err().into()
}

/// Makes up a program of about so many operations, and compares all its values.
fn check(device: &LazyDevice, seed: u64, count: usize) {
    let random = Random(seed);
    let mut program = Program {
        device,
        random,
        tensors: Vec::new(),
    };
    for _ in 0..3 {
        let leaf = program.leaf().unwrap();
        program.tensors.push(leaf);
    }
    for _ in 0..count {
        match program.grow() {
            Ok(tensor) if tensor.element_count() <= 4096 => program.tensors.push(tensor),
            // What does not fit is refused when traced.
            Ok(_) | Err(Error::Operation { .. } | Error::Graph(_)) => {}
            Err(other) => panic!("seed {seed}, {count}: {other}"),
        }
    }
    compare(device, &program.tensors, &format!("seed {seed}, {count}"));
}

/// Reads all tensors and compares them with what the interpreter makes of the same nodes.
fn compare(device: &LazyDevice, tensors: &[LazyTensor], what: &str) {
    let backend = device.backend();
    let mut lowering = backend
        .create_lowering_context("check", &device.device())
        .unwrap();
    for tensor in tensors {
        lowering.add_result(&tensor.ir_value().unwrap()).unwrap();
    }
    let arguments: Vec<reference::Tensor> = lowering
        .get_parameters_data()
        .iter()
        .map(|data| {
            let host = backend
                .make_tensor_from_computation_data(data, None)
                .unwrap();
            reference::Tensor::from_bytes(host.ty(), host.bytes())
        })
        .collect();
    let computation = lowering.build().unwrap();
    let expected = reference::evaluate(computation.graph(), &arguments).unwrap();
    device.mark_step(true).unwrap();
    for (tensor, expected) in tensors.iter().zip(expected) {
        let found = tensor.to_host().unwrap();
        if let Some(mismatch) = expected.mismatch(found.bytes()) {
            panic!("{what}: {mismatch}\n{computation}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_engine_hands_graphs_and_arguments_over_as_they_were_traced(seed in any::<u64>(), count in 1..60_usize) {
        check(&interpreted(|options| options.cache_entries_max = 4), seed, count);
    }

    #[test]
    fn the_cpu_backend_computes_what_the_interpreter_does(seed in any::<u64>(), count in 1..60_usize) {
        check(&compiled(|_| {}), seed, count);
    }
}

#[test]
fn the_programs_have_every_operation() {
    let device = interpreted(|_| {});
    for seed in 0..60 {
        check(&device, seed, 60);
    }
    let missing: Vec<&str> = OpKind::ALL
        .iter()
        .filter(|op| !matches!(op, OpKind::Parameter | OpKind::Constant))
        .filter(|op| device.metrics().lowered(**op) == 0)
        .map(|op| op.name())
        .collect();
    assert_eq!(missing, Vec::<&str>::new());
}
