//! StableHLO against a real compiler: XLA's CPU backend, by way of jax, runs the text of every sample,
//! and its values must be those of the interpreter within their bounds, by which plugins are judged
//! too. docs/testing.md says how to install it; where it is not, these tests are told as ignored.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::OnceLock;

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use serde_json::{Value, json};
use stepmesh_graph::samples::{Sample, samples};
use stepmesh_graph::{DType, OpKind, stablehlo};

fn main() {
    let trials = OpKind::ALL.iter().map(|op| {
        let name = format!("xla_gives_the_same_values::{op}");
        Trial::ignorable_test(name, move || judge(*op))
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit();
}

fn judge(op: OpKind) -> Result<Completion, Failed> {
    let python = match PYTHON.get_or_init(find_python) {
        Ok(python) => python,
        Err(reason) => return Ok(Completion::ignored_with(reason)),
    };
    let mut xla = Xla::start(python)?;
    let mut wrong = Vec::new();
    let mut count = 0;
    for dtype in DType::ALL {
        for sample in samples(op, dtype)? {
            count += 1;
            if let Err(why) = compare(&mut xla, &sample) {
                wrong.push(format!("{}: {why}", sample.name));
            }
        }
    }
    xla.end()?;
    if wrong.is_empty() {
        return Ok(Completion::Completed);
    }
    Err(format!("{} of {count}:\n{}", wrong.len(), wrong.join("\n")).into())
}

fn compare(xla: &mut Xla, sample: &Sample) -> Result<(), String> {
    let text = stablehlo(&sample.graph);
    let args: Vec<Value> = sample
        .graph
        .param_types()
        .zip(&sample.args)
        .map(|(ty, bytes)| json!([numpy(ty.dtype()), ty.shape().dims(), hex(bytes)]))
        .collect();
    let results = xla.ask(&json!({"text": text, "args": args}))?;
    let expected = sample.expected().map_err(|error| error.to_string())?;
    for (wanted, found) in expected.iter().zip(results) {
        if let Some(why) = wanted.mismatch(&found) {
            return Err(why);
        }
    }
    Ok(())
}

/// A Python process that compiles and runs.
struct Xla {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Xla {
    fn start(python: &PathBuf) -> Result<Self, Failed> {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/xla/run.py");
        let mut child = Command::new(python)
            .arg(script)
            .env("TF_CPP_MIN_LOG_LEVEL", "3")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let to = child.stdin.take().ok_or("no pipe to the process")?;
        let from = child.stdout.take().ok_or("no pipe from the process")?;
        let from = BufReader::new(from);
        Ok(Self { child, to, from })
    }

    fn ask(&mut self, request: &Value) -> Result<Vec<Vec<u8>>, String> {
        let lost = |error: std::io::Error| format!("the process is lost: {error}");
        writeln!(self.to, "{request}").map_err(lost)?;
        let mut line = String::new();
        self.from.read_line(&mut line).map_err(lost)?;
        let answer: Value = serde_json::from_str(&line).map_err(|error| error.to_string())?;
        let Some(results) = answer["results"].as_array() else {
            return Err(format!("{}\n{}", answer["error"], request["text"]));
        };
        let bytes = |text: &Value| unhex(text.as_str().unwrap_or_default());
        Ok(results.iter().map(bytes).collect())
    }

    /// With its input closed it ends by itself.
    fn end(self) -> Result<(), Failed> {
        let Self { mut child, to, .. } = self;
        drop(to);
        child.wait()?;
        Ok(())
    }
}

/// The Python that has jax, or why there is none.
fn find_python() -> Result<PathBuf, String> {
    let usual = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/xla/bin/python");
    let python =
        std::env::var_os("STEPMESH_XLA_PYTHON").map_or_else(|| usual.into(), PathBuf::from);
    let asked = Command::new(&python)
        .args(["-c", "import jax"])
        .stderr(Stdio::null())
        .status();
    match asked {
        Ok(status) if status.success() => Ok(python),
        _ => Err(format!(
            "no XLA: {} does not import jax; see docs/testing.md",
            python.display()
        )),
    }
}

fn numpy(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "float32",
        DType::F16 => "float16",
        DType::BF16 => "bfloat16",
        DType::F64 => "float64",
        DType::I32 => "int32",
        DType::I64 => "int64",
        DType::U8 => "uint8",
        DType::Bool => "bool",
        DType::F8E4M3 => "float8_e4m3fn",
        DType::F8E5M2 => "float8_e5m2",
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    let pairs = text.as_bytes().chunks_exact(2);
    let pair = |pair: &[u8]| std::str::from_utf8(pair).map(|pair| u8::from_str_radix(pair, 16));
    pairs.filter_map(|bytes| pair(bytes).ok()?.ok()).collect()
}

static PYTHON: OnceLock<Result<PathBuf, String>> = OnceLock::new();
