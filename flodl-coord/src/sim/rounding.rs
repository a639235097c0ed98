//! What travels between hosts in fewer bits, worked out a second time: results are decoded value by value, and the sums of a
//! host are folded again as they are, rounded here, and held against what its relay sends.

use super::fabric::Fabric;
use super::ledger::Ledger;
use super::mutant::Mutant;
use bytes::Bytes;
use flodl_cpureduce::{Base, Codec, Coded, Coder, Digest, Layout, Mass};
use flodl_relay::fold::{self, HostFold, Order};
use flodl_relay::root::Root;
use flodl_wire::message::Data;
use flodl_wire::message::control::RoundOutcome;
use flodl_wire::message::data::{self, Chunk};
use flodl_wire::message::report::FoldedPart;
use flodl_wire::{Rank, Round, Time, Version};
use std::collections::VecDeque;

/// Bytes behind the parameters of a model: two floats and a counter.
const REST: usize = 16;

/// A part of a model's bytes, by its chunk.
pub(crate) fn part(model: &[u8], chunk: u32) -> Option<&[u8]> {
    let parameters = model.len().checked_sub(REST)?;
    let bounds = [0, parameters, parameters + 8, model.len()];
    let place = chunk as usize;
    model.get(*bounds.get(place)?..*bounds.get(place + 1)?)
}

/// A chunk of a result with its values as they are, where `held` is the consensus of that version; or what is wrong with it.
pub(crate) fn plain(chunk: &Chunk, (version, held): (Option<Version>, &[u8])) -> Result<Chunk, String> {
    let Some(base) = chunk.codec.base() else { return Ok(chunk.clone()) };
    if version != Some(base) {
        return Err(format!("chunk {} is a difference from {base} and {version:?} is in force", chunk.chunk));
    }
    let held = part(held, chunk.chunk).ok_or("a chunk that no model has")?;
    let exact = |bytes: Vec<u8>| Chunk { codec: data::Codec::Exact, bytes: bytes.into(), ..chunk.clone() };
    if chunk.mass == 0.0 && chunk.bytes.is_empty() {
        return Ok(exact(held.to_vec()));
    }
    let differences: Vec<f32> = match chunk.codec {
        data::Codec::Bf16 { .. } => {
            chunk.bytes.chunks_exact(2).map(|two| f32::from_le_bytes([0, 0, two[0], two[1]])).collect()
        }
        data::Codec::Int8 { .. } => {
            let block = |block: &[u8]| {
                let (scale, codes) = block.split_first_chunk::<4>()?;
                let scale = f32::from_le_bytes(*scale);
                Some(codes.iter().map(|&code| scale * f32::from(code as i8)).collect::<Vec<f32>>())
            };
            chunk.bytes.chunks(260).filter_map(block).flatten().collect()
        }
        data::Codec::Exact => Vec::new(),
    };
    let values = held.chunks_exact(4).map(|four| f32::from_le_bytes([four[0], four[1], four[2], four[3]]));
    if differences.len() * 4 != held.len() {
        return Err(format!("chunk {} has {} differences for {} bytes", chunk.chunk, differences.len(), held.len()));
    }
    Ok(exact(values.zip(differences).flat_map(|(value, by)| (value + by).to_le_bytes()).collect()))
}

/// How far a result may be from the average, as a part of how far the replicas have ever been from the consensus: twice a
/// rounding of the sum, and twice one of the result.
pub(crate) fn slack(codec: Codec) -> f64 {
    match codec {
        Codec::F32 => 0.0,
        Codec::Bf16 => 0.01,
        Codec::Int8 => 0.025,
    }
}

/// A host's fold and what it has lost by rounding, as they must be.
pub(crate) struct Shadow {
    codec: Codec,
    fold: HostFold,
    layout: Option<Layout>,
    coder: Option<Coder>,
    round: Option<Round>,
    base: Option<(Version, Vec<u8>)>,
    expected: VecDeque<Data>,
    /// It cannot be known any more what the host has.
    lost: bool,
}

impl Shadow {
    /// For a host whose sums travel as that.
    pub(crate) fn new(codec: Codec, fold: HostFold) -> Shadow {
        let (layout, coder, round, base) = (None, None, None, None);
        Shadow { codec, fold, layout, coder, round, base, expected: VecDeque::new(), lost: false }
    }

