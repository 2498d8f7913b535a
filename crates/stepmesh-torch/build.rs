//! Compiles the C++ between this crate and libtorch, lets tests find libtorch when they run, and tells
//! dependants' build scripts where it is.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=cpp");
    #[cfg(feature = "torch")]
    torch::build();
}

#[cfg(feature = "torch")]
mod torch {
    //! With libtorch, whose folder torch-sys found.

    use std::env;
    use std::path::PathBuf;

    /// What only the feature `lazy` needs.
    const LAZY: [&str; 6] = [
        "cpp/lazy.cc",
        "cpp/kernels.cc",
        "cpp/kernels/arrange.cc",
        "cpp/kernels/elements.cc",
        "cpp/kernels/norm.cc",
        "cpp/kernels/reduce.cc",
    ];

    pub(crate) fn build() {
        // For reading and linting there is no libtorch.
        if env::var_os("CARGO_FEATURE_DOC_ONLY").is_some() {
            return;
        }
        let lib = env::var_os("DEP_TCH_LIBTORCH_LIB");
        let lib = PathBuf::from(lib.expect("torch-sys tells where libtorch is"));
        let include = lib.parent().map(|root| root.join("include"));
        let include = include.expect("libtorch's lib folder lies in its root");
        let mut build = cc::Build::new();
        build
            .cpp(true)
            .std("c++20")
            .include(&include)
            .include(include.join("torch/csrc/api/include"))
            // Their headers, not ours to mend.
            .flag_if_supported("-isystem")
            .flag_if_supported(include.display().to_string())
            .warnings(false)
            .file("cpp/tensor.cc");
        if env::var_os("CARGO_FEATURE_LAZY").is_some() {
            build.files(LAZY);
        }
        println!("cargo:rerun-if-env-changed={BYPASS_VARIABLE}");
        if env::var_os(BYPASS_VARIABLE).is_some() {
            build.define("STEPMESH_TORCH_ANY_VERSION", None);
        }
        build.compile("stepmesh_torch_shim");
        println!("cargo:rustc-link-arg=-Wl,-rpath,{}", lib.display());
        println!("cargo:lib={}", lib.display());
    }

    /// Has torch-sys take another PyTorch than it was made for, and so do we.
    const BYPASS_VARIABLE: &str = "LIBTORCH_BYPASS_VERSION_CHECK";
}
