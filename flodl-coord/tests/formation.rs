//! Who is taken into a run, who is not, and what they are told.

mod common;

use common::pass;
use flodl_coord::{Config, Coordinator, Duties, Input, Membership, Output, Scheduling, Slowing};
use flodl_elche::{AnchorSettings, GuardKind, Mode};
use flodl_wire::codec::manifest_digest;
use flodl_wire::message::join::{DatasetInfo, Dtype, LayoutSizes, Ready, Section, TensorSpec, TrainerSettings};
use flodl_wire::message::record::{Body, EventKind};
use flodl_wire::message::report::{ExitStatus, RankState};
use flodl_wire::message::{Control, HostReport, Report};
use flodl_wire::{HostId, Incarnation, Rank, RunId, SessionId, Time};
use std::time::Duration;

const LIFE: Incarnation = Incarnation(1);
const SECOND: u64 = 1_000_000_000;

/// A coordinator with one host per rank, whose session is the rank's number.
struct Formation {
    coordinator: Coordinator,
    now: Time,
}

fn config(world_size: u32, min_ranks: u32) -> Config {
    Config {
        run_id: RunId([1; 16]),
        world_size,
        min_ranks,
        mode: Mode::CpuCadence,
        epochs: None,
        epoch_splits: 1,
        batch_size: None,
        seed: 0,
        patience: Duration::from_secs(10),
        slow: Slowing::default(),
        membership: Membership::default(),
        scheduling: Scheduling::default(),
        duties: Duties::default(),
    }
}

fn tensors(bias: &str) -> Vec<TensorSpec> {
    let spec = |name: &str, shape: &[u64]| TensorSpec {
        name: name.to_owned(),
        dtype: Dtype::F32,
        shape: shape.to_vec(),
        section: Section::Parameters,
    };
    vec![spec("weight", &[4, 3]), spec(bias, &[3])]
}

fn ready(bias: &str, samples: u64) -> Ready {
    Ready {
        manifest_digest: manifest_digest(&tensors(bias)),
        layout: LayoutSizes { parameters: 15, buffers: 0, integers: 0 },
        dataset: DatasetInfo { len: samples, signature: [samples as u8; 32] },
        trainer: TrainerSettings::default(),
        device: "cpu".into(),
        memory: None,
        libraries: String::new(),
        step: None,
        scalars: Vec::new(),
        saves: false,
    }
}

impl Formation {
    fn of(config: Config) -> Formation {
        Formation { coordinator: Coordinator::new(config, Time::ZERO).expect("valid"), now: Time::ZERO }
    }

    fn with_hosts(config: Config) -> Formation {
        let world = config.world_size;
        let mut formation = Formation::of(config);
        for rank in 0..world {
            let host = HostId::from_name(&format!("host{rank}")).expect("a name");
            formation.take(Input::HostConnected { session: SessionId(u64::from(rank)), host, rank_count: 1 });
        }
        formation
    }

    fn take(&mut self, input: Input) -> Vec<Output> {
        self.coordinator.handle(input, self.now);
        std::iter::from_fn(|| self.coordinator.poll()).collect()
    }

    /// Time passes.
    fn until(&mut self, second: u64) -> Vec<Output> {
        self.now = Time(second * SECOND);
        pass(&mut self.coordinator, self.now)
    }

    fn say(&mut self, rank: u32, report: Report) -> Vec<Output> {
        let session = SessionId(u64::from(rank));
        self.take(Input::FromRank { session, rank: Rank(rank), incarnation: LIFE, report })
    }

    fn ready(&mut self, rank: u32, ready: Ready) -> Vec<Output> {
        self.say(rank, Report::Ready(Box::new(ready)))
    }

    fn manifest(&mut self, rank: u32, bias: &str) -> Vec<Output> {
        self.say(rank, Report::Manifest { part: 0, parts: 1, tensors: tensors(bias) })
    }

