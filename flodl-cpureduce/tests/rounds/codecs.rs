//! Rounded chunks: what comes back, what is never lost, and what is refused.

use crate::plan::f32s;
use bytes::Bytes;
use flodl_cpureduce::{
    Base, ChunkSpec, Codec, Coded, Coder, Consensus, DecodeError, Digest, Layout, Mass, contribution_chunk, decode,
    integer_chunk,
};
use proptest::prelude::*;

const ROUNDED: [Codec; 2] = [Codec::Bf16, Codec::Int8];

fn floats(values: &[f32]) -> Bytes {
    contribution_chunk(values, Mass::ONE).0
}

fn mass(value: f64) -> Mass {
    Mass::new(value).unwrap()
}

/// A layout of parameters in one chunk, and that chunk.
fn one_chunk(elements: usize) -> (Layout, ChunkSpec) {
    let layout = Layout::new(elements as u64, 0, 0).unwrap();
    (layout, layout.chunk(0).unwrap())
}

fn base(data: &[u8]) -> Option<Base<'_>> {
    Some(Base { version: 4, data })
}

/// One step of a pseudo-random walk through `-1.0..1.0`.
fn drawn(seed: &mut u32) -> f32 {
    *seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
    (*seed >> 8) as f32 / 8_388_608.0 - 1.0
}

proptest! {
    /// A decoded value is off by at most half a step of its codec: 2^-8 of the difference, or half a 127th of the largest
    /// difference of the block (a few hundredths more where fewer steps give that one back exactly).
    #[test]
    fn what_is_decoded_is_near_and_the_rest_is_kept(n in 1..600_usize, seed in any::<u32>(), m in 1..9_u32) {
        let mut seed = seed;
        let held: Vec<f32> = (0..n).map(|_| drawn(&mut seed)).collect();
        let steps: Vec<f32> = (0..n).map(|_| 1e-2 * drawn(&mut seed)).collect();
        let wanted: Vec<f32> = held.iter().zip(&steps).map(|(held, step)| held + step).collect();
        let (layout, spec) = one_chunk(n);
        let (held, m) = (floats(&held), mass(f64::from(m)));
        let (sum, _) = contribution_chunk(&wanted, m);
        for codec in ROUNDED {
            let mut coder = Coder::new(codec, layout);
            let coded = coder.encode(&spec, &sum, m, base(&held));
            prop_assert_eq!((coded.codec, coded.base), (codec, Some(4)));
            prop_assert_eq!(coded.data.len(), codec.data_bytes(spec.elements));
            let decoded = f32s(&decode(&spec, &coded, Mass::ONE, base(&held)).unwrap());
            prop_assert_eq!(&decoded, &f32s(coder.applied()));
            let contribution = decode(&spec, &coded, m, base(&held)).unwrap();
            prop_assert_eq!(contribution, contribution_chunk(&decoded, m).0);
            coder.commit(1);
            for (block, errors) in coder.errors(0).chunks(256).enumerate() {
                let at = 256 * block..256 * block + errors.len();
                let largest = steps[at.clone()].iter().fold(0.0_f32, |largest, step| largest.max(step.abs()));
                for ((error, step), (wanted, got)) in
                    errors.iter().zip(&steps[at.clone()]).zip(wanted[at.clone()].iter().zip(&decoded[at]))
                {
                    let bound = if codec == Codec::Bf16 { step.abs() / 256.0 } else { largest / 240.0 };
                    prop_assert!(error.abs() <= bound + 1e-6, "{codec}: {error} of {step}");
                    prop_assert!((wanted - got - error).abs() <= 1e-6);
                }
            }
        }
    }
}

/// A thousand updates of 1e-5 in a parameter of 1: as `bf16`, the parameter would never leave its place, for the next
/// value is 1.0078.
#[test]
fn no_update_is_lost_however_small() {
    let (layout, spec) = one_chunk(2);
    for codec in ROUNDED {
        let mut consensus = Consensus::from_bytes(layout, 0, floats(&[1.0, -3.0])).unwrap().with_codec(codec);
        for round in 1..=1000 {
            consensus.begin(round);
            let held = f32s(&consensus.chunk(0).unwrap());
            let average = floats(&[held[0] + 1e-5, held[1] - 0.3]);
            consensus.finish_chunk(0, Mass::ONE, Some(average)).unwrap();
            assert_eq!(consensus.coded_chunk(0).map(|coded| coded.codec), Some(codec));
            consensus.commit(round).unwrap();
        }
        let reached = f32s(&consensus.chunk(spec.index).unwrap());
        // A step of int8 beside one of 0.3 is 0.0024: up to half of it is still to come. The rest is the rounding of f32.
        assert!((reached[0] - 1.01).abs() < 1.5e-3, "{codec}: {reached:?}");
        assert!((reached[1] + 303.0).abs() < 0.02, "{codec}: {reached:?}");
    }
}

