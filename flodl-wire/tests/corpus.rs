//! What the fuzzers have kept is played again: `cargo xtask fuzz` finds new inputs, this sees to it that what was found stays
//! found. An input that ever made a parser fail belongs into its folder of `fuzz/corpus`.

mod common;
mod fuzzed;

use std::fs;
use std::path::Path;

#[test]
fn every_parser_stands_what_the_fuzzers_have_kept() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
    for (name, target) in fuzzed::TARGETS {
        target(&[]);
        let folder = corpus.join(name);
        let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        let mut played = 0;
        for entry in entries {
            let path = entry.expect("can be listed").path();
            // A failure names the input that it is about.
            println!("{}", path.display());
            target(&fs::read(&path).expect("can be read"));
            played += 1;
        }
        assert!(played > 0, "{name} has no corpus");
    }
}

/// Every message's sample is a good place for a fuzzer to begin. With `FLODL_WIRE_SEEDS=write` they go into the corpus, from
/// which `cargo xtask fuzz --keep` takes those that reach nothing new.
#[test]
fn every_sample_is_taken_by_its_target() {
    use common::samples::{controls, datas, host_reports, reports};
    use flodl_wire::codec::encode;
    use flodl_wire::message::Control;
    let mut seeds: Vec<(&str, Vec<u8>)> = Vec::new();
    let of = |kind: u8, bytes: Vec<u8>| ("message", [&[kind], &bytes[..]].concat());
    seeds.extend(controls().iter().map(|control| of(0, encode(control).expect("it is valid"))));
    seeds.extend(reports().iter().map(|report| of(1, encode(report).expect("it is valid"))));
    seeds.extend(host_reports().iter().map(|report| of(2, encode(report).expect("it is valid"))));
    seeds.extend(controls().iter().filter_map(|control| match control {
        Control::Admitted(config) => Some(("config", encode(&**config).expect("it is valid"))),
        _ => None,
    }));
    let rank = flodl_wire::Stream::Rank(flodl_wire::Rank(3));
    seeds.extend(datas().iter().map(|data| {
        let frame = flodl_wire::Frame::data(rank, flodl_wire::Incarnation(2), data);
        use flodl_wire::Kind;
        let kinds = [Kind::Contribution, Kind::Absent, Kind::Dropped, Kind::Holds];
        let kind = kinds.iter().position(|kind| *kind == frame.kind).unwrap_or(0) as u8;
        ("chunk", [&[kind], &frame.payload[..]].concat())
    }));
    seeds.push(("ticket", common::secret().to_text().as_bytes().to_vec()));
    let writes = std::env::var_os("FLODL_WIRE_SEEDS").is_some();
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
    for (at, (name, bytes)) in seeds.iter().enumerate() {
        let (_, target) = fuzzed::TARGETS.iter().find(|(target, _)| target == name).expect("there is one");
        target(bytes);
        if writes {
            fs::write(corpus.join(name).join(format!("sample-{at}")), bytes).expect("can be written");
        }
    }
    assert!(seeds.len() > 40, "only {} samples", seeds.len());
}

/// A target that takes nothing and refuses nothing would pass everything.
#[test]
fn the_targets_reach_what_they_are_about() {
    use flodl_wire::codec::encode;
    use flodl_wire::message::Report;
    let heartbeat = encode(&Report::Heartbeat { step: 3 }).expect("it is valid");
    let sent = [&[1], &heartbeat[..]].concat();
    fuzzed::message(&sent);
    assert!(flodl_wire::codec::decode::<Report>(&sent[1..]).is_ok(), "a whole message is among what is read");
    fuzzed::frame(&[9, 0, 0]);
    fuzzed::frame(&[9, 70, 0, 1]);
    fuzzed::finish(&[0, 0, 1]);
    fuzzed::challenge(&[0, 255, 0, 1]);
}