    fn exits(&mut self, rank: u32) -> Vec<Output> {
        let status = ExitStatus::Code(1);
        let last_lines = "no such file".to_owned();
        let report = HostReport::RankExited { rank: Rank(rank), incarnation: LIFE, status, last_lines };
        self.take(Input::FromHost { session: SessionId(u64::from(rank)), report })
    }
}

/// Ranks that the outputs ask for their manifest.
fn asked(outputs: &[Output]) -> Vec<u32> {
    let asks = |output: &Output| match output {
        Output::ToRank { rank, control: Control::SendManifest, .. } => Some(rank.0),
        _ => None,
    };
    outputs.iter().filter_map(asks).collect()
}

fn refused(outputs: &[Output]) -> Vec<(u32, String)> {
    let refuses = |output: &Output| match output {
        Output::ToRank { rank, control: Control::Refused { why }, .. } => Some((rank.0, why.text.clone())),
        _ => None,
    };
    outputs.iter().filter_map(refuses).collect()
}

fn admitted(outputs: &[Output]) -> Vec<u32> {
    let admits = |output: &Output| match output {
        Output::ToRank { rank, control: Control::Admitted(_), .. } => Some(rank.0),
        _ => None,
    };
    outputs.iter().filter_map(admits).collect()
}

fn alerts(outputs: &[Output]) -> Vec<String> {
    let alert = |output: &Output| match output {
        Output::Record(Body::Event(event)) if event.kind == EventKind::Alert => event.reason.clone(),
        _ => None,
    };
    outputs.iter().filter_map(alert).map(|reason| reason.text).collect()
}

fn ended(outputs: &[Output]) -> Option<(i32, String)> {
    let exit = outputs.iter().find_map(|output| match output {
        Output::End { exit } => Some(*exit),
        _ => None,
    })?;
    let why = outputs.iter().find_map(|output| match output {
        Output::Record(Body::Event(event)) if matches!(event.kind, EventKind::RunEnded { .. }) => event.reason.clone(),
        _ => None,
    });
    Some((exit, why.map(|why| why.text).unwrap_or_default()))
}

#[test]
fn the_run_starts_when_the_last_rank_is_ready_and_the_model_is_known() {
    let mut run = Formation::with_hosts(config(2, 1));
    assert_eq!(asked(&run.ready(1, ready("bias", 100))), [0; 0]);
    assert_eq!(asked(&run.ready(0, ready("bias", 100))), [0]);
    let outputs = run.manifest(0, "bias");
    assert_eq!(admitted(&outputs), [0, 1]);
    let first = outputs.iter().find_map(|output| match output {
        Output::Broadcast(Control::RequestParams { round, roster }) => Some((round.0, roster.len())),
        _ => None,
    });
    assert_eq!(first, Some((0, 2)));
}

#[test]
fn another_model_on_one_rank_is_refused_by_name() {
    let mut run = Formation::with_hosts(config(3, 1));
    run.ready(0, ready("bias", 100));
    run.ready(1, ready("offset", 100));
    assert_eq!(asked(&run.ready(2, ready("bias", 100))), [0, 1]);
    run.manifest(1, "offset");
    let outputs = run.manifest(0, "bias");
    let text = "rank 1 has another model than rank 0: tensor 1 is \"offset\" F32 [3] here, \"bias\" F32 [3] there";
    assert_eq!(refused(&outputs), [(1, text.to_owned())]);
    assert_eq!(admitted(&outputs), [0, 2]);
}

#[test]
fn the_largest_group_is_the_run_and_a_tie_goes_to_the_lowest_rank() {
    let mut run = Formation::with_hosts(config(3, 1));
    run.ready(0, ready("bias", 50));
    run.ready(1, ready("bias", 100));
    run.ready(2, ready("bias", 100));
    let outputs = run.manifest(0, "bias");
    assert_eq!(admitted(&outputs), [1, 2]);
    let why = &refused(&outputs)[0].1;
    assert!(why.starts_with("rank 0 has another dataset than rank 1: 50 against 100 samples"), "{why}");

    let mut tie = Formation::with_hosts(config(2, 1));
    tie.ready(0, ready("bias", 50));
    tie.ready(1, ready("bias", 100));
    assert_eq!(admitted(&tie.manifest(0, "bias")), [0]);
}

