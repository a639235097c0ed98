//! What pip is asked and how it answers: where a wheel is, by the person's own settings.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use super::python::Python;
use super::version;
use crate::failure::Failure;

/// The options that choose a wheel. The libraries in it do not depend on the version of Python that its bindings are
/// for, so that one is the same for everybody, and any Python that has pip will do.
const WHEEL: [&str; 7] = [
    "--no-deps",
    "--only-binary=:all:",
    "--python-version=3.11",
    "--implementation=cp",
    "--abi=cp311",
    "--retries=2",
    "--no-cache-dir",
];

/// The first pip whose dry run reports where a wheel is without fetching it.
const REPORTING: (u32, u32) = (25, 1);

/// A wheel that pip would install.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wheel {
    /// Where it is.
    pub(super) url: String,
    /// Its SHA-256 in hexadecimal digits.
    pub(super) sha256: String,
}

/// The settings of pip that a download of our own must honour.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Settings {
    /// A file or folder of certificates.
    pub(super) cert: String,
    /// A proxy's URL.
    pub(super) proxy: String,
}

/// The wheel of torch that is asked for. Where a server has a build labelled `+cpu` beside the plain one, that is a later
/// version to pip and so the one it takes.
pub(super) fn torch() -> String {
    format!("torch=={}", version::WANTED)
}

/// The wheels beside that of torch whose libraries its library for processors is linked with, by what that wheel requires.
///
/// A build for CUDA is linked with CUDA's runtime and its profiling interface, which are found in wheels of their own;
/// a build without has no such requirement. Where they are required through a bundle, `bundled` says which they are.
pub(super) fn companions(requires: &[String]) -> Vec<String> {
    let is_of = |requirement: &str, name: &str| {
        requirement.strip_prefix(name).is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_alphabetic()))
    };
    let mut found = Vec::new();
    for (name, bundled) in [("nvidia-cuda-runtime", "13.0.96"), ("nvidia-cuda-cupti", "13.0.85")] {
        if let Some(requirement) = requires.iter().find(|requirement| is_of(requirement, name)) {
            // Without the condition on the platform: the wheel was chosen for this one.
            found.push(requirement.split([';', ' ']).next().unwrap_or(requirement).to_owned());
        } else if requires.iter().any(|requirement| is_of(requirement, "cuda-toolkit")) {
            found.push(format!("{name}=={bundled}"));
        }
    }
    found
}

/// The person's pip, and a folder for what it leaves.
#[derive(Debug)]
pub(super) struct Pip<'a> {
    python: &'a Python,
    folder: PathBuf,
    /// How a pip that reports is started: as the person's own module, or from a wheel; `None` where there is none.
    reporting: Option<Vec<String>>,
}

impl<'a> Pip<'a> {
    /// Looks for the person's pip. Where it is too old to report, a newer one is fetched with it into the folder and run
    /// from there, under the same settings; it is installed nowhere.
    ///
    /// # Errors
    ///
    /// [`Failure::Failed`] with a sentence: there is no Python, no pip, no network.
    pub(super) fn find(python: &'a Python, folder: &Path) -> Result<Self, Failure> {
        let mut pip = Self { python, folder: folder.to_path_buf(), reporting: None };
        let output = pip.run(&OWN, &["--version"])?;
        if !output.status.success() {
            return Err(refusal("pip", &String::from_utf8_lossy(&output.stderr)));
        }
        let is_new = pip_version(&String::from_utf8_lossy(&output.stdout)).is_some_and(|version| version >= REPORTING);
        if is_new {
            pip.reporting = Some(OWN.map(str::to_owned).to_vec());
            return Ok(pip);
        }
        let (major, minor) = REPORTING;
        let requirement = format!("pip>={major}.{minor}");
        let dest = pip.folder_of("pip");
        let args =
            ["download", "--quiet", "--no-deps", "--only-binary=:all:", "--retries=2", "--dest", &dest, &requirement];
        let output = pip.run(&OWN, &args)?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() && is_unreachable(&stderr) {
            return Err(refusal(&requirement, &stderr));
        }
        // A wheel of pip can be run as it is. For an old Python there is none that is new enough.
        pip.reporting = wheel_in(Path::new(&dest)).map(|wheel| vec![wheel.join("pip").to_string_lossy().into_owned()]);
        Ok(pip)
    }

