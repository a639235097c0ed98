//! Memory that this rank shares with its relay, where it was handed some.

use super::key::take;
use crate::id;
use crate::reduce::{Label, Passage, Told};
use flodl_cpureduce::shm::{Bell, Bells, BoardReader, LaneWriter, Note, ShmError};
use flodl_cpureduce::{ChunkSpec, Layout};
use flodl_wire::Round;
use flodl_wire::message::data::AbsentWhy;
use rustix::fs::fstat;
use std::os::fd::OwnedFd;

/// This rank's end of it.
#[derive(Debug)]
pub(super) struct Shared {
    lane: LaneWriter,
    board: OwnedFd,
    results: Option<BoardReader>,
}

impl Shared {
    /// Takes up what the descriptors name, and tells the relay so: that must come before this rank connects.
    ///
    /// # Errors
    /// A sentence. Nothing was told then, and chunks go through the socket.
    pub(super) fn take_up(fds: [i32; 3]) -> Result<Shared, String> {
        let own = |fd| take(fd).map(OwnedFd::from).map_err(|_| format!("FLODL_SHM_FDS names {fd}, which is not open"));
        // Each is taken before anything can fail, so that none is left open.
        let [lane, bells, board] = fds.map(own);
        let (lane, bells, board) = (lane?, bells?, board?);
        let lane = Bells::adopt(bells).and_then(|bells| LaneWriter::adopt(&lane, bells.relay()));
        let lane = lane.map_err(|error: ShmError| error.to_string())?;
        lane.attach();
        Ok(Shared { lane, board, results: None })
    }

    /// What the relay rings for this rank.
    pub(super) fn bell(&self) -> Bell {
        self.lane.bell()
    }
}

impl Passage for Shared {
    fn ready(&mut self, layout: Layout) -> Result<bool, String> {
        if self.results.is_some() {
            return Ok(true);
        }
        let size = fstat(&self.board).map_err(|error| error.to_string())?.st_size;
        if size == 0 {
            return Ok(false);
        }
        self.results = Some(BoardReader::adopt(&self.board, layout).map_err(|error| error.to_string())?);
        Ok(true)
    }

    fn room(&mut self, bytes: u32) -> Option<&mut [u8]> {
        self.lane.room(bytes)
    }

    fn has_room(&self) -> bool {
        self.lane.has_room()
    }

    fn send(&mut self, label: &Label, bytes: u32) {
        let Label { round, base, chunk, mass } = *label;
        if let Some(slot) = self.lane.slot() {
            slot.send(&Note { round: round.0, version: base.0, index: chunk, mass }, bytes);
        }
    }

    fn send_absent(&mut self, round: Round, from_chunk: u32, why: AbsentWhy) -> bool {
        let slot = self.lane.slot();
        slot.map(|slot| slot.send_absent(round.0, from_chunk, id::absence(why))).is_some()
    }

    fn result(&mut self, round: Round) -> u32 {
        let progress = self.results.as_ref().and_then(|results| results.progress(round.0));
        progress.map_or(0, |(chunks, _)| chunks)
    }

    fn chunk(&self, round: Round, spec: &ChunkSpec) -> Option<&[u8]> {
        self.results.as_ref()?.chunk(round.0, spec)
    }

    fn model(&self, round: Round) -> Option<&[u8]> {
        self.results.as_ref()?.model(round.0)
    }

    fn whole(&self, round: Round) -> Option<Told> {
        let whole = self.results.as_ref()?.whole(round.0)?;
        Some(Told { digest: whole.digest, squared_norm: whole.squared_norm })
    }

