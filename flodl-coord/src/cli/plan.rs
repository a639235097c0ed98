//! `flodl plan`: what a cluster would do in each mode, from its description or from a finished run.

use super::args::PlanArgs;
use super::failure::Failure;
use super::recorded::Recorded;
use core::time::Duration;
use flodl_elche::forecast::{Cluster, FOLD_RATE, Forecast, Link};
use flodl_elche::{AnchorSettings, Mode};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

/// Ranks that a description may hold together: more is a slip of the pen.
const RANKS_MAX: usize = 65_536;

/// A cluster's description.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Described {
    /// Samples a batch.
    batch_size: u32,
    /// Samples an epoch.
    samples: u64,
    /// f32 parameters.
    parameters: u64,
    /// Between hosts.
    #[serde(default = "usual_gbit_s")]
    link_gbit_s: f64,
    /// Between hosts, one way.
    #[serde(default = "usual_latency_ms")]
    link_latency_ms: f64,
    rank: Vec<DescribedRank>,
}

/// One rank, or several that are the same.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DescribedRank {
    /// What a batch takes it.
    batch_ms: f64,
    /// Its host.
    #[serde(default = "usual_host")]
    host: String,
    /// How many.
    #[serde(default = "one")]
    count: usize,
}

fn usual_gbit_s() -> f64 {
    1.0
}

fn usual_latency_ms() -> f64 {
    0.2
}

fn usual_host() -> String {
    "local".to_owned()
}

fn one() -> usize {
    1
}

/// Forecasts every mode; the text for standard output.
pub(crate) fn plan(args: &PlanArgs) -> Result<String, Failure> {
    let cluster = if args.cluster.is_dir() {
        Recorded::read(&args.cluster)?.cluster().map_err(Failure::failed)?
    } else {
        described(&args.cluster)?
    };
    let anchor = AnchorSettings {
        start: None,
        min: args.min_anchor,
        max: args.max_anchor,
        overhead_target: args.overhead_target,
    };
    let forecasts: Result<Vec<Forecast>, _> = Mode::ALL.iter().map(|&mode| cluster.forecast(mode, anchor)).collect();
    let forecasts = forecasts.map_err(Failure::usage)?;
    Ok(if args.json { format!("{:#}", as_json(&cluster, &forecasts)) } else { as_text(&cluster, &forecasts) })
}

fn described(file: &Path) -> Result<Cluster, Failure> {
    let text = std::fs::read_to_string(file)
        .map_err(|error| Failure::failed(format!("{} cannot be read: {error}", file.display())))?;
    read(&text).map_err(|why| Failure::usage(format!("{}: {why}", file.display())))
}

/// A cluster out of its description.
fn read(text: &str) -> Result<Cluster, String> {
    let described: Described = toml::from_str(text).map_err(|error| error.to_string())?;
    let positive = |name: &str, value: f64, max: f64| {
        let sound = value > 0.0 && value <= max;
        if sound { Ok(value) } else { Err(format!("{name} = {value}: give a number above 0 and at most {max}")) }
    };
    let mut hosts: BTreeMap<&str, Vec<Duration>> = BTreeMap::new();
    for DescribedRank { batch_ms, host, count } in &described.rank {
        let batch = Duration::from_secs_f64(positive("batch_ms", *batch_ms, 86_400_000.0)? / 1e3);
        if *count == 0 || *count > RANKS_MAX {
            return Err(format!("count = {count}: give a number within 1..={RANKS_MAX}"));
        }
        hosts.entry(host).or_default().extend(std::iter::repeat_n(batch, *count));
    }
    let ranks: usize = hosts.values().map(Vec::len).sum();
    if ranks == 0 || ranks > RANKS_MAX {
        return Err(format!("{ranks} ranks: describe 1 to {RANKS_MAX}, each as [[rank]] with its batch_ms"));
    }
    if described.batch_size == 0 || described.samples == 0 {
        return Err("batch_size and samples are at least 1".to_owned());
    }
    Ok(Cluster {
        hosts: hosts.into_values().collect(),
        batch_size: described.batch_size,
        epoch_len: described.samples,
        bytes: described.parameters.saturating_mul(4),
        link: Link {
            bytes_s: positive("link_gbit_s", described.link_gbit_s, 1e5)? * 1e9 / 8.0,
            latency: Duration::from_secs_f64(positive("link_latency_ms", described.link_latency_ms, 1e5)? / 1e3),
        },
        measured: None,
    })
}

/// What the figures rest on.
fn assumptions(cluster: &Cluster) -> Vec<String> {
    let average = match cluster.measured {
        Some(measured) => format!("an average over the CPU takes {measured:.1?}, as measured"),
        None => format!("a host adds parameters up at {:.0} GB/s", FOLD_RATE / 1e9),
    };
    let mut assumed = vec![average, "batches always take the same time, and nobody dies".to_owned()];
    if cluster.hosts.len() > 1 {
        let Link { bytes_s, latency } = cluster.link;
        assumed.push(format!("between hosts there are {} Gbit/s each way and {latency:.1?}", bytes_s * 8.0 / 1e9));
    }
    assumed.push("evaluation and checkpoints cost nothing; longer windows learn as well as short ones".to_owned());
    assumed
}