    /// Asks for the wheel of a requirement; `None` where this pip, or its server, cannot tell and pip has to fetch it.
    ///
    /// # Errors
    ///
    /// [`Failure::Failed`] with a sentence: there is no network, no such wheel.
    pub(super) fn locate(&self, requirement: &str) -> Result<Option<Wheel>, Failure> {
        let Some(start) = &self.reporting else { return Ok(None) };
        let report = self.folder_of("report.json");
        // pip wants a target for a wheel chosen for another Python. Nothing is written to it.
        let unused = self.folder_of("unused");
        let mut args = vec!["install", "--dry-run", "--ignore-installed", "--target", &unused, "--report", &report];
        // A server without metadata files beside its wheels is asked for that part of the wheel, not for all of it.
        args.push("--use-feature=fast-deps");
        args.extend(WHEEL);
        args.push(requirement);
        let start: Vec<&str> = start.iter().map(String::as_str).collect();
        match watch(self.command(&start, &args)).map_err(|error| no_python(&error))? {
            Watched::Fetches => Ok(None),
            // A pip that no longer knows the feature.
            Watched::Ended { succeeded: false, stderr } if stderr.contains("invalid choice") => Ok(None),
            Watched::Ended { succeeded: false, stderr } => Err(refusal(requirement, &stderr)),
            Watched::Ended { succeeded: true, .. } => {
                Ok(std::fs::read_to_string(&report).ok().as_deref().and_then(wheel))
            }
        }
    }

    /// Has pip fetch the wheel of a requirement, with its own progress on the standard error. It checks the wheel, and
    /// begins anew where it was interrupted.
    ///
    /// # Errors
    ///
    /// [`Failure::Failed`] where pip fails, after its own words.
    pub(super) fn fetch(&self, requirement: &str) -> Result<PathBuf, Failure> {
        // A folder for each tells which wheel came for which requirement.
        let folder = self.folder_of(&requirement.replace(|c: char| !c.is_ascii_alphanumeric(), "-"));
        let mut args = vec!["download", "--dest", &folder];
        args.extend(WHEEL);
        args.push(requirement);
        let status = self.command(&OWN, &args).stdout(std::io::stderr()).status().map_err(|error| no_python(&error))?;
        if !status.success() {
            return Err(Failure::failed(format!(
                "pip cannot fetch {requirement}, see above: see to that, or set LIBTORCH to a libtorch {}",
                version::WANTED
            )));
        }
        wheel_in(Path::new(&folder))
            .ok_or_else(|| Failure::failed(format!("pip fetched no wheel of {requirement} into {folder}")))
    }

    /// The settings for connections; the defaults where pip does not say.
    pub(super) fn settings(&self) -> Settings {
        match self.run(&OWN, &["config", "list"]) {
            Ok(output) if output.status.success() => parse_settings(&String::from_utf8_lossy(&output.stdout)),
            _ => Settings::default(),
        }
    }

    fn folder_of(&self, name: &str) -> String {
        self.folder.join(name).to_string_lossy().into_owned()
    }

    /// A command that asks no questions.
    fn command(&self, start: &[&str], args: &[&str]) -> Command {
        let mut command = self.python.command();
        command.args(start).args(args).stdin(Stdio::null());
        command.envs([
            ("PIP_DISABLE_PIP_VERSION_CHECK", "1"),
            ("PIP_NO_INPUT", "1"),
            // With these, which speak of installing into an environment, pip would refuse. Nothing is installed.
            ("PIP_USER", "0"),
            ("PIP_REQUIRE_VIRTUALENV", "0"),
            // What is read line by line must come line by line.
            ("PYTHONUNBUFFERED", "1"),
        ]);
        command
    }

    fn run(&self, start: &[&str], args: &[&str]) -> Result<Output, Failure> {
        self.command(start, args).output().map_err(|error| no_python(&error))
    }
}

/// How the person's own pip is started.
const OWN: [&str; 2] = ["-m", "pip"];

/// The wheel in a folder.
fn wheel_in(folder: &Path) -> Option<PathBuf> {
    let mut paths = std::fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
    paths.find(|path| path.extension().is_some_and(|extension| extension == "whl"))
}

/// What came of a dry run.
enum Watched {
    /// It began to fetch the whole wheel to learn what is in it, and was ended.
    Fetches,
    /// It ended.
    Ended { succeeded: bool, stderr: String },
}

