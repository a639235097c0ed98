//! The `flodl` program.

fn main() -> std::process::ExitCode {
    flodl_coord::cli::main(flodl_coord::cli::Extensions::default())
}
