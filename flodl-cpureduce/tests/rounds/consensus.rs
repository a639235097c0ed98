//! The consensus between rounds: what is committed, what is kept, what is refused.

use crate::plan::f32s;
use bytes::Bytes;
use flodl_cpureduce::{
    ChunkSpec, CommitError, Consensus, ConsensusError, Digest, Layout, Mass, Outer, contribution_chunk, integer_chunk,
};

/// One chunk each of two parameters, one buffer, one integer.
fn layout() -> Layout {
    Layout::new(2, 1, 1).unwrap()
}

fn floats(values: &[f32]) -> Bytes {
    contribution_chunk(values, Mass::ONE).0
}

fn two() -> Mass {
    Mass::new(2.0).unwrap()
}

/// A consensus of zeros at version 0 with round 1 open.
fn opened() -> Consensus {
    let mut consensus = Consensus::from_bytes(layout(), 0, Bytes::from(vec![0; 20])).unwrap();
    consensus.begin(1);
    consensus
}

#[test]
fn a_round_replaces_the_consensus_only_by_its_commit() {
    let mut consensus = opened();
    let before = consensus.read_all();
    assert_eq!(consensus.finish_chunk(0, two(), Some(floats(&[2.0, 6.0]))).unwrap(), floats(&[1.0, 3.0]));
    assert_eq!(consensus.digest_of_result(), None);
    assert_eq!(consensus.finish_chunk(1, two(), Some(floats(&[5.0]))).unwrap(), floats(&[2.5]));
    assert_eq!(consensus.finish_chunk(2, two(), Some(integer_chunk(&[9]))).unwrap(), integer_chunk(&[9]));
    assert_eq!((consensus.version(), consensus.read_all()), (Some(0), before));
    assert_eq!(consensus.result_chunk(1), Some(floats(&[2.5])));
    assert_eq!(consensus.result_chunk(3), None);
    assert_eq!(consensus.chunks_folded(), 3);

    let digest = consensus.digest_of_result();
    assert_eq!(consensus.commit(1), Ok(()));
    let model = consensus.read_all().unwrap();
    assert_eq!(model[..], [&floats(&[1.0, 3.0, 2.5])[..], &integer_chunk(&[9])].concat());
    assert_eq!((consensus.version(), consensus.digest(), consensus.round()), (Some(1), digest, None));
    assert_eq!(digest, Some(Digest::of(&model)));
    assert_eq!(consensus.chunk(0), Some(floats(&[1.0, 3.0])));

    let again = Consensus::from_bytes(layout(), 1, model.clone()).unwrap();
    assert_eq!((again.read_all(), again.digest()), (Some(model), digest));
}

#[test]
fn a_chunk_without_mass_keeps_the_previous_one_without_a_copy() {
    let mut consensus = opened();
    let kept = consensus.chunk(0).unwrap();
    let result = consensus.finish_chunk(0, Mass::ZERO, None).unwrap();
    assert_eq!(result.as_ptr(), kept.as_ptr());
    consensus.finish_chunk(1, Mass::ONE, Some(floats(&[4.0]))).unwrap();
    consensus.finish_chunk(2, Mass::ZERO, None).unwrap();
    assert_eq!(consensus.chunks_folded(), 1);
    assert_eq!(consensus.commit(1), Ok(()));
    assert_eq!(f32s(&consensus.read_all().unwrap()[..12]), [0.0, 0.0, 4.0]);
}

#[test]
fn a_round_without_any_mass_commits_nothing() {
    let mut consensus = opened();
    for index in 0..3 {
        consensus.finish_chunk(index, Mass::ZERO, None).unwrap();
    }
    assert_eq!(consensus.commit(1), Err(CommitError::NoMass));
    assert_eq!(consensus.version(), Some(0));
    consensus.abandon();
    assert_eq!(consensus.commit(1), Err(CommitError::NoRound));
}

#[test]
fn a_first_round_with_a_hole_commits_nothing() {
    let mut consensus = Consensus::empty(layout());
    consensus.begin(0);
    consensus.finish_chunk(0, Mass::ONE, Some(floats(&[1.0, 2.0]))).unwrap();
    assert_eq!(consensus.commit(0), Err(CommitError::Incomplete { finished: 1, chunks: 3 }));
    assert_eq!(consensus.finish_chunk(1, Mass::ZERO, None).unwrap(), floats(&[0.0]));
    consensus.finish_chunk(2, Mass::ZERO, None).unwrap();
    assert_eq!(consensus.commit(0), Err(CommitError::Hollow { chunk: 1 }));
    assert_eq!((consensus.version(), consensus.digest(), consensus.read_all()), (None, None, None));

    consensus.begin(1);
    consensus.finish_chunk(0, Mass::ONE, Some(floats(&[1.0, 2.0]))).unwrap();
    consensus.finish_chunk(1, Mass::ONE, Some(floats(&[1.0]))).unwrap();
    consensus.finish_chunk(2, Mass::ONE, Some(integer_chunk(&[-4]))).unwrap();
    assert_eq!(consensus.commit(0), Ok(()));
}