/// Runs pip up to the point where it fetches a wheel, which would be of no use and take minutes.
fn watch(mut pip: Command) -> std::io::Result<Watched> {
    let mut child = pip.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    std::thread::scope(|scope| {
        let complaints = scope.spawn(|| {
            let mut text = Vec::new();
            stderr.map(|mut stderr| stderr.read_to_end(&mut text)).transpose().map(|_| text)
        });
        for line in stdout.into_iter().flat_map(|stdout| BufReader::new(stdout).lines()) {
            if fetches(&line?) {
                child.kill()?;
                child.wait()?;
                return Ok(Watched::Fetches);
            }
        }
        let succeeded = child.wait()?.success();
        let complaints = complaints.join().unwrap_or_else(|_| Ok(Vec::new()))?;
        Ok(Watched::Ended { succeeded, stderr: String::from_utf8_lossy(&complaints).into_owned() })
    })
}

/// Whether a line of pip's says that it fetches a wheel rather than the metadata beside it. A pip that words it otherwise
/// only costs the time of that download.
fn fetches(line: &str) -> bool {
    line.trim_start().starts_with("Downloading ") && line.contains(".whl") && !line.contains(".metadata")
}

fn no_python(error: &std::io::Error) -> Failure {
    Failure::failed(format!("cannot start python3 ({error}): install Python 3 with pip, or set LIBTORCH"))
}

