//! The `flodl-sim` program.

fn main() -> std::process::ExitCode {
    flodl_coord::sim::cli::main()
}