#[test]
fn an_average_that_is_not_finite_keeps_the_previous_one() {
    let mut consensus = opened();
    let half = Mass::new(0.5).unwrap();
    assert_eq!(consensus.finish_chunk(0, half, Some(floats(&[3e38, 1.0]))).unwrap(), floats(&[0.0, 0.0]));
    assert_eq!(consensus.finish_chunk(1, half, Some(floats(&[f32::NAN]))).unwrap(), floats(&[0.0]));
    assert_eq!(consensus.chunks_folded(), 0);
}

#[test]
fn wrong_chunks_are_refused_and_change_nothing() {
    let mut idle = Consensus::empty(layout());
    assert_eq!(idle.finish_chunk(0, Mass::ONE, None), Err(ConsensusError::NoRound));

    let mut consensus = opened();
    let wrong = consensus.finish_chunk(1, Mass::ONE, Some(floats(&[1.0])));
    assert_eq!(wrong, Err(ConsensusError::OutOfOrder { expected: 0, got: 1 }));
    for (sum, got) in [(None, 0), (Some(floats(&[1.0])), 4), (Some(floats(&[1.0; 3])), 12)] {
        let wrong = consensus.finish_chunk(0, Mass::ONE, sum);
        assert_eq!(wrong, Err(ConsensusError::Length { index: 0, expected: 8, got }));
    }
    for index in 0..3 {
        consensus.finish_chunk(index, Mass::ZERO, None).unwrap();
    }
    let wrong = consensus.finish_chunk(3, Mass::ZERO, None);
    assert_eq!(wrong, Err(ConsensusError::Complete { chunks: 3, got: 3 }));
}

#[test]
fn beginning_again_forgets_the_open_round() {
    let mut consensus = opened();
    consensus.finish_chunk(0, Mass::ONE, Some(floats(&[1.0, 1.0]))).unwrap();
    consensus.begin(2);
    assert_eq!((consensus.round(), consensus.result_chunk(0)), (Some(2), None));
    assert_eq!(consensus.finish_chunk(0, Mass::ZERO, None).unwrap(), floats(&[0.0, 0.0]));
}

/// Goes half of the way, and half a step more with each committed step: a momentum of one number.
#[derive(Debug)]
struct Halfway {
    factor: f32,
    pending: Option<f32>,
    log: std::sync::mpsc::Sender<&'static str>,
}

impl Outer for Halfway {
    fn step(&mut self, chunk: &ChunkSpec, previous: &[u8], average: &mut [u8]) {
        assert_eq!(average.len(), chunk.bytes as usize);
        let values: Vec<f32> =
            f32s(previous).iter().zip(f32s(average)).map(|(p, a)| p + self.factor * (a - p)).collect();
        average.copy_from_slice(&floats(&values));
        self.pending = Some(self.factor + 0.5);
        self.log.send("step").unwrap();
    }

    fn keep(&mut self, _chunk: &ChunkSpec) {
        self.pending = None;
        self.log.send("keep").unwrap();
    }

    fn commit(&mut self) {
        self.factor = self.pending.take().unwrap_or(self.factor);
        self.log.send("commit").unwrap();
    }

    fn abandon(&mut self) {
        self.pending = None;
        self.log.send("abandon").unwrap();
    }
}

#[test]
fn the_outer_optimizer_moves_parameters_and_its_state_follows_commits() {
    let (log, calls) = std::sync::mpsc::channel();
    let outer = Halfway { factor: 0.5, pending: None, log };
    let layout = Layout::new(1, 1, 0).unwrap();
    let mut consensus = Consensus::empty(layout).with_outer(Box::new(outer));
    let mut round = |round, parameter: Option<f32>, commit: bool| {
        consensus.begin(round);
        let mass = parameter.map_or(Mass::ZERO, |_| Mass::ONE);
        let result = consensus.finish_chunk(0, mass, parameter.map(|value| floats(&[value]))).unwrap();
        assert_eq!(consensus.finish_chunk(1, Mass::ONE, Some(floats(&[8.0]))).unwrap(), floats(&[8.0]));
        if commit {
            consensus.commit(round).unwrap()
        } else {
            consensus.abandon()
        }
        (f32s(&result)[0], calls.try_iter().collect::<Vec<_>>())
    };
    assert_eq!(round(0, Some(4.0), true), (4.0, vec!["commit"]), "no previous consensus to step from");
    assert_eq!(round(1, Some(8.0), false), (6.0, vec!["step", "abandon"]));
    assert_eq!(round(2, Some(8.0), true), (6.0, vec!["step", "commit"]));
    assert_eq!(round(3, Some(7.0), true), (7.0, vec!["step", "commit"]), "the factor has grown");
    assert_eq!(round(4, None, true), (7.0, vec!["keep", "commit"]));
    assert_eq!(round(5, Some(f32::INFINITY), true), (7.0, vec!["keep", "commit"]));
    assert_eq!(round(6, Some(3e38), true), (7.0, vec!["step", "keep", "commit"]), "a step out of range is not taken");
}
