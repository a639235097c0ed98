//! `cargo xtask bench reduce`: an average among the processes of one machine, and with `--peers` that of Gloo and of OpenMPI.
//!
//! Ours is the example `reduce` of flodl-coord: real workers, relay and root, and a script in the coordinator's place. The
//! others are `xtask/peers/gloo_allreduce.py` and `mpi_allreduce.py` with the Python of `PEERS_PYTHON`, as they come and tuned
//! against page faults. All take turns, so that a change of the machine's mood meets all of them.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Instant;

use serde_json::{Value, json};

use super::programs::{median, output};
use crate::build::{Build, Executable};
use crate::cargo;
use crate::failure::Failure;

/// The name of this benchmark on the command line.
pub(super) const NAME: &str = "reduce";

/// How often each program runs. Odd, so that a median is one of the runs.
const TURNS: usize = 3;
/// About how long each of them measures one number of bytes.
const SECONDS: &str = "1";
/// Ranks and the bytes that they average.
const CASES: [(u32, &[u64]); 3] =
    [(4, &[1 << 10, 1 << 20, 1 << 24, 1 << 26, 1 << 28]), (2, &[1 << 26]), (8, &[1 << 26])];

const OURS: Executable = Executable { package: "flodl-coord", kind: "--example", name: "reduce", features: "cli" };

/// With these a peer is `tuned`: it keeps the memory that it frees.
const TUNED: [(&str, &str); 3] = [
    ("MALLOC_MMAP_MAX_", "0"),
    ("MALLOC_TRIM_THRESHOLD_", "1099511627776"),
    ("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"),
];

/// What averages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Program {
    Flodl,
    Gloo { tuned: bool },
    OpenMpi { tuned: bool },
}

/// All of them, in the order of a turn.
const PROGRAMS: [Program; 5] = [
    Program::Flodl,
    Program::Gloo { tuned: false },
    Program::OpenMpi { tuned: false },
    Program::Gloo { tuned: true },
    Program::OpenMpi { tuned: true },
];

impl Program {
    /// Its name, the form of the average, and whether it is tuned.
    fn labels(self) -> (&'static str, Option<&'static str>, bool) {
        match self {
            Self::Flodl => ("flodl", Some("copied"), true),
            Self::Gloo { tuned } => ("gloo", None, tuned),
            Self::OpenMpi { tuned } => ("openmpi", None, tuned),
        }
    }
}

/// One run of a program.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Run {
    program: Program,
    case: (u32, u64),
    /// Median, least and most seconds of a round, and CPU seconds of one.
    seconds: [f64; 4],
    /// Most memory of relay and root, in KiB.
    memory: Option<u64>,
}

/// Where the programs are.
struct Programs {
    ours: PathBuf,
    gloo: Option<PathBuf>,
    open_mpi: Option<PathBuf>,
}

/// Runs the programs in turns, prints tables and answers with a list of rows.
///
/// # Errors
///
/// A build that fails; a program that fails or does not say what it should.
pub(super) fn run(peers: bool) -> Result<Value, Failure> {
    println!(
        "one host, no coordinator: ranks are processes, relay and root are threads of one process, as in `flodl run`"
    );
    let programs = Programs::build(peers)?;
    let mut runs = Vec::new();
    for (ranks, sizes) in CASES {
        for &bytes in sizes {
            for turn in 0..TURNS {
                for program in PROGRAMS {
                    let Some(run) = programs.run(program, (ranks, bytes))? else { continue };
                    let (name, _, tuned) = program.labels();
                    let [middle, _, _, cpu] = run.seconds.map(|seconds| 1e3 * seconds);
                    let tuned = if tuned { "tuned" } else { "" };
                    println!(
                        "{ranks} ranks {bytes:>9} B  turn {turn}  {name:<8} {tuned:<6} {middle:>9.3} ms {cpu:>9.3} CPU ms"
                    );
                    runs.push(run);
                }
            }
        }
    }
    let rows = rows(&runs);
    distance(&runs);
    Ok(rows.into())
}

