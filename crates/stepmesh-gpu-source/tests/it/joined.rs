//! Many programs as one source: a compiler takes longer to begin than for a kernel.

use std::fmt::Write as _;

use stepmesh_gpu_source::Program;

/// The kernels of all programs behind one prologue, each in a namespace and with names of its own.
pub(crate) fn joined(programs: &[Program], first: usize) -> String {
    let mut all = String::new();
    for (number, program) in programs.iter().enumerate() {
        let (prologue, kernels) = program
            .source
            .split_once(MARK)
            .expect("the mark of kernels");
        let (kernels, _) = kernels.rsplit_once("} // namespace").expect("an end");
        if number == 0 {
            all.push_str(prologue);
        }
        let own = first + number;
        let kernels = kernels.replace("STEPMESH_KERNEL(", &format!("STEPMESH_KERNEL(g{own}_"));
        // Writing to a string cannot fail.
        let _ = writeln!(all, "namespace g{own} {{\n{kernels}}}");
    }
    all + "}\n"
}

/// What stands between the functions that all sources share and the kernels.
pub(crate) const MARK: &str = "// ---- kernels\n";
