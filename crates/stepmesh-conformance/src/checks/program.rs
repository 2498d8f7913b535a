//! What the checks of computing have in common: the extension, what it supports, and running a graph.
#![forbid(unsafe_code)]

use std::cell::RefCell;
use std::collections::HashMap;

use stepmesh_graph::samples::{Sample, samples};
use stepmesh_graph::{DType, Graph, GraphBuilder, NodeId, Op, OpKind, Shape, TensorType};

use super::extension::with_extension;
use super::setting::Setting;
use crate::check::{Stop, Verdict, ensure, fail, pass_noting, skip};
use crate::context::Context;
use crate::raw::compute::{Compute, Executable, FILLER};
use crate::raw::memory::{Allocation, narrow};
use crate::raw::session::Stream;

/// The extension of an instance, and what it said to be able to.
pub(super) struct Computing<'a> {
    pub(super) setting: &'a Setting,
    pub(super) compute: Compute<'a>,
    supported: RefCell<HashMap<(OpKind, DType), bool>>,
}

impl<'a> Computing<'a> {
    /// Skips the check if the plugin has no such extension.
    pub(super) fn new(setting: &'a Setting) -> Result<Self, Stop> {
        // No capability bit stands for it.
        let compute = with_extension(setting, 0, "(none)", Compute::of(&setting.session))?;
        Ok(Self {
            setting,
            compute,
            supported: RefCell::default(),
        })
    }

    pub(super) fn supports(&self, op: OpKind, dtype: DType) -> Result<bool, Stop> {
        if let Some(known) = self.supported.borrow().get(&(op, dtype)) {
            return Ok(*known);
        }
        let answer = self
            .compute
            .supported(self.setting.dev, op.number(), dtype.number())?;
        ensure!(
            answer <= 1,
            "supported_ops of {op} for {dtype} gave {answer}"
        );
        self.supported.borrow_mut().insert((op, dtype), answer == 1);
        Ok(answer == 1)
    }

    /// Whether it said yes to all that is in a graph.
    pub(super) fn can(&self, graph: &Graph) -> Result<bool, Stop> {
        let failure = RefCell::new(None);
        let lacking = graph.first_unsupported(|op, dtype| match self.supports(op, dtype) {
            Ok(yes) => yes,
            Err(stop) => {
                failure.borrow_mut().get_or_insert(stop);
                true
            }
        });
        match failure.into_inner() {
            Some(stop) => Err(stop),
            None => Ok(lacking.is_none()),
        }
    }

    /// A graph that the plugin does, of a parameter or two and one operation on them.
    pub(super) fn some_graph(&self) -> Result<Sample, Stop> {
        // Those that make the most of being asynchronous or large come first.
        for op in [OpKind::Add, OpKind::Mul].iter().chain(OpKind::ALL) {
            for dtype in DType::ALL {
                if !self.supports(*op, dtype)? {
                    continue;
                }
                for sample in samples_of(*op, dtype)? {
                    let has_bytes = sample.args.iter().any(|arg| !arg.is_empty());
                    if has_bytes && self.can(&sample.graph)? {
                        return Ok(sample);
                    }
                }
            }
        }
        skip("the device supports no operation")
    }

    pub(super) fn compile(&self, graph: &Graph) -> Result<Executable, Stop> {
        let executable = self.compute.compile(self.setting.dev, graph.to_raw())?;
        ensure!(
            executable != Executable::NULL,
            "compile succeeded with a null executable"
        );
        Ok(executable)
    }

    /// Compiles and executes a sample, and compares.
    pub(super) fn judge(&self, sample: &Sample) -> Result<(), Stop> {
        let named = |stop| match stop {
            Stop::Fail(why) => Stop::Fail(format!("{}: {why}", sample.name)),
            other => other,
        };
        let executable = self.compile(&sample.graph).map_err(named)?;
        let memory = Memory::new(self.setting, &sample.graph, &sample.args).map_err(named)?;
        self.compute
            .execute(
                executable,
                &memory.args(),
                &memory.outs(),
                self.setting.stream,
            )
            .map_err(|failure| named(failure.into()))?;
        self.setting.sync(self.setting.stream).map_err(named)?;
        memory.compare(self.setting, sample)?;
        memory.free(self.setting)?;
        Ok(self.compute.destroy(executable)?)
    }
}

/// Memory of a graph's arguments and results.
pub(super) struct Memory {
    args: Vec<Allocation>,
    outs: Vec<Allocation>,
}