impl Programs {
    fn build(peers: bool) -> Result<Self, Failure> {
        let ours = Build::without_libtorch().executable(OURS)?;
        let gloo = if peers { python("torch, numpy") } else { None };
        let has_mpirun =
            || Command::new("mpirun").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        let open_mpi = if peers { python("mpi4py, numpy") } else { None };
        let open_mpi = open_mpi.filter(|_| has_mpirun().is_ok_and(|status| status.success()));
        for (there, name, needs) in [
            (&gloo, "Gloo", "no package `torch` in python3; name a Python that has it in PEERS_PYTHON"),
            (
                &open_mpi,
                "OpenMPI",
                "no `mpirun`, or no package `mpi4py` in python3; name a Python that has it in PEERS_PYTHON",
            ),
        ] {
            if peers && there.is_none() {
                println!("left out: {name} ({needs})");
            }
        }
        Ok(Self { ours, gloo, open_mpi })
    }

    /// Runs a program; `None` where it is not there.
    fn run(&self, program: Program, case: (u32, u64)) -> Result<Option<Run>, Failure> {
        let script = |name: &str| cargo::root().join("xtask/peers").join(name);
        let [ranks, bytes] = [case.0.to_string(), case.1.to_string()];
        let mut command = match (program, &self.gloo, &self.open_mpi) {
            (Program::Flodl, _, _) => {
                let mut command = Command::new(&self.ours);
                command.args(["--ranks", &ranks]);
                command
            }
            (Program::Gloo { .. }, Some(python), _) => {
                let mut command = Command::new(python);
                command.arg(script("gloo_allreduce.py")).args(["--ranks", &ranks]);
                command
            }
            (Program::OpenMpi { tuned }, _, Some(python)) => {
                let mut command = Command::new("mpirun");
                command.args(["--allow-run-as-root", "--oversubscribe", "-n", &ranks, "--mca", "btl", "vader,self"]);
                if tuned {
                    for (name, _) in TUNED {
                        command.args(["-x", name]);
                    }
                }
                command.arg(python).arg(script("mpi_allreduce.py"));
                command
            }
            _ => return Ok(None),
        };
        if program != Program::Flodl && program.labels().2 {
            command.envs(TUNED);
        }
        let said = output(command.args(["--bytes", &bytes, "--seconds", SECONDS]))?;
        read(&said, program, case).map(Some)
    }
}

/// What a program has said of a case.
fn read(said: &str, program: Program, case: (u32, u64)) -> Result<Run, Failure> {
    let mut rows = said.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let row = rows.next_back().ok_or_else(|| Failure::failed(format!("{program:?} said nothing of {case:?}")))?;
    let mut seconds = [0.0; 4];
    for (name, seconds) in ["median_s", "min_s", "max_s", "cpu_s"].iter().zip(&mut seconds) {
        let value = row[name].as_f64();
        *seconds = value.ok_or_else(|| Failure::failed(format!("{program:?} did not say {name}")))?;
    }
    Ok(Run { program, case, seconds, memory: row["relay_and_root_peak_rss_kib"].as_u64() })
}

/// A Python that has these packages.
fn python(packages: &str) -> Option<PathBuf> {
    let named = std::env::var_os("PEERS_PYTHON").filter(|name| !name.is_empty());
    let python = PathBuf::from(named.unwrap_or_else(|| OsString::from("python3")));
    let mut probe = Command::new(&python);
    probe.args(["-c", &format!("import {packages}")]).stdout(Stdio::null()).stderr(Stdio::null());
    probe.status().is_ok_and(|status| status.success()).then_some(python)
}

/// The runs of a program in a case as one.
fn together(runs: &[Run], program: Program, case: (u32, u64)) -> Option<Run> {
    let of = || runs.iter().filter(move |run| (run.program, run.case) == (program, case));
    let all = |nth: usize| of().map(move |run| run.seconds[nth]);
    let (least, most) = (all(1).fold(f64::INFINITY, f64::min), all(2).fold(0.0, f64::max));
    let seconds = [median(all(0))?, least, most, median(all(3))?];
    Some(Run { program, case, seconds, memory: of().filter_map(|run| run.memory).max() })
}

