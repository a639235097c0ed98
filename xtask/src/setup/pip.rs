//! What pip is asked and how it answers: where a wheel is, by the person's own settings.

use std::path::{Path, PathBuf};
use std::process::Output;

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

/// The first pip that tells where a wheel is without fetching it.
const REPORTING: (u32, u32) = (23, 2);

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

/// The wheel of torch that is asked for. A build of it for processors alone is preferred by the order of versions.
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

/// Asks pip for the wheel of a requirement; `None` where this pip, or its server, cannot tell and pip has to fetch it.
///
/// # Errors
///
/// [`Failure::Failed`] with a sentence: there is no pip, no network, no such wheel.
pub(super) fn locate(python: &Python, requirement: &str) -> Result<Option<Wheel>, Failure> {
    let version = run(python, &["--version"])?;
    if !version.status.success() {
        return Err(refusal(&String::from_utf8_lossy(&version.stderr)));
    }
    if pip_version(&String::from_utf8_lossy(&version.stdout)).is_none_or(|version| version < REPORTING) {
        return Ok(None);
    }
    // pip wants a target for a wheel chosen for another Python. Nothing is written to it.
    let unused = std::env::temp_dir().join("flodl-setup-unused").to_string_lossy().into_owned();
    let mut args = vec!["install", "--dry-run", "--ignore-installed", "--quiet", "--report=-", "--target", &unused];
    // A server without the metadata beside the wheels is asked for that part of the wheel, not for all of it.
    args.push("--use-feature=fast-deps");
    args.extend(WHEEL);
    args.push(requirement);
    let output = run(python, &args)?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    if output.status.success() {
        Ok(wheel(&String::from_utf8_lossy(&output.stdout)))
    } else if stderr.contains("invalid choice") || stderr.contains("no such option") {
        Ok(None)
    } else {
        Err(refusal(&stderr))
    }
}

/// Has pip fetch the wheel of a requirement into a folder, with its own progress on the standard error. It checks the
/// wheel, and begins anew where it was interrupted.
///
/// # Errors
///
/// [`Failure::Failed`] where pip fails, after its own words.
pub(super) fn fetch(python: &Python, requirement: &str, folder: &Path) -> Result<PathBuf, Failure> {
    // A folder for each tells which wheel came for which requirement.
    let folder = folder.join(requirement.replace(|c: char| !c.is_ascii_alphanumeric(), "-"));
    let place = folder.to_string_lossy().into_owned();
    let mut args = vec!["download", "--dest", &place];
    args.extend(WHEEL);
    args.push(requirement);
    let status = python.pip(&args).stdout(std::io::stderr()).status().map_err(|error| no_python(&error))?;
    if !status.success() {
        return Err(Failure::failed(format!(
            "pip cannot fetch {requirement}, see above: see to that, or set LIBTORCH to a libtorch {}",
            version::WANTED
        )));
    }
    let entries = std::fs::read_dir(&folder)
        .map_err(|error| Failure::failed(format!("cannot read {}: {error}", folder.display())))?;
    let mut wheels = entries.flatten().map(|entry| entry.path());
    wheels
        .find(|path| path.extension().is_some_and(|extension| extension == "whl"))
        .ok_or_else(|| Failure::failed(format!("pip fetched no wheel of {requirement} into {}", folder.display())))
}

/// The settings of pip for its connections; the defaults where it does not say.
pub(super) fn settings(python: &Python) -> Settings {
    match run(python, &["config", "list"]) {
        Ok(output) if output.status.success() => parse_settings(&String::from_utf8_lossy(&output.stdout)),
        _ => Settings::default(),
    }
}

fn run(python: &Python, args: &[&str]) -> Result<Output, Failure> {
    python.pip(args).output().map_err(|error| no_python(&error))
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
fn refusal(stderr: &str) -> Failure {
    let says = |words: &[&str]| words.iter().any(|word| stderr.contains(word));
    let wanted = version::WANTED;
    if says(&["No module named pip"]) {
        return Failure::failed(
            "python3 has no pip: install it (`python3 -m ensurepip`, or your system's package python3-pip), or set LIBTORCH",
        );
    }
    // A server that was not reached has no versions either, so the connection's troubles come first.
    if says(&["Retrying (", "NewConnectionError", "ConnectTimeout", "ReadTimeout", "SSLError", "ProxyError"]) {
        return Failure::failed(
            "pip cannot reach its package server: check the network and pip's settings (`python3 -m pip config list`), \
             or set LIBTORCH",
        );
    }
    if says(&["No matching distribution", "Could not find a version"]) {
        return Failure::failed(format!(
            "pip's package server has no wheel of torch {wanted} for this machine (they are for glibc 2.28 and newer): \
             set LIBTORCH to a libtorch {wanted}"
        ));
    }
    let last =
        stderr.lines().rfind(|line| line.contains("ERROR")).or(stderr.lines().last()).unwrap_or("no reason given");
    Failure::failed(format!("pip fails ({last}): see to that, or set LIBTORCH to a libtorch {wanted}"))
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
    fn old_pips_only_fetch() {
        for (text, expected) in [
            ("pip 23.2.1 from /x (python 3.11)\n", Some(true)),
            ("pip 25.0 from /x", Some(true)),
            ("pip 23.1.2 from /x", Some(false)),
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
            ("ERROR: No matching distribution found for torch==2.11.0\n", "no wheel of torch 2.11.0 for this machine"),
            ("ERROR: 403 Client Error: Forbidden\nnote\n", "ERROR: 403 Client Error: Forbidden"),
            ("", "no reason given"),
        ];
        for (stderr, expected) in cases {
            let failure = refusal(stderr);
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
