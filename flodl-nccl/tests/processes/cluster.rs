//! On which hosts and GPUs ranks are, each as a process of its own: `FLODL_TESTING_CLUSTER_JSON`, else the GPUs of this
//! machine.
//!
//! The variable holds `{"hosts": [HOST, ...]}`, where each host has `gpus` (how many) and, where it is not this one, `over`
//! (the command that runs another there, such as `["ssh", "gpu2"]`), `program` (this test program on that host) and
//! `env` (variables for its ranks, such as `NCCL_SOCKET_IFNAME`).

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

use flodl_nccl::{Capability, Cuda, Library};
use serde_json::Value;

use crate::common::stand_in;

/// Where one rank is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Seat {
    over: Vec<String>,
    program: Option<String>,
    env: BTreeMap<String, String>,
    gpu: usize,
}

/// What a rank's process is told by its environment.
pub const RANK: &str = "FLODL_TESTING_RANK";

/// The number of its device there.
pub const GPU: &str = "FLODL_TESTING_GPU";

/// The stand-in to load, in place of the real library and driver.
pub const STAND_IN: &str = "FLODL_TESTING_STAND_IN";

/// Four ranks on the stand-in.
pub fn on_stand_in() -> Vec<Seat> {
    let env = BTreeMap::from([(STAND_IN.to_owned(), stand_in::path())]);
    (0..4).map(|gpu| Seat { env: env.clone(), gpu, ..Seat::default() }).collect()
}

/// The ranks of the rig.
///
/// # Errors
///
/// A sentence: what is missing, or wrong with the variable.
pub fn on_gpus() -> Result<Vec<Seat>, String> {
    match std::env::var("FLODL_TESTING_CLUSTER_JSON") {
        Ok(text) => parse(&text).map_err(|error| format!("FLODL_TESTING_CLUSTER_JSON: {error}")),
        Err(_) => here(),
    }
}

/// One rank on each GPU of this machine; two on a single one, where NCCL can.
fn here() -> Result<Vec<Seat>, String> {
    let devices = Cuda::load().and_then(|cuda| cuda.devices()).map_err(|error| error.to_string())?.len();
    let library = Library::find().map_err(|error| error.to_string())?;
    let one = |gpu| Seat { gpu, ..Seat::default() };
    if devices != 1 || !library.features().has(Capability::SharedGpu) {
        return Ok((0..devices).map(one).collect());
    }
    let env = BTreeMap::from([("NCCL_MULTI_RANK_GPU_ENABLE".to_owned(), "1".to_owned())]);
    Ok(vec![Seat { env, ..Seat::default() }; 2])
}

/// Reads the variable.
pub fn parse(text: &str) -> Result<Vec<Seat>, String> {
    let value: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let hosts = value["hosts"].as_array().ok_or("it has no list of hosts")?;
    let mut seats = Vec::new();
    for host in hosts {
        let gpus = host["gpus"].as_u64().ok_or("a host does not say how many gpus it has")?;
        let words = |value: &Value| -> Option<Vec<String>> {
            value.as_array()?.iter().map(|word| word.as_str().map(str::to_owned)).collect()
        };
        let over = match &host["over"] {
            Value::Null => Vec::new(),
            over => words(over).ok_or("`over` is no list of words")?,
        };
        let program = host["program"].as_str().map(str::to_owned);
        if !over.is_empty() && program.is_none() {
            return Err("a host that is reached over a command needs `program`: this test program there".to_owned());
        }
        let pairs = host["env"].as_object().into_iter().flatten();
        let pair = |(name, value): (&String, &Value)| Some((name.clone(), value.as_str()?.to_owned()));
        let env = pairs.map(pair).collect::<Option<BTreeMap<_, _>>>().ok_or("`env` holds what is no text")?;
        let seat = |gpu| Seat { over: over.clone(), program: program.clone(), env: env.clone(), gpu: gpu as usize };
        seats.extend((0..gpus).map(seat));
    }
    Ok(seats)
}

impl Seat {
    /// The command that starts a rank there.
    pub fn command(&self, rank: u32) -> Command {
        let own = std::env::current_exe().ok().and_then(|path| path.to_str().map(str::to_owned));
        let program = self.program.clone().or(own).unwrap_or_default();
        let mut env = self.env.clone();
        env.insert(RANK.to_owned(), rank.to_string());
        env.insert(GPU.to_owned(), self.gpu.to_string());
        // By `env`, since a command that runs another elsewhere hands no variables over.
        let words: Vec<String> = self
            .over
            .iter()
            .cloned()
            .chain(["env".to_owned()])
            .chain(env.iter().map(|(name, value)| format!("{name}={value}")))
            .chain([program, "--exact".to_owned(), "rank::a_process".to_owned(), "--nocapture".to_owned()])
            .collect();
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).stdin(Stdio::piped()).stdout(Stdio::piped());
        command
    }
}

#[test]
fn a_cluster_is_read_and_what_is_wrong_with_it_said() {
    let text = r#"{"hosts": [{"gpus": 2}, {"gpus": 1, "over": ["ssh", "b"], "program": "/p", "env": {"A": "1"}}]}"#;
    let seats = parse(text).expect("it is one");
    assert_eq!(seats.iter().map(|seat| (seat.over.len(), seat.gpu)).collect::<Vec<_>>(), [(0, 0), (0, 1), (2, 0)]);
    let command = format!("{:?}", seats[2].command(7));
    assert_eq!(
        command,
        r#""ssh" "b" "env" "A=1" "FLODL_TESTING_GPU=0" "FLODL_TESTING_RANK=7" "/p" "--exact" "rank::a_process" "--nocapture""#
    );
    for (text, expected) in [
        ("[", "EOF"),
        ("{}", "no list of hosts"),
        (r#"{"hosts": [{}]}"#, "how many gpus"),
        (r#"{"hosts": [{"gpus": 1, "over": ["ssh"]}]}"#, "needs `program`"),
        (r#"{"hosts": [{"gpus": 1, "env": {"A": 1}}]}"#, "no text"),
    ] {
        let error = parse(text).expect_err(text);
        assert!(error.contains(expected), "{text}: {error}");
    }
}