/// All cases, each program's once; prints them beside ours.
fn rows(runs: &[Run]) -> Vec<Value> {
    let mut rows = Vec::new();
    for case in CASES.iter().flat_map(|(ranks, sizes)| sizes.iter().map(|&bytes| (*ranks, bytes))) {
        let ours = together(runs, Program::Flodl, case);
        for run in PROGRAMS.into_iter().filter_map(|program| together(runs, program, case)) {
            let (peer, form, tuned) = run.program.labels();
            let [median_s, min_s, max_s, cpu_s] = run.seconds;
            let (ranks, bytes) = case;
            let times = ours.map_or(f64::NAN, |ours| median_s / ours.seconds[0]);
            let memory = run.memory.map_or(String::new(), |kib| format!("  relay and root at most {} MiB", kib / 1024));
            println!(
                "{ranks} ranks {bytes:>9} B  {peer:<8} {:<6} {:>9.3} ms  {times:>6.2} of ours{memory}",
                if tuned { "tuned" } else { "" },
                1e3 * median_s
            );
            rows.push(json!({
                "peer": peer, "form": form, "tuned": tuned, "ranks": ranks, "bytes": bytes,
                "median_s": median_s, "min_s": min_s, "max_s": max_s, "cpu_s": cpu_s,
            }));
        }
    }
    rows
}

/// How far ours is from the limit that memory sets. A round of R ranks reads each replica, writes the result, and then reads
/// the result and reads and writes the replica once for each rank: 4 R + 1 times the model.
fn distance(runs: &[Run]) {
    for case in [(4, 1 << 26), (4, 1 << 28)] {
        let Some(ours) = together(runs, Program::Flodl, case) else { continue };
        let (alone, speed) = copies(case.1 as usize);
        let moved = (4 * u64::from(case.0) + 1) as f64 * case.1 as f64;
        println!(
            "{} ranks {:>9} B  {:.2} of the memory's speed ({:.1} GB/s on all cores), {:.1} copies of as many bytes",
            case.0,
            case.1,
            moved / ours.seconds[0] / speed,
            speed / 1e9,
            ours.seconds[0] / alone
        );
    }
}

/// Seconds of a copy of so many bytes on one core, and the bytes that copies on all cores move a second.
fn copies(bytes: usize) -> (f64, f64) {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let copy = || {
        let (from, mut to) = (vec![1_u8; bytes], vec![2_u8; bytes]);
        let mut took = Vec::new();
        for _ in 0..5 {
            let began = Instant::now();
            std::hint::black_box(&mut to).copy_from_slice(std::hint::black_box(&from));
            took.push(began.elapsed().as_secs_f64());
        }
        took.into_iter().fold(f64::INFINITY, f64::min)
    };
    let alone = copy();
    let slowest = thread::scope(|scope| {
        let threads: Vec<_> = (0..cores).map(|_| scope.spawn(copy)).collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).fold(alone, f64::max)
    });
    // Each byte is read and written.
    (alone, 2.0 * (bytes * cores) as f64 / slowest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_a_case_are_put_together() {
        let case = (4, 1 << 26);
        let run = |seconds, memory| Run { program: Program::Flodl, case, seconds, memory };
        let other = Run { case: (2, 1 << 26), ..run([9.0; 4], None) };
        let runs = [
            run([2.0, 1.0, 5.0, 4.0], Some(7)),
            run([3.0, 0.5, 4.0, 6.0], Some(9)),
            other,
            run([1.0, 1.0, 1.0, 5.0], None),
        ];
        assert_eq!(together(&runs, Program::Flodl, case), Some(run([2.0, 0.5, 5.0, 5.0], Some(9))));
        assert_eq!(together(&runs, Program::Gloo { tuned: true }, case), None);
        let rows = rows(&runs);
        assert_eq!(rows.len(), 2);
        assert_eq!(
            (&rows[0]["peer"], &rows[0]["form"], &rows[0]["median_s"]),
            (&json!("flodl"), &json!("copied"), &json!(2.0))
        );
    }

    #[test]
    fn the_last_row_counts_and_must_be_whole() {
        let line = r#"{"peer": "gloo", "median_s": 0.2, "min_s": 0.1, "max_s": 0.3, "cpu_s": 0.4}"#;
        let gloo = Program::Gloo { tuned: false };
        let run = read(&format!("noise\n{{}}\n{line}\n"), gloo, (4, 1024)).expect("it is whole");
        assert_eq!((run.seconds, run.memory), ([0.2, 0.1, 0.3, 0.4], None));
        assert!(read("noise", gloo, (4, 1024)).is_err());
        assert!(read(r#"{"median_s": 0.2}"#, gloo, (4, 1024)).is_err());
        assert!(cargo::root().join("xtask/peers/gloo_allreduce.py").exists());
    }
}