#[test]
fn errors_count_from_the_commit_on_and_only_where_the_chunk_was_folded() {
    let layout = Layout::new(4, 0, 0).unwrap().with_chunk_bytes(8).unwrap();
    let specs: Vec<ChunkSpec> = layout.iter().collect();
    let held = floats(&[1.0, 1.0]);
    let sum = floats(&[1.001, 1.3]);
    let mut coder = Coder::new(Codec::Bf16, layout);
    let send = |coder: &mut Coder| {
        let coded: Vec<Coded> = specs.iter().map(|spec| coder.encode(spec, &sum, Mass::ONE, base(&held))).collect();
        assert_eq!(coded[0], coded[1]);
        coded
    };
    let first = send(&mut coder);
    coder.abandon();
    assert_eq!(coder.errors(0), [0.0; 2]);
    assert_eq!(send(&mut coder), first, "an abandoned round leaves nothing");
    coder.commit(1);
    assert!(coder.errors(0).iter().all(|error| *error != 0.0));
    assert_eq!(coder.errors(1), [0.0; 2], "this one was not folded");
    let errors = coder.errors(0).to_vec();
    coder.commit(2);
    assert_eq!((coder.errors(0), coder.errors(1)), (&errors[..], &[0.0; 2][..]), "no round in between");
}

#[test]
fn the_first_round_and_whoever_lacks_the_base_get_values_as_they_are() {
    let layout = Layout::new(1, 1, 1).unwrap();
    let mut coder = Coder::new(Codec::Int8, layout);
    let spec = layout.chunk(0).unwrap();
    let plain = |data: &Bytes| Coded { codec: Codec::F32, base: None, data: data.clone() };
    let (one, integers) = (floats(&[0.3]), integer_chunk(&[-7]));
    assert_eq!(coder.encode(&spec, &one, Mass::ONE, None), plain(&one));
    assert_eq!(coder.encode(&spec, &one, Mass::ZERO, base(&one)), plain(&one));
    let third = layout.chunk(2).unwrap();
    assert_eq!(coder.encode(&third, &integers, Mass::ONE, base(&integers)), plain(&integers));
    let (far, held) = (floats(&[3e38]), floats(&[-3e38]));
    assert_eq!(coder.encode(&spec, &far, Mass::ONE, base(&held)), plain(&far), "a difference that is not finite");
    assert_eq!(decode(&spec, &plain(&one), mass(2.0), None), Ok(one.clone()), "sums travel scaled");

    let mut consensus = Consensus::empty(layout).with_codec(Codec::Int8);
    consensus.begin(0);
    for (index, sum) in [one.clone(), one, integers].into_iter().enumerate() {
        assert_eq!(consensus.finish_chunk(index as u32, Mass::ONE, Some(sum.clone())), Ok(sum));
        assert_eq!(consensus.coded_chunk(index as u32), None);
    }
    assert_eq!(consensus.commit(0), Ok(()));
}

