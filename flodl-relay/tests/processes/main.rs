//! Relays over real processes. This program is its own helper: started with a first argument that begins with `as-` it is a guard,
//! an owner of ranks that gets killed, or a rank that speaks the protocol; else it runs the cases below, each of which
//! polls for what it waits for until a deadline.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(
    clippy::print_stdout,
    reason = "this program reports as a test harness does, and its ranks have something to say"
)]
#![expect(clippy::disallowed_methods, reason = "real processes take real time")]

mod agents;
mod joining;
mod lanes;
mod rank;
mod relays;
mod shared;
mod support;

use std::panic;
use std::process::ExitCode;
use std::time::Instant;

/// A case and its name.
type Case = (&'static str, fn());

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.first().map(String::as_str) {
        Some("as-guard") => flodl_relay::agent::guard_main(),
        Some("as-owner") => agents::own(&args[1]),
        Some("as-rank") => rank::main(args.get(1).map_or("", String::as_str)),
        _ => run(&args),
    }
}

/// Runs the cases whose names contain one of the arguments that is no option; all of them without such.
fn run(args: &[String]) -> ExitCode {
    let filters: Vec<&String> = args.iter().filter(|arg| !arg.starts_with('-')).collect();
    let chosen = |name: &str| filters.is_empty() || filters.iter().any(|filter| name.contains(filter.as_str()));
    let cases: Vec<Case> = [agents::CASES, relays::CASES, joining::CASES, shared::CASES].concat();
    let (chosen, others): (Vec<Case>, Vec<Case>) = cases.into_iter().partition(|(name, _)| chosen(name));
    if args.iter().any(|arg| arg == "--list") {
        chosen.iter().for_each(|(name, _)| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    println!("\nrunning {} tests", chosen.len());
    let start = Instant::now();
    let mut failed = 0;
    for (name, case) in &chosen {
        let outcome = panic::catch_unwind(case);
        failed += usize::from(outcome.is_err());
        println!("test {name} ... {}", if outcome.is_ok() { "ok" } else { "FAILED" });
    }
    let word = if failed == 0 { "ok" } else { "FAILED" };
    let (passed, filtered) = (chosen.len() - failed, others.len());
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "\ntest result: {word}. {passed} passed; {failed} failed; 0 ignored; 0 measured; {filtered} filtered out; \
         finished in {seconds:.2}s\n"
    );
    ExitCode::from(u8::from(failed > 0))
}
