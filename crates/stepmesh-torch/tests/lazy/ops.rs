//! Each operation, in each type that it is for: PyTorch eager, the core on its reference backend, the
//! core on ours, and stepmesh-lazy alone agree; docs/torch.md has the table.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use stepmesh_graph::Shape;
use stepmesh_lazy::{DType, HostTensor, LazyDevice, TensorType};
use tch::{Device, Kind, Tensor};

use crate::table::{Alone, FLOATS, Kinds, Operation, operations};
use crate::{Mode, Turn, alone, counted, difference, value};

/// Two matrices of 4 by 6, a square one of 4, indices of columns and of rows, the class of each row,
/// and the same as a matrix of zeros and ones. The second is above zero.
fn inputs(kind: Kind) -> Vec<Tensor> {
    let numbers = |count: i64, step: i64, low: i64| {
        let all = Tensor::arange(count, (Kind::Int64, Device::Cpu));
        (all * step).remainder(11) + low
    };
    let halves = |tensor: Tensor| {
        if FLOATS.contains(&kind) {
            (tensor.to_kind(Kind::Double) / 4.0).to_kind(kind)
        } else {
            tensor.to_kind(kind)
        }
    };
    let classes = Tensor::from_slice(&[2_i64, 0, 5, 2]);
    let is_class = classes.one_hot(6).to_kind(kind);
    vec![
        halves(numbers(24, 7, -5).reshape([4, 6])),
        halves(numbers(24, 5, 1).reshape([4, 6])),
        halves(numbers(16, 3, -3).reshape([4, 4])),
        Tensor::from_slice(&[2_i64, 0, 3]),
        Tensor::from_slice(&[2_i64, 0, 3, 3, 1, 0, 1, 1, 2, 3, 0, 0]).reshape([2, 6]),
        classes,
        is_class,
    ]
}

/// The value, or why there is none.
fn run(mode: Mode, operation: Operation, kind: Kind) -> Result<Tensor, String> {
    let turn = Turn::new(mode);
    let inputs: Vec<Tensor> = inputs(kind)
        .iter()
        .map(|input| turn.tensor(input))
        .collect();
    let result = operation(&inputs).f_to_device(Device::Cpu);
    result.map_err(|error| {
        error
            .to_string()
            .lines()
            .next()
            .unwrap_or_default()
            .to_owned()
    })
}

/// The operation by stepmesh-lazy, or why there is no value.
fn run_alone(device: &LazyDevice, operation: Alone, kind: Kind) -> Result<Tensor, String> {
    let upload = |input: &Tensor| {
        let extents: Vec<usize> = input
            .size()
            .iter()
            .map(|extent| usize::try_from(*extent).unwrap())
            .collect();
        let ty = TensorType::new(dtype_of(input.kind()), Shape::new(&extents).unwrap()).unwrap();
        let mut bytes = vec![0; ty.len_bytes()];
        input.copy_data_u8(&mut bytes, input.numel());
        device.from_host(HostTensor::from_bytes(ty, bytes).unwrap())
    };
    let inputs: Vec<_> = inputs(kind).iter().map(upload).collect();
    let found = operation(&inputs).and_then(|result| result.to_host());
    let found = found.map_err(|error| error.to_string())?;
    let extents: Vec<i64> = found
        .ty()
        .shape()
        .dims()
        .iter()
        .map(|extent| i64::try_from(*extent).unwrap())
        .collect();
    let kind = kind_of(found.ty().dtype());
    Ok(Tensor::from_data_size(found.bytes(), &extents, kind))
}

fn dtype_of(kind: Kind) -> DType {
    let known = TYPES.iter().find(|(known, _, _)| *known == kind);
    known.unwrap().1
}

fn kind_of(dtype: DType) -> Kind {
    let known = TYPES.iter().find(|(_, known, _)| *known == dtype);
    known.unwrap().0
}

const TYPES: &[(Kind, DType, &str)] = &[
    (Kind::Float, DType::F32, "f32"),
    (Kind::Double, DType::F64, "f64"),
    (Kind::BFloat16, DType::BF16, "bf16"),
    (Kind::Half, DType::F16, "f16"),
    (Kind::Int64, DType::I64, "i64"),
    (Kind::Int, DType::I32, "i32"),
    (Kind::Bool, DType::Bool, "bool"),
];