#[test]
fn what_cannot_be_read_is_refused() {
    let layout = Layout::new(2, 0, 1).unwrap();
    let (floats_spec, integers_spec) = (layout.chunk(0).unwrap(), layout.chunk(1).unwrap());
    let held = floats(&[3e38, 1.0]);
    let coded = |codec, data: &[u8]| Coded { codec, base: Some(4), data: Bytes::copy_from_slice(data) };
    let check = |spec: &ChunkSpec, coded: &Coded, base: Option<Base<'_>>, expect: DecodeError| {
        assert_eq!(decode(spec, coded, Mass::ONE, base), Err(expect));
    };
    let good = coded(Codec::Bf16, &[0; 4]);
    let other = Some(Base { version: 3, data: &held });
    check(&floats_spec, &good, other, DecodeError::Stale { index: 0, held: Some(3), got: Some(4) });
    check(&floats_spec, &good, None, DecodeError::Stale { index: 0, held: None, got: Some(4) });
    let unnamed = Coded { base: None, ..good.clone() };
    check(&floats_spec, &unnamed, base(&held), DecodeError::Stale { index: 0, held: Some(4), got: None });
    for (codec, got, expected) in [(Codec::Bf16, 5, 4), (Codec::Int8, 5, 6), (Codec::F32, 0, 8)] {
        let wrong = coded(codec, &vec![0; got]);
        check(&floats_spec, &wrong, base(&held), DecodeError::Length { index: 0, expected, got });
    }
    check(&floats_spec, &good, base(&[0; 4]), DecodeError::Length { index: 0, expected: 8, got: 4 });
    check(&integers_spec, &good, base(&held), DecodeError::Integers { index: 1 });
    let huge = coded(Codec::Bf16, &[0x7f, 0x7f, 0, 0]);
    check(&floats_spec, &huge, base(&held), DecodeError::NonFinite { index: 0 });
    let infinite = coded(Codec::Int8, &[0, 0, 0x80, 0x7f, 1, 0]);
    check(&floats_spec, &infinite, base(&held), DecodeError::NonFinite { index: 0 });
    check(&floats_spec, &coded(Codec::Int8, &[255; 6]), base(&held), DecodeError::NonFinite { index: 0 });
    assert_eq!("int4".parse::<Codec>().unwrap_err().name, "int4");
    assert!(Codec::ALL.into_iter().all(|codec| codec.to_string().parse() == Ok(codec)));
}

/// Two relays with codecs of their own and a root with another: all who decode the results hold the consensus, and the
/// consensus goes where the average of the exact sums goes.
#[test]
fn everyone_who_decodes_holds_the_consensus_bit_by_bit() {
    let layout = Layout::new(700, 20, 1).unwrap().with_chunk_bytes(1024).unwrap();
    let mut seed = 7;
    let model: Vec<f32> = (0..720).map(|_| drawn(&mut seed)).collect();
    let bytes = Bytes::from([&floats(&model)[..], &integer_chunk(&[3])].concat());
    let mut exact = model.clone();
    let mut root = Consensus::from_bytes(layout, 0, bytes.clone()).unwrap().with_codec(Codec::Int8);
    let mut relays = [Coder::new(Codec::Bf16, layout), Coder::new(Codec::Int8, layout)];
    let masses = [mass(3.0), mass(1.0)];
    let mut replica = bytes.to_vec();
    for round in 1..=20 {
        let steps: Vec<[f32; 2]> = (0..720).map(|_| [1e-3 * drawn(&mut seed), 1e-3 * drawn(&mut seed)]).collect();
        root.begin(round);
        for spec in layout.iter() {
            let at = spec.byte_offset as usize..(spec.byte_offset as usize + spec.bytes as usize);
            let held = replica[at.clone()].to_vec();
            let base = Some(Base { version: round - 1, data: &held });
            if spec.section == flodl_cpureduce::Section::Integers {
                replica[at]
                    .copy_from_slice(&root.finish_chunk(spec.index, Mass::ONE, Some(integer_chunk(&[3]))).unwrap());
                continue;
            }
            let first = spec.byte_offset as usize / 4;
            let mut sum = vec![0; held.len()];
            for (which, relay) in relays.iter_mut().enumerate() {
                let theta: Vec<f32> =
                    f32s(&held).iter().zip(&steps[first..]).map(|(x, step)| x + step[which]).collect();
                let (own, _) = contribution_chunk(&theta, masses[which]);
                let coded = relay.encode(&spec, &own, masses[which], base);
                let came = decode(&spec, &coded, masses[which], base).unwrap();
                assert!(flodl_cpureduce::kernel::add_assign(&mut sum, &came));
            }
            let result = root.finish_chunk(spec.index, mass(4.0), Some(sum.into())).unwrap();
            let decoded = decode(&spec, &root.coded_chunk(spec.index).unwrap(), Mass::ONE, base).unwrap();
            assert_eq!(decoded, result);
            replica[at].copy_from_slice(&decoded);
        }
        for (x, step) in exact.iter_mut().zip(&steps) {
            *x += 0.75 * step[0] + 0.25 * step[1];
        }
        assert_eq!(root.digest_of_result(), Some(Digest::of(&replica)));
        root.commit(round).unwrap();
        relays.iter_mut().for_each(|relay| relay.commit(layout.chunks()));
    }
    let off = exact.iter().zip(f32s(&replica)).fold(0.0_f32, |off, (exact, x)| off.max((exact - x).abs()));
    assert!(off < 3e-5, "{off}: less than two roundings of one step of 1e-3, after twenty of them");
}