#[test]
fn ranks_that_end_before_the_start_do_not_hold_it_up() {
    let mut run = Formation::with_hosts(config(3, 2));
    run.ready(0, ready("bias", 100));
    run.exits(1);
    run.ready(2, ready("bias", 100));
    assert_eq!(admitted(&run.manifest(0, "bias")), [0, 2]);

    let mut short = Formation::with_hosts(config(3, 2));
    short.ready(0, ready("bias", 100));
    short.exits(1);
    let (exit, why) = ended(&short.exits(2)).expect("the end");
    assert_eq!(
        (exit, why.as_str()),
        (
            1,
            "only 1 of the ranks can take part and the run needs 2 (--min-ranks): rank 1: its process ended with status 1; its last words: no such file, rank 2: its process ended with status 1; its last words: no such file"
        )
    );
}

#[test]
fn the_one_asked_for_the_model_dies_and_the_next_is_asked() {
    let mut run = Formation::with_hosts(config(2, 1));
    run.ready(0, ready("bias", 100));
    run.ready(1, ready("bias", 100));
    assert_eq!(asked(&run.exits(0)), [1]);
    assert_eq!(admitted(&run.manifest(1, "bias")), [1]);
}

#[test]
fn a_list_that_is_not_the_announced_one_ends_the_rank() {
    let mut run = Formation::with_hosts(config(2, 1));
    run.ready(0, ready("bias", 100));
    run.ready(1, ready("bias", 100));
    let outputs = run.manifest(0, "other");
    assert!(refused(&outputs)[0].1.contains("does not match the digest"), "{outputs:?}");
    assert_eq!(asked(&outputs), [1]);
}

#[test]
fn empty_and_absurd_datasets_are_refused() {
    for samples in [0, u64::MAX] {
        let mut run = Formation::with_hosts(config(2, 1));
        let outputs = run.ready(0, ready("bias", samples));
        assert!(refused(&outputs)[0].1.contains("its dataset holds"), "{outputs:?}");
    }
}

#[test]
fn hosts_that_do_not_fit_are_told_why() {
    let mut run = Formation::of(config(3, 1));
    let connect = |session, name, rank_count| {
        let host = HostId::from_name(name).expect("a name");
        Input::HostConnected { session: SessionId(session), host, rank_count }
    };
    run.take(connect(1, "a", 2));
    let twice = alerts(&run.take(connect(2, "a", 1)));
    assert!(twice[0].starts_with("host a is already here"), "{twice:?}");
    let outputs = run.take(connect(3, "b", 2));
    assert!(alerts(&outputs)[0].contains("would bring 2 ranks and the run of 3 has room for 1"), "{outputs:?}");
    assert!(outputs.contains(&Output::CloseHost { session: SessionId(3) }));
}

#[test]
fn a_stall_in_formation_names_who_is_missing() {
    let mut run = Formation::of(config(3, 1));
    let mut texts = Vec::new();
    for second in 0..=10 {
        run.now = Time(second * SECOND);
        run.coordinator.tick(run.now);
        while let Some(output) = run.coordinator.poll() {
            if let Output::Record(Body::Event(event)) = output
                && event.kind == EventKind::Stall
            {
                texts.push(event.reason.expect("a reason").text);
            }
        }
    }
    assert_eq!(texts, ["nothing has moved for 10.0 s: waiting for hosts to bring rank 0, rank 1, rank 2"]);
}