/// `pip 23.2.1 from PATH (python 3.11)`.
fn pip_version(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.strip_prefix("pip ")?.split_whitespace().next()?.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// The one wheel of a report; `None` where it has no checksum or no address to fetch it from.
fn wheel(report: &str) -> Option<Wheel> {
    let report: Value = serde_json::from_str(report).ok()?;
    let [item] = report["install"].as_array()?.as_slice() else { return None };
    let download = &item["download_info"];
    let sha256 = download["archive_info"]["hashes"]["sha256"].as_str()?;
    let url = download["url"].as_str()?;
    let is_checksum = sha256.len() == 64 && sha256.bytes().all(|byte| byte.is_ascii_hexdigit());
    let is_remote = url.starts_with("https://") || url.starts_with("http://");
    (is_checksum && is_remote).then(|| Wheel { url: url.to_owned(), sha256: sha256.to_ascii_lowercase() })
}

/// What pip's own words come to.
fn refusal(requirement: &str, stderr: &str) -> Failure {
    let says = |words: &[&str]| words.iter().any(|word| stderr.contains(word));
    let wanted = version::WANTED;
    if says(&["No module named pip"]) {
        return Failure::failed(
            "python3 has no pip: install it (`python3 -m ensurepip`, or your system's package python3-pip), or set LIBTORCH",
        );
    }
    // A server that was not reached has no versions either, so the connection's troubles come first.
    if is_unreachable(stderr) {
        return Failure::failed(
            "pip cannot reach its package server: check the network and pip's settings (`python3 -m pip config list`), \
             or set LIBTORCH",
        );
    }
    if says(&["No matching distribution", "Could not find a version"]) {
        return Failure::failed(format!(
            "pip's package server has no wheel of {requirement} for this machine (they are for glibc 2.28 and newer): \
             set LIBTORCH to a libtorch {wanted}"
        ));
    }
    let last =
        stderr.lines().rfind(|line| line.contains("ERROR")).or(stderr.lines().last()).unwrap_or("no reason given");
    Failure::failed(format!("pip fails ({last}): see to that, or set LIBTORCH to a libtorch {wanted}"))
}

/// Whether pip complains of its connections.
fn is_unreachable(stderr: &str) -> bool {
    ["Retrying (", "NewConnectionError", "ConnectTimeout", "ReadTimeout", "SSLError", "ProxyError"]
        .iter()
        .any(|word| stderr.contains(word))
}

/// `SECTION.NAME='VALUE'` a line; what is set in the environment counts most, then for installing, then for everything.
fn parse_settings(text: &str) -> Settings {
    let value = |name: &str| {
        [":env:.", "install.", "global."]
            .iter()
            .find_map(|section| {
                let key = format!("{section}{name}=");
                text.lines().find_map(|line| line.strip_prefix(&key))
            })
            .map(|value| value.trim().trim_matches(['\'', '"']).to_owned())
            .unwrap_or_default()
    };
    Settings { cert: value("cert"), proxy: value("proxy") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(url: &str, sha256: &str) -> String {
        let download = serde_json::json!({"url": url, "archive_info": {"hashes": {"sha256": sha256}}});
        serde_json::json!({"version": "1", "install": [{"download_info": download}]}).to_string()
    }

    #[test]
    fn a_report_says_where_the_wheel_is_and_what_it_must_be() {
        let whole = wheel(&report("https://host/torch.whl", &"aB".repeat(32)));
        assert_eq!(whole, Some(Wheel { url: "https://host/torch.whl".into(), sha256: "ab".repeat(32) }));
        for (url, sha256) in [
            ("https://host/t.whl", "ab"),
            ("https://host/t.whl", "zz".repeat(32).as_str()),
            ("file:///t.whl", "ab".repeat(32).as_str()),
        ] {
            assert_eq!(wheel(&report(url, sha256)), None, "{url} {sha256}");
        }
        for text in ["", "{}", "[]", "{\"install\": []}", "{\"install\": [{}]}"] {
            assert_eq!(wheel(text), None, "{text}");
        }
    }

    #[test]
    fn a_build_for_cuda_needs_two_more_wheels() {
        let bundle = "cuda-toolkit[cublas,cudart,cupti]==13.0.2; platform_system == \"Linux\"";
        let direct = [
            "nvidia-cuda-runtime-cu12==12.6.77; platform_system == \"Linux\"",
            "nvidia-cuda-cupti-cu12==12.6.80 ; platform_system == \"Linux\"",
            "nvidia-cublas-cu12==12.6.4.1",
        ];
        let cases: [(&[&str], &[&str]); 4] = [
            (&["filelock", bundle], &["nvidia-cuda-runtime==13.0.96", "nvidia-cuda-cupti==13.0.85"]),
            (&direct, &["nvidia-cuda-runtime-cu12==12.6.77", "nvidia-cuda-cupti-cu12==12.6.80"]),
            (&["filelock", "sympy>=1.13.3"], &[]),
            (&["cuda-toolkits==1"], &[]),
        ];
        for (requires, expected) in cases {
            let requires: Vec<String> = requires.iter().map(|text| (*text).to_owned()).collect();
            assert_eq!(companions(&requires), expected, "{requires:?}");
        }
    }

    #[test]
    fn a_pip_that_fetches_is_told_from_one_that_asks() {
        for (line, expected) in [
            ("  Downloading torch-2.11.0-cp311-cp311-manylinux_2_28_x86_64.whl.metadata (29 kB)", false),
            ("  Downloading torch-2.11.0-cp311-cp311-manylinux_2_28_x86_64.whl (530.6 MB)", true),
            ("Downloading https://host/torch-2.11.0.whl (530.6 MB)", true),
            ("Collecting torch==2.11.0", false),
            ("Would install torch-2.11.0", false),
        ] {
            assert_eq!(fetches(line), expected, "line: {line}");
        }
    }

    #[test]
    fn old_pips_do_not_report() {
        for (text, expected) in [
            ("pip 23.2.1 from /x (python 3.11)\n", Some(false)),
            ("pip 25.0 from /x", Some(false)),
            ("pip 25.1.1 from /x", Some(true)),
            ("pip 26.3 from /x", Some(true)),
            ("pip 22.3 from /x", Some(false)),
            ("python: no", None),
        ] {
            assert_eq!(pip_version(text).map(|version| version >= REPORTING), expected, "{text}");
        }
    }

    #[test]
    fn what_pip_says_becomes_a_sentence() {
        let unreachable = "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError(...)'\n\
                           ERROR: No matching distribution found for torch==2.11.0\n";
        let cases = [
            ("/usr/bin/python3: No module named pip\n", "python3 has no pip"),
            (unreachable, "check the network"),
            ("ERROR: No matching distribution found for torch==2.11.0\n", "no wheel of torch==2.11.0 for this machine"),
            ("ERROR: 403 Client Error: Forbidden\nnote\n", "ERROR: 403 Client Error: Forbidden"),
            ("", "no reason given"),
        ];
        for (stderr, expected) in cases {
            let failure = refusal("torch==2.11.0", stderr);
            let said = failure.message().unwrap_or_default();
            assert!(said.contains(expected) && said.contains("LIBTORCH"), "said: {said}\nexpected: {expected}");
        }
    }

    #[test]
    fn settings_of_the_environment_count_most() {
        let text = "global.cert='/g.pem'\n:env:.cert='/e.pem'\ninstall.proxy='http://p:1'\nglobal.proxy='http://q:2'\n";
        assert_eq!(parse_settings(text), Settings { cert: "/e.pem".into(), proxy: "http://p:1".into() });
        assert_eq!(parse_settings("global.timeout='5'\n"), Settings::default());
    }
}
