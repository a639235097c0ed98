//! Traces: what happens to a few devices over many windows, next to what a person would want to happen.
//!
//! Each file in `tests/traces` is commands, a line `----`, and what they print. Wants are checked: a `want` that is not met
//! fails whatever the file says. `TRACES=write cargo test -p flodl-elche --test traces` writes the files anew.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;
use std::{env, fs};

use flodl_elche::model::{Model, Pace, Window};
use flodl_elche::{AnchorSettings, Change, Elche, GuardKind, Policy, Settings, Slot};

/// What a trace's first lines set up.
struct Setup {
    settings: Settings,
    guard: GuardKind,
    epoch: u64,
}

struct Trace {
    setup: Setup,
    model: Option<Model>,
    windows: Vec<Window>,
    millis: Vec<f64>,
    divergence: Vec<f64>,
}

fn ms(millis: f64) -> Duration {
    Duration::from_secs_f64(millis / 1e3)
}

fn number(word: &str) -> f64 {
    word.parse().unwrap_or_else(|_| panic!("{word:?} is no number"))
}

fn slot(word: &str) -> Slot {
    Slot(word.parse().unwrap_or_else(|_| panic!("{word:?} is no member")))
}

/// A batch time with a fixed pseudo-random factor in [1 - spread, 1 + spread].
fn jittery(mean: f64, spread: f64, seed: u64) -> Pace {
    Box::new(move |batch| {
        let mut x = (batch + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ seed.wrapping_mul(0xd134_2543_de82_ef95);
        x = (x ^ (x >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let uniform = (x >> 11) as f64 / (1u64 << 53) as f64;
        ms(mean * (1.0 + spread * (2.0 * uniform - 1.0)))
    })
}

impl Trace {
    fn new() -> Self {
        let settings = Settings { batch_size: 1, ..Settings::default() };
        let setup = Setup { settings, guard: GuardKind::None, epoch: 1_000_000 };
        Self { setup, model: None, windows: Vec::new(), millis: Vec::new(), divergence: Vec::new() }
    }

    fn model(&mut self) -> &mut Model {
        let setup = &self.setup;
        self.model.get_or_insert_with(|| {
            let elche = Elche::new(setup.settings.clone(), setup.guard.build(1.0)).expect("valid settings");
            Model::new(Box::new(elche), setup.settings.policy, setup.epoch)
        })
    }

    fn join(&mut self, slot: Slot, millis: f64, pace: Pace) {
        let index = slot.0 as usize;
        if self.millis.len() <= index {
            self.millis.resize(index + 1, 0.0);
        }
        self.millis[index] = millis;
        self.model().join(slot, pace);
    }

    /// Carries out one command; what it prints.
    fn command(&mut self, line: &str) -> String {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["guard", kind] => self.setup.guard = kind.parse().expect("a guard"),
            ["anchor", anchor] => self.setup.settings.anchor = AnchorSettings::fixed(number(anchor) as u32),
            ["policy", "async"] => self.setup.settings.policy = Policy::Async,
            ["epoch", batches] => self.setup.epoch = number(batches) as u64,
            ["reduce", millis] => self.model().round.reduce = ms(number(millis)),
            ["rate", rate] => self.model().round.rate = Some(number(rate)),
            ["divergence", ref values @ ..] => self.divergence = values.iter().map(|word| number(word)).collect(),
            ["member", who, millis] => {
                let millis = number(millis);
                self.join(slot(who), millis, Box::new(move |_| ms(millis)));
            }
            ["jittery", who, millis, spread] => {
                let (mean, spread) = (number(millis), number(spread));
                self.join(slot(who), mean, jittery(mean, spread, u64::from(slot(who).0)));
            }
            ["bimodal", who, short, long] => {
                let (short, long) = (number(short), number(long));
                let pace: Pace = Box::new(move |batch| ms(if batch % 2 == 0 { short } else { long }));
                self.join(slot(who), (short + long) / 2.0, pace);
            }
            ["drift", who, from, to, batches] => {
                let (from, to, batches) = (number(from), number(to), number(batches));
                let pace: Pace = Box::new(move |n| ms(from + (to - from) * (n as f64 / batches).min(1.0)));
                self.join(slot(who), from, pace);
            }
            ["spike", who, millis, factor] => {
                let (millis, factor) = (number(millis), number(factor));
                let pace: Pace = Box::new(move |n| ms(if n == 0 { millis * factor } else { millis }));
                self.join(slot(who), millis, pace);
            }
            ["leave", who] => {
                self.millis[slot(who).0 as usize] = 0.0;
                self.model().leave(slot(who));
            }
            ["run", windows] => return self.run(number(windows) as usize),
            ["want", metric, op, value] => return self.want(metric, op, number(value)),
            _ => panic!("no such command: {line}"),
        }
        String::new()
    }

    /// Windows one after the other: what changed in each, and what the last one was like.
    fn run(&mut self, windows: usize) -> String {
        let mut text = String::new();
        for _ in 0..windows {
            if !self.divergence.is_empty() {
                let value = self.divergence.remove(0);
                self.model().round.divergence = Some(value);
            }
            let window = self.model().window();
            let number = self.windows.len() + 1;
            let said = window.plan.reasons.iter().chain(&window.changes).filter(|change| tells(change));
            let before = self.windows.last().map(held).unwrap_or_default();
            for change in said {
                if !matches!(change, Change::AnchorHeld { .. }) || !before {
                    writeln!(text, "  {number}: {change}").expect("a string");
                }
            }
            self.windows.push(window);
        }
        let last = self.windows.last().expect("at least one");
        let quotas: Vec<String> = last.plan.shares.iter().map(|share| share.quota.to_string()).collect();
        let done: Vec<String> = last.work.iter().map(|work| work.batches.to_string()).collect();
        writeln!(
            text,
            "  window {}: anchor {}, quotas {}, done {} in {:.0} ms, {:.1} % waiting",
            self.windows.len(),
            last.plan.anchor,
            quotas.join(" "),
            done.join(" "),
            last.wall.as_secs_f64() * 1e3,
            last.waiting() * 100.0
        )
        .expect("a string");
        text
    }

    fn want(&self, metric: &str, op: &str, value: f64) -> String {
        let last = self.windows.last().expect("a window was run");
        let (name, of) = metric.split_once(':').unwrap_or((metric, ""));
        let recent = || self.windows.iter().rev().take(if of.is_empty() { usize::MAX } else { number(of) as usize });
        let is = match name {
            "anchor" => f64::from(last.plan.anchor),
            "quota" => {
                let share = last.plan.shares.iter().find(|share| share.slot == slot(of));
                share.map_or(-1.0, |share| f64::from(share.quota))
            }
            // The mean over the last so many windows.
            "waiting" => 100.0 * recent().map(Window::waiting).sum::<f64>() / recent().count() as f64,
            // Batches done over what all could have done alone at their present pace.
            "ceiling" => {
                let batches: u64 = recent().map(Window::batches).sum();
                let wall: f64 = recent().map(|window| window.wall.as_secs_f64()).sum();
                let solo: f64 = self.millis.iter().filter(|&&millis| millis > 0.0).map(|millis| 1e3 / millis).sum();
                batches as f64 / (solo * wall)
            }
            _ => panic!("no such metric: {metric}"),
        };
        let met = match op {
            "<=" => is <= value,
            ">=" => is >= value,
            "=" => (is - value).abs() < 1e-9,
            _ => panic!("no such comparison: {op}"),
        };
        format!("  {}: {is:.3}\n", if met { "yes" } else { "NO" })
    }
}

/// What a trace shows: where the window ends an epoch is shown by its quotas.
fn tells(change: &Change) -> bool {
    !matches!(change, Change::LeasesCut { .. } | Change::Tail { .. } | Change::Joined { .. })
}

/// Whether a window's round left the anchor where it was although the target is elsewhere.
fn held(window: &Window) -> bool {
    window.changes.iter().any(|change| matches!(change, Change::AnchorHeld { .. }))
}

fn check(path: &Path) {
    let text = fs::read_to_string(path).expect("readable");
    let (commands, expected) = text.split_once("\n----\n").unwrap_or((text.trim_end(), ""));
    let mut trace = Trace::new();
    let mut printed = String::new();
    for line in commands.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let said = trace.command(line);
        if !said.is_empty() {
            write!(printed, "{line}\n{said}").expect("a string");
        }
    }
    let name = path.file_name().expect("a file").to_string_lossy().into_owned();
    let unmet: Vec<&str> = printed.lines().filter(|line| line.starts_with("  NO")).collect();
    if env::var_os("TRACES").is_some_and(|what| what == "write") {
        fs::write(path, format!("{commands}\n----\n{printed}")).expect("writable");
    } else {
        assert_eq!(printed, expected, "{name}");
    }
    assert!(unmet.is_empty(), "{name} does not do what is wanted:\n{printed}");
}

#[test]
fn traces_show_what_is_wanted() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/traces");
    let mut files: Vec<_> =
        fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("a file").path()).collect();
    files.sort();
    assert!(files.len() >= 12, "{files:?}");
    files.iter().for_each(|path| check(path));
}