fn as_json(cluster: &Cluster, forecasts: &[Forecast]) -> Value {
    let mode = |forecast: &Forecast| {
        json!({
            "mode": forecast.mode.to_string(),
            "samples_per_s": forecast.samples_s,
            "ceiling_fraction": forecast.ceiling_fraction,
            "anchor": forecast.anchor,
            "window_s": forecast.window.as_secs_f64(),
            "average_s": forecast.reduce.as_secs_f64(),
            "link_bytes_per_s": forecast.link_bytes_s,
            "over_lockstep": forecast.over_lockstep,
        })
    };
    json!({
        "ranks": cluster.batches().count(),
        "hosts": cluster.hosts.len(),
        "ceiling_samples_per_s": cluster.ceiling(),
        "modes": forecasts.iter().map(mode).collect::<Vec<_>>(),
        "assumed": assumptions(cluster),
    })
}

fn as_text(cluster: &Cluster, forecasts: &[Forecast]) -> String {
    let mut text = String::new();
    let (ranks, hosts) = (cluster.batches().count(), cluster.hosts.len());
    let hosts = if hosts == 1 { "one host".to_owned() } else { format!("{hosts} hosts") };
    writeln!(text, "ranks: {ranks} on {hosts}, ceiling {:.0} samples/s", cluster.ceiling()).ok();
    writeln!(
        text,
        "{:<13}{:>12}{:>9}{:>8}{:>10}{:>10}{:>11}{:>12}",
        "mode", "samples/s", "ceiling", "anchor", "window", "average", "link MB/s", "x lockstep"
    )
    .ok();
    for forecast in forecasts {
        writeln!(
            text,
            "{:<13}{:>12.0}{:>8.1}%{:>8}{:>10}{:>10}{:>11.1}{:>12.2}",
            forecast.mode,
            forecast.samples_s,
            forecast.ceiling_fraction * 100.0,
            forecast.anchor,
            format!("{:.1?}", forecast.window),
            format!("{:.1?}", forecast.reduce),
            forecast.link_bytes_s / 1e6,
            forecast.over_lockstep,
        )
        .ok();
    }
    writeln!(text, "assumed:").ok();
    for assumed in assumptions(cluster) {
        writeln!(text, "- {assumed}").ok();
    }
    text.truncate(text.trim_end().len());
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO_HOSTS: &str = "batch_size = 64\nsamples = 60000\nparameters = 1000000\nlink_gbit_s = 10.0\n\
                             [[rank]]\nbatch_ms = 8\n[[rank]]\nhost = \"b\"\nbatch_ms = 32\ncount = 2\n";

    #[test]
    fn a_description_becomes_a_forecast_of_every_mode() {
        let cluster = read(TWO_HOSTS).expect("is valid");
        assert_eq!(cluster.hosts.iter().map(Vec::len).collect::<Vec<_>>(), [2, 1]);
        assert_eq!((cluster.bytes, cluster.link.bytes_s), (4_000_000, 1.25e9));
        let forecast = |&mode| cluster.forecast(mode, AnchorSettings::default()).expect("valid settings");
        let forecasts: Vec<Forecast> = Mode::ALL.iter().map(forecast).collect();
        let text = as_text(&cluster, &forecasts);
        assert!(text.starts_with("ranks: 3 on 2 hosts, ceiling 12000 samples/s"), "{text}");
        assert!(Mode::ALL.iter().all(|mode| text.contains(&mode.to_string())), "{text}");
        let json = as_json(&cluster, &forecasts);
        assert_eq!(json["modes"].as_array().map(Vec::len), Some(5));
        assert!(json["modes"][1]["over_lockstep"].as_f64() > Some(1.5), "{json:#}");
    }

    #[test]
    fn what_is_wrong_with_a_description_is_said() {
        for (from, to, said) in [
            ("batch_ms = 8", "batch_ms = 0", "batch_ms = 0: give a number above 0"),
            ("batch_ms = 8", "batch_ms = nan", "batch_ms = NaN"),
            ("count = 2", "count = 0", "count = 0"),
            ("link_gbit_s = 10.0", "link_gbit_s = -1.0", "link_gbit_s = -1"),
            ("batch_size = 64", "batch_size = 0", "at least 1"),
            ("samples = 60000", "sample = 60000", "unknown field `sample`"),
            ("parameters = 1000000", "", "missing field `parameters`"),
        ] {
            let text = TWO_HOSTS.replace(from, to);
            let error = read(&text).expect_err(to);
            assert!(error.contains(said), "{to}: {error}");
        }
    }
}