#[test]
fn silence_past_the_patience_is_the_end_of_a_rank_that_had_spoken() {
    let mut run = Formation::with_hosts(config(2, 1));
    run.ready(0, ready("bias", 100));
    run.ready(1, ready("bias", 100));
    run.until(6);
    run.say(1, Report::Heartbeat { step: 0 });
    for session in [0, 1] {
        run.take(Input::FromHost { session: SessionId(session), report: HostReport::Heartbeat });
    }
    let outputs = run.until(10);
    let deaths: Vec<_> = outputs
        .iter()
        .filter_map(|output| match output {
            Output::Record(Body::Event(event)) => match event.kind {
                EventKind::Death { rank, .. } => Some((rank, event.reason.clone()?.text)),
                _ => None,
            },
            _ => None,
        })
        .collect();
    assert_eq!(deaths, [(Rank(0), "nothing was heard from it for 10s (the patience)".to_owned())]);
    assert_eq!(asked(&outputs), [1], "the other one is asked for the model instead");
}

#[test]
fn c1_contradicting_settings_are_refused_with_both_values() {
    let cases: [(Config, &str); 9] = [
        (Config { world_size: 0, ..config(1, 1) }, "a run has 1 to 65536 ranks, not 0: give another number with -n"),
        (config(2, 3), "--min-ranks 3 is not within 1..=2, the ranks of the run (-n 2)"),
        (
            Config { slow: Slowing { factors: [(Rank(4), 2.0)].into(), ..Slowing::default() }, ..config(3, 1) },
            "--slow 4=2 names a rank that a run of 3 ranks does not have: ranks are 0..=2",
        ),
        (
            Config { slow: Slowing { factors: [(Rank(1), 0.5)].into(), ..Slowing::default() }, ..config(3, 1) },
            "--slow 1=0.5: the factor stretches each step and must be within 1..=1000",
        ),
        (
            Config {
                scheduling: Scheduling { speeds: [(Rank(4), 2.0)].into(), ..Scheduling::default() },
                ..config(3, 1)
            },
            "--speed 4=2 names a rank that a run of 3 ranks does not have: ranks are 0..=2",
        ),
        (
            Config {
                scheduling: Scheduling {
                    anchor: AnchorSettings { min: Some(9), max: Some(8), ..AnchorSettings::default() },
                    ..Scheduling::default()
                },
                ..config(3, 1)
            },
            "min-anchor 9 is above max-anchor 8: lower the one or raise the other",
        ),
        (
            Config {
                scheduling: Scheduling { guard: GuardKind::Trend, deterministic: true, ..Scheduling::default() },
                ..config(3, 1)
            },
            "--guard trend contradicts --deterministic, under which windows keep their length: leave one of the two out",
        ),
        (
            Config {
                mode: Mode::NcclSync,
                scheduling: Scheduling { deterministic: true, ..Scheduling::default() },
                ..config(3, 1)
            },
            "--deterministic contradicts --mode nccl-sync: NCCL adds in an order of its own; take --mode cpu-sync",
        ),
        (
            Config {
                mode: Mode::CpuSync,
                scheduling: Scheduling { max_batch_diff: Some(2), ..Scheduling::default() },
                ..config(3, 1)
            },
            "max-batch-diff 2 contradicts policy sync, which averages after every batch: take policy cadence or leave it out",
        ),
    ];
    for (config, text) in cases {
        let error = Coordinator::new(config, Time::ZERO).err().expect("a contradiction");
        assert_eq!(error.to_string(), text);
    }
}

#[test]
fn a_list_that_never_comes_ends_the_rank_though_it_lives() {
    let mut run = Formation::with_hosts(config(2, 1));
    run.ready(0, ready("bias", 100));
    run.ready(1, ready("bias", 100));
    let mut outputs = Vec::new();
    for second in 1..=10 {
        run.now = Time(second * SECOND);
        run.say(0, Report::Heartbeat { step: 0 });
        run.say(1, Report::Heartbeat { step: 0 });
        assert!(asked(&outputs).is_empty(), "before the patience is over");
        run.coordinator.tick(run.now);
        outputs.extend(std::iter::from_fn(|| run.coordinator.poll()));
    }
    let why = "it did not send its list of tensors within 10s of being asked";
    assert_eq!(refused(&outputs), [(0, why.to_owned())]);
    assert_eq!(asked(&outputs), [1]);
}