impl Memory {
    pub(super) fn new(setting: &Setting, graph: &Graph, args: &[Vec<u8>]) -> Result<Self, Stop> {
        let args: Result<Vec<_>, Stop> = args.iter().map(|arg| filled(setting, arg)).collect();
        let outs: Result<Vec<_>, Stop> = graph
            .result_types()
            .map(|ty| filled(setting, &vec![FILLER; ty.len_bytes()]))
            .collect();
        Ok(Self {
            args: args?,
            outs: outs?,
        })
    }

    pub(super) fn args(&self) -> Vec<u64> {
        self.args.iter().map(|memory| memory.ptr).collect()
    }

    pub(super) fn outs(&self) -> Vec<u64> {
        self.outs.iter().map(|memory| memory.ptr).collect()
    }

    pub(super) fn out(&self, setting: &Setting, number: usize) -> Result<Vec<u8>, Stop> {
        taken(setting, &self.outs[number])
    }

    pub(super) fn arg(&self, setting: &Setting, number: usize) -> Result<Vec<u8>, Stop> {
        taken(setting, &self.args[number])
    }

    /// The results within their bounds, and the arguments as they were.
    pub(super) fn compare(&self, setting: &Setting, sample: &Sample) -> Result<(), Stop> {
        for (number, wanted) in expected(sample)?.iter().enumerate() {
            if let Some(why) = wanted.mismatch(&self.out(setting, number)?) {
                return fail(format!("{}: result {number}: {why}", sample.name));
            }
        }
        for (number, wanted) in sample.args.iter().enumerate() {
            ensure!(
                self.arg(setting, number)? == *wanted,
                "{}: argument {number} was written to",
                sample.name
            );
        }
        Ok(())
    }

    pub(super) fn free(self, setting: &Setting) -> Result<(), Stop> {
        for memory in self.args.into_iter().chain(self.outs) {
            if memory.len_bytes > 0 {
                setting.free(memory)?;
            }
        }
        Ok(())
    }
}

fn filled(setting: &Setting, bytes: &[u8]) -> Result<Allocation, Stop> {
    if bytes.is_empty() {
        return Ok(Allocation {
            dev: setting.dev,
            ptr: 0,
            len_bytes: 0,
        });
    }
    setting.alloc_with(bytes)
}

fn taken(setting: &Setting, memory: &Allocation) -> Result<Vec<u8>, Stop> {
    if narrow(memory.len_bytes) == 0 {
        return Ok(Vec::new());
    }
    setting.take(memory.all())
}

/// The right answers.
pub(super) fn expected(sample: &Sample) -> Result<Vec<stepmesh_graph::reference::Tensor>, Stop> {
    sample.expected().map_err(own_fault)
}

/// The samples of an operation; it is this crate's fault if there are none to be had.
pub(super) fn samples_of(op: OpKind, dtype: DType) -> Result<Vec<Sample>, Stop> {
    samples(op, dtype).map_err(own_fault)
}

pub(super) fn own_fault(error: stepmesh_graph::Error) -> Stop {
    Stop::Fail(format!("the check itself made a bad graph: {error}"))
}

/// Runs the samples of some operations, as far as the device does them.
pub(super) fn judge_all(context: &Context<'_>, ops: &[OpKind]) -> Verdict {
    let setting = Setting::new(context)?;
    let computing = Computing::new(&setting)?;
    let (mut run, mut lacking) = (0, 0);
    for op in ops {
        for dtype in DType::ALL {
            for sample in samples_of(*op, dtype)? {
                if computing.can(&sample.graph)? {
                    computing.judge(&sample)?;
                    run += 1;
                } else {
                    lacking += 1;
                }
            }
        }
    }
    if run == 0 {
        return skip("the device does none of these operations");
    }
    pass_noting(format!("{run} cases, {lacking} not supported"))
}

/// A parameter of a graph that is being built.
pub(super) fn parameter(graph: &mut GraphBuilder, ty: TensorType) -> Result<NodeId, Stop> {
    graph.parameter(ty.dtype(), ty.shape()).map_err(own_fault)
}

pub(super) fn node(graph: &mut GraphBuilder, op: Op, operands: &[NodeId]) -> Result<NodeId, Stop> {
    graph.node(op, operands).map_err(own_fault)
}

pub(super) fn typed(dtype: DType, dims: &[usize]) -> Result<TensorType, Stop> {
    let ty = Shape::new(dims).and_then(|shape| TensorType::new(dtype, shape));
    ty.map_err(own_fault)
}

/// The stream that most of it runs on.
pub(super) fn no_stream(setting: &Setting) -> Stream {
    Stream {
        dev: setting.dev,
        raw: 0,
    }
}