#[test]
fn eager_reference_ours_and_stepmesh_lazy_agree_on_every_operation_and_type() {
    let devices = alone();
    let mut faults = Vec::new();
    for (name, kinds, operation, by_itself) in operations() {
        for kind in kinds.list() {
            let eager = run(Mode::Eager, *operation, *kind).unwrap();
            let mut found = vec![
                ("reference", run(Mode::Reference, *operation, *kind)),
                ("ours", run(Mode::Ours, *operation, *kind)),
            ];
            if let Some(operation) = by_itself {
                for (column, device) in &devices {
                    found.push((*column, run_alone(device, *operation, *kind)));
                }
            }
            for (column, found) in found {
                let fault = match found {
                    Ok(found) => difference(&found, &eager),
                    Err(fault) => Some(fault),
                };
                faults.extend(fault.map(|fault| format!("{name} of {kind:?}, {column}: {fault}")));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn the_least_of_types_without_mirror_images_is_right() {
    let least = |tensor: &Tensor| {
        let turn = Turn::new(Mode::Ours);
        let tensor = turn.tensor(tensor);
        let whole = value(&tensor.min()).int64_value(&[]);
        let (by_dim, at) = tensor.min_dim(0, false);
        let by_dim = value(&by_dim).int64_value(&[]);
        assert_eq!(
            value(&tensor.amin([0_i64].as_slice(), false)).int64_value(&[]),
            whole
        );
        (whole, by_dim, value(&at).int64_value(&[]))
    };
    assert_eq!(least(&Tensor::from_slice(&[5_u8, 0, 255])), (0, 0, 1));
    assert_eq!(least(&Tensor::from_slice(&[true, true, false])), (0, 0, 2));
    let numbers = [0, i64::MAX, i64::MIN, 1];
    assert_eq!(
        least(&Tensor::from_slice(&numbers)),
        (i64::MIN, i64::MIN, 2)
    );
}

#[test]
fn log1p_and_expm1_keep_what_small_arguments_say_and_know_the_ends() {
    let small = [1e-30_f32, -1e-12, 3e-8, -5e-7, 1e-3, -0.5, 0.0, 2.0, 15.0];
    let ends = [
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        -1.0,
        -2.0,
        -90.0,
        100.0,
    ];
    let all = Tensor::from_slice(&[&small[..], &ends].concat());
    let found = |mode| {
        let turn = Turn::new(mode);
        let x = turn.tensor(&all);
        [value(&x.log1p()), value(&x.expm1())]
    };
    let (ours, eager) = (found(Mode::Ours), found(Mode::Eager));
    for (found, expected) in ours.iter().zip(&eager) {
        // Relative alone: nothing is close to a small number but itself.
        let is_close = found.allclose(expected, 1e-6, 0.0, true);
        assert!(is_close, "{all:?}: {found:?}, not {expected:?}");
    }
}

/// The table of docs/torch.md: what agrees, which is what the test above holds them to.
fn table() -> String {
    let mut table = String::from("| in | types | operations |\n|---|---|---|\n");
    for (is_alone, columns) in [(true, "all four"), (false, "the first three")] {
        for kinds in [Kinds::Numbers, Kinds::Floats] {
            let types = kinds.list().iter().map(|kind| {
                let known = TYPES.iter().find(|(known, _, _)| known == kind);
                known.unwrap().2
            });
            let types: Vec<&str> = types.collect();
            let rows = operations().filter(|(_, own, _, by_itself)| {
                own.list() == kinds.list() && by_itself.is_some() == is_alone
            });
            let names: Vec<&str> = rows.map(|(name, ..)| *name).collect();
            let (types, names) = (types.join(", "), names.join(", "));
            writeln!(table, "| {columns} | {types} | {names} |").unwrap();
        }
    }
    table
}

#[test]
fn the_documentation_has_the_table_of_operations_that_is_tested() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/torch.md");
    let text = fs::read_to_string(path).unwrap();
    let table = table();
    assert!(text.contains(&table), "docs/torch.md lacks\n{table}");
}

/// What runs eagerly, and the counter of it: what we cannot translate, and what the core has no
/// kernel for, whichever backend it has.
const EAGER: &[(&str, &str)] = &[("cumsum (eagerly)", "aten::cumsum")];

#[test]
fn nothing_of_the_table_but_what_is_listed_runs_eagerly() {
    let mut faults = Vec::new();
    for (name, _, operation, _) in operations() {
        let turn = Turn::new(Mode::Ours);
        let inputs = inputs(Kind::Float);
        let inputs: Vec<Tensor> = inputs.iter().map(|input| turn.tensor(input)).collect();
        drop(operation(&inputs).f_to_device(Device::Cpu).unwrap());
        let counted = counted();
        let eager: Vec<&str> = counted
            .iter()
            .map(|(counter, _)| counter.as_str())
            .filter(|counter| counter.starts_with("aten::"))
            .collect();
        let listed = EAGER.iter().filter(|(known, _)| known == name);
        let listed: Vec<&str> = listed.map(|(_, counter)| *counter).collect();
        if eager != listed {
            faults.push(format!("{name}: {eager:?}"));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