#[test]
fn a_list_comes_in_parts() {
    let mut run = Formation::with_hosts(config(1, 1));
    run.ready(0, ready("bias", 100));
    let part = |part: u32| Report::Manifest { part, parts: 2, tensors: vec![tensors("bias")[part as usize].clone()] };
    assert!(admitted(&run.say(0, part(0))).is_empty());
    assert_eq!(admitted(&run.say(0, part(1))), [0]);
}

#[test]
fn a_model_without_parameters_is_refused() {
    let mut run = Formation::with_hosts(config(2, 1));
    let layout = LayoutSizes { parameters: 0, buffers: 4, integers: 0 };
    let outputs = run.ready(0, Ready { layout, ..ready("bias", 100) });
    assert!(
        refused(&outputs)[0].1.ends_with("its model holds no parameters: there is nothing to train"),
        "{outputs:?}"
    );
}

#[test]
fn hosts_without_ranks_and_hosts_of_a_full_run_are_told_so() {
    let mut run = Formation::with_hosts(config(1, 1));
    for (rank_count, why) in [
        (0, "host late brings no ranks: start join with -n 1 or more"),
        (1, "host late would bring 1 ranks and the run of 1 has room for 0: start serve with more"),
    ] {
        let host = HostId::from_name("late").expect("a name");
        let outputs = run.take(Input::HostConnected { session: SessionId(9), host, rank_count });
        assert_eq!(alerts(&outputs), [why.to_owned()]);
        assert!(outputs.contains(&Output::CloseHost { session: SessionId(9) }));
    }
}

#[test]
fn too_few_is_known_as_soon_as_it_is_certain() {
    let mut run = Formation::with_hosts(config(3, 3));
    let (exit, why) = ended(&run.exits(1)).expect("the end, though two are still starting");
    assert_eq!(exit, 1);
    assert!(
        why.ends_with("needs 3 (--min-ranks): rank 1: its process ended with status 1; its last words: no such file")
    );
}

#[test]
fn a_list_that_a_broken_link_kept_is_asked_for_again() {
    let mut run = Formation::with_hosts(config(2, 1));
    run.ready(0, ready("bias", 100));
    assert_eq!(asked(&run.ready(1, ready("bias", 100))), [0]);
    run.until(3);
    run.take(Input::HostLost { session: SessionId(0), error: "reset".into() });
    let mut closed = Vec::new();
    for second in [8, 12] {
        closed.extend(run.until(second));
        run.take(Input::FromHost { session: SessionId(1), report: HostReport::Heartbeat });
        run.say(1, Report::Heartbeat { step: 0 });
    }
    assert_eq!(refused(&closed), [], "it was asked twelve seconds ago, and out of reach for nine of them");
    let (session, host) = (SessionId(7), HostId::from_name("host0").expect("a name"));
    run.take(Input::HostResumed { session, host, first: SessionId(0) });
    let state = RankState {
        rank: Rank(0),
        incarnation: LIFE,
        window: None,
        round: None,
        round_done: false,
        admitted: false,
        words: Vec::new(),
        version: None,
        plan: None,
        pace: None,
    };
    let outputs = run.take(Input::FromHost { session, report: HostReport::RankState(Box::new(state)) });
    assert_eq!(asked(&outputs), [0]);
}

#[test]
fn a_host_lost_before_the_run_takes_its_ranks_with_it() {
    let mut run = Formation::with_hosts(config(2, 1));
    run.ready(0, ready("bias", 100));
    let outputs = run.take(Input::HostLost { session: SessionId(1), error: "reset".into() });
    assert!(asked(&outputs).is_empty(), "it may come back");
    run.until(9);
    run.say(0, Report::Heartbeat { step: 0 });
    let outputs = run.until(10);
    assert_eq!(asked(&outputs), [0]);
    assert_eq!(admitted(&run.manifest(0, "bias")), [0]);
}

#[test]
fn a_stop_before_the_run_ends_it() {
    let mut run = Formation::with_hosts(config(2, 1));
    run.ready(0, ready("bias", 100));
    assert_eq!(ended(&run.take(Input::Stop)), Some((1, "stopped before the run began".to_owned())));
}
