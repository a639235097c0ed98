//! Lets this package's own tests and examples find libtorch when they start, wherever `torch-sys` found it to link with.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var_os("CARGO_FEATURE_TORCH").is_none() {
        return;
    }
    // Only here: who leaves libtorch out is not to build again because of where it lies.
    println!("cargo::rerun-if-env-changed=LIBTORCH");
    if let Some(folder) = std::env::var_os("DEP_TCH_LIBTORCH_LIB") {
        println!("cargo::rustc-link-arg=-Wl,-rpath,{}", folder.display());
    }
}