    fn holds(&self, round: Round) -> bool {
        self.results.as_ref().is_some_and(|results| results.holds(round.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reduce::{CpuReduce, Passed, ReduceError};
    use crate::trainee::{
        EvalOutcome, Fault, StepContext, StepOutcome, TensorMut, TensorReader, TensorRef, TensorWriter, Trainee,
    };
    use crate::{Dtype, Section, TensorSpec};
    use flodl_cpureduce::shm::{Board, Lane, LaneReader, Sent};
    use flodl_wire::Version;
    use flodl_wire::message::Data;
    use flodl_wire::message::data::{Chunk, Codec};
    use std::os::fd::IntoRawFd;

    /// Tensors of all sections, in the order of the layout or in another.
    struct Model {
        floats: [Vec<f32>; 3],
        steps: Vec<i64>,
        in_place: bool,
        steps_first: bool,
    }

    impl Model {
        fn new(seed: u64, (in_place, steps_first): (bool, bool)) -> Model {
            let values =
                |len: u64, part: u64| (0..len).map(|i| ((i + part + seed) % 991) as f32 / 7.0 - 50.0).collect();
            let floats = [values(70_000, 1), values(3, 2), values(5, 3)];
            Model { floats, steps: vec![seed.cast_signed(), 7], in_place, steps_first }
        }
    }

    impl Trainee for Model {
        type Batch = ();

        fn manifest(&self) -> Vec<TensorSpec> {
            let spec = |name: &str, elements: usize, section| TensorSpec {
                name: name.to_owned(),
                dtype: Dtype::F32,
                shape: vec![elements as u64],
                section,
            };
            let [one, two, mean] = self.floats.each_ref().map(Vec::len);
            let mut specs = vec![
                spec("one", one, Section::Parameters),
                spec("two", two, Section::Parameters),
                spec("mean", mean, Section::Buffers),
            ];
            let at = if self.steps_first { 0 } else { 3 };
            specs.insert(at, spec("steps", self.steps.len(), Section::Integers));
            specs
        }

        fn step(&mut self, (): &(), _: &StepContext) -> Result<StepOutcome, Fault> {
            Ok(StepOutcome::default())
        }

        fn evaluate(&mut self, (): &()) -> Result<EvalOutcome, Fault> {
            Ok(EvalOutcome::default())
        }

        fn read_tensors(&self, reader: &mut dyn TensorReader) -> Result<(), Fault> {
            if self.steps_first {
                reader.read(TensorRef::I64(&self.steps));
            }
            self.floats.iter().for_each(|values| reader.read(TensorRef::F32(values)));
            if !self.steps_first {
                reader.read(TensorRef::I64(&self.steps));
            }
            Ok(())
        }

        fn lends_in_place(&self) -> bool {
            self.in_place
        }

        fn write_tensors(&mut self, writer: &mut dyn TensorWriter) -> Result<(), Fault> {
            if self.steps_first {
                writer.write(TensorMut::I64(&mut self.steps));
            }
            self.floats.iter_mut().for_each(|values| writer.write(TensorMut::F32(values)));
            if !self.steps_first {
                writer.write(TensorMut::I64(&mut self.steps));
            }
            Ok(())
        }
    }

    /// The relay's ends.
    struct Relay {
        reader: LaneReader,
        board: Board,
    }

    /// A rank that shares memory with its relay.
    fn sharing(model: &Model) -> (CpuReduce, Relay) {
        let (lane, bells, board) = (Lane::create().unwrap(), Bells::create().unwrap(), Board::reserve().unwrap());
        let mut reduce = CpuReduce::new(&model.manifest()).unwrap();
        let mut relay = Relay { reader: lane.reader(), board };
        let fds = [lane.file(), bells.file(), relay.board.file()].map(|file| file.try_clone().unwrap().into_raw_fd());
        let mut shared = Shared::take_up(fds).unwrap();
        assert!(lane.is_attached());
        assert_eq!(shared.ready(reduce.layout()), Ok(false), "the relay does not know the model yet");
        relay.board.lay_out(reduce.layout()).unwrap();
        let other = Layout::new(1, 0, 0).unwrap();
        assert!(shared.ready(other).unwrap_err().contains("bytes"), "it is for another model");
        reduce.share(Box::new(shared));
        (reduce, relay)
    }

    fn chunk(round: u64, (index, mass): (u32, f64), bytes: bytes::Bytes) -> Chunk {
        let (round, version) = (Round(round), Version(8));
        Chunk { round, version, chunk: index, mass, codec: Codec::Exact, bytes }
    }

    /// Everything that a rank contributes, through its lane.
    fn contribution(reduce: &mut CpuReduce, model: &Model, relay: &mut Relay) -> Vec<Chunk> {
        let mut sent = Vec::new();
        let mut next = 0;
        loop {
            let label = Label { round: Round(4), base: Version(8), chunk: next, mass: 3.0 };
            let passed = reduce.pass(model, &label).unwrap();
            next += u32::from(passed == Passed::Sent);
            // Taken when the lane is full, and when all of it is there.
            if !reduce.can_go_on(true) || passed == Passed::Done {
                while let Some(Sent::Chunk(note, bytes)) = relay.reader.try_next().unwrap() {
                    let bytes = bytes::Bytes::copy_from_slice(&bytes);
                    let about = (note.index, note.mass);
                    sent.push(Chunk { version: Version(note.version), ..chunk(note.round, about, bytes) });
                }
            }
            if passed == Passed::Done {
                return sent;
            }
        }
    }

    #[test]
    fn shared_memory_gives_the_bits_that_a_socket_gives() {
        for kind in [(true, false), (true, true), (false, false)] {
            let consensus = Model::new(500, kind);
            let [mut here, mut there] = [Model::new(3, kind), Model::new(3, kind)];
            let (mut reduce, mut relay) = sharing(&here);
            let mut plain = CpuReduce::new(&there.manifest()).unwrap();
            assert!(reduce.open(&here, Round(4)).unwrap() && plain.snapshot(&there, Round(4)).unwrap());
            let by_socket = (0..).map_while(|chunk| plain.contribution(Round(4), Version(8), 3.0, chunk));
            let by_socket: Vec<Data> = by_socket.collect();
            let by_lane = contribution(&mut reduce, &here, &mut relay).into_iter().map(Data::Contribution);
            assert!(by_lane.eq(by_socket), "{kind:?}");

            let mut source = CpuReduce::new(&consensus.manifest()).unwrap();
            source.snapshot(&consensus, Round(4)).unwrap();
            let result = (0..).map_while(|chunk| source.contribution(Round(4), Version(8), 1.0, chunk));
            let (mut measured, mut expected) = (None, None);
            for data in result {
                let Data::Contribution(chunk) = data else { panic!("it is finite") };
                expected = plain.receive(&chunk).unwrap().unwrap().1;
                assert!(!reduce.can_go_on(false) && reduce.take_shared(&here, true).unwrap().is_none());
                assert!(relay.board.put((4, 8), chunk.chunk, &chunk.bytes));
                assert!(reduce.can_go_on(false));
                let (round, here, whole) = reduce.take_shared(&here, true).unwrap().unwrap();
                assert_eq!((round, here), (Round(4), chunk.chunk + 1));
                measured = whole;
            }
            let (measured, expected) = (measured.unwrap(), expected.unwrap());
            assert_eq!(measured.digest, expected.digest);
            let near = |one: f64, other: f64| assert!((one - other).abs() <= 1e-9 * other, "{one} {other}");
            near(measured.divergence, expected.divergence);
            near(measured.pre_norm, expected.pre_norm);
            near(measured.post_norm, expected.post_norm);

            let digest = reduce.apply(&mut here).unwrap();
            assert_eq!(digest, plain.apply(&mut there).unwrap());
            assert!(digest == expected.digest && here.floats == consensus.floats && here.steps == consensus.steps);
            assert_eq!(reduce.replica_digest(&here).unwrap(), digest);

            // One more round leaves the result where it is, two do not.
            for (round, gone) in [(5, false), (6, true)] {
                relay.board.put((round, 9), 0, &vec![0; 262_144]);
                let taken = reduce.set_aside(&mut here);
                assert_eq!(matches!(taken, Err(ReduceError::Overtaken { round: Round(4) })), gone);
            }
        }
    }

    #[test]
    fn a_replica_that_is_not_finite_says_so_in_its_lane() {
        let mut model = Model::new(3, (true, false));
        let (mut reduce, mut relay) = sharing(&model);
        model.floats[2][1] = f32::INFINITY;
        assert!(!reduce.open(&model, Round(4)).unwrap());
        assert!(reduce.pass_absent(Round(4), AbsentWhy::NonFinite));
        let why = flodl_cpureduce::Absence::NonFinite;
        assert_eq!(relay.reader.try_next(), Ok(Some(Sent::Absent { round: 4, from_chunk: 0, why })));
        // Finite, and not when scaled: the chunks before it stand.
        model.floats[2][1] = 0.0;
        model.floats[1][0] = 2e38;
        assert!(reduce.open(&model, Round(5)).unwrap());
        let sent = contribution(&mut reduce, &model, &mut relay);
        assert_eq!(sent.iter().map(|chunk| chunk.chunk).collect::<Vec<_>>(), [0]);
    }
}