    /// What the host's fold is told.
    pub(crate) fn hears(&mut self, input: &fold::Input, now: Time) {
        match input {
            fold::Input::Order(Order::Hold(_) | Order::Commit { .. }) => return,
            fold::Input::Order(Order::Layout(sizes)) => {
                self.layout = Layout::new(sizes.parameters, sizes.buffers, sizes.integers).ok();
                self.coder = self.layout.map(|layout| Coder::new(self.codec, layout));
            }
            fold::Input::Order(Order::Open { round, .. }) => self.begins(Some(*round)),
            fold::Input::Order(Order::Close { round }) if self.round == Some(*round) => self.begins(None),
            _ => {}
        }
        self.fold.handle(input.clone(), now);
        while let Some(output) = self.fold.poll() {
            if let fold::Output::Up(data) = output {
                self.expected.push_back(data);
            }
        }
    }

    fn begins(&mut self, round: Option<Round>) {
        (self.round, self.base) = (round, None);
        self.expected.clear();
        self.coder.iter_mut().for_each(Coder::abandon);
    }

    /// The host is told that a round is over.
    pub(crate) fn ends(&mut self, ledger: &Ledger, (round, outcome): (Round, RoundOutcome), ranks: &[Rank]) {
        let RoundOutcome::Committed { version } = outcome else { return };
        let held = self.base.as_ref().map(|(version, _)| *version);
        if self.round != Some(round) || held.is_none() || held == Some(version) {
            return;
        }
        let Some(parts) = ledger.parts_of(round) else {
            self.lost = true;
            return;
        };
        let ours = parts.iter().filter(|(rank, ..)| ranks.contains(rank)).map(|(.., part)| match part {
            FoldedPart::Whole => u32::MAX,
            FoldedPart::Chunks(chunks) => *chunks,
            FoldedPart::None => 0,
        });
        let chunks = ours.max().unwrap_or(0);
        self.coder.iter_mut().for_each(|coder| coder.commit(chunks));
    }

    /// What the host sends to the root; a sentence where it should be something else.
    pub(crate) fn sends(&mut self, ledger: &Ledger, data: &Data) -> Option<String> {
        if self.lost {
            return None;
        }
        if let Data::Holds { version, digest, .. } = data {
            let Some(bytes) = ledger.bytes_as(*version) else {
                self.lost = true;
                return None;
            };
            let wrong = (Digest::of(bytes) != *digest).then(|| format!("a relay holds other bytes as {version}"));
            self.base = Some((*version, bytes.to_vec()));
            return wrong;
        }
        let expected = self.expected.pop_front().map(|expected| self.rounded(expected));
        let is_it = expected.as_ref() == Some(data);
        (!is_it).then(|| format!("a relay sends {data:?} where {expected:?} is what it has"))
    }

    fn rounded(&mut self, data: Data) -> Data {
        let Data::Contribution(sum) = data else { return data };
        let held = self.base.as_ref().and_then(|(version, bytes)| Some((*version, part(bytes, sum.chunk)?)));
        let spec = self.layout.and_then(|layout| layout.chunk(sum.chunk));
        let (Some(coder), Some((version, held)), Some(spec), Ok(mass)) =
            (&mut self.coder, held, spec, Mass::new(sum.mass))
        else {
            return Data::Contribution(sum);
        };
        if mass.is_zero() {
            return Data::Contribution(sum);
        }
        let base = Some(Base { version: version.0, data: held });
        let Coded { codec, data: bytes, .. } = coder.encode(&spec, &sum.bytes, mass, base);
        Data::Contribution(coded(sum, (codec, version), bytes))
    }
}

fn coded(sum: Chunk, (codec, base): (Codec, Version), bytes: Bytes) -> Chunk {
    match codec {
        Codec::F32 => sum,
        Codec::Bf16 => Chunk { codec: data::Codec::Bf16 { base }, version: base, bytes, ..sum },
        Codec::Int8 => Chunk { codec: data::Codec::Int8 { base }, version: base, bytes, ..sum },
    }
}

/// A mutant: what a relay says that it holds, as if it were what is in force.
pub(crate) fn believed(fab: &Fabric, root: &Root, data: Data) -> Data {
    let (true, Data::Holds { round, .. }) = (fab.off(Mutant::BaseVersion), &data) else { return data };
    match (root.consensus_bytes(), root.consensus_digest()) {
        (Some((version, _)), Some(digest)) => Data::Holds { round: *round, version, digest },
        _ => data,
    }
}
