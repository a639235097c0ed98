//! What of a wheel is kept, and where.

use std::path::Path;

/// Members to take, each with its place in the folder of libtorch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Picked {
    /// Member and place.
    pub(super) plan: Vec<(String, String)>,
    /// Libraries among them: the name in `lib/` and the size in bytes.
    pub(super) libraries: Vec<(String, u64)>,
    /// Bytes of all of them, unpacked.
    pub(super) bytes: u64,
}

impl Picked {
    /// Picks from the members of a wheel, each with its size.
    pub(super) fn from(members: &[(String, u64)]) -> Self {
        let mut picked = Self::default();
        for (member, size) in members {
            let Some(place) = place(member) else { continue };
            if let Some(name) = place.strip_prefix("lib/") {
                picked.libraries.push((name.to_owned(), *size));
            }
            picked.bytes = picked.bytes.saturating_add(*size);
            picked.plan.push((member.clone(), place));
        }
        picked
    }
}

/// Libraries of torch that a build for processors does not need: CUDA's side, Python's side, and the one that ties
/// them together and loads everything, which a link to the main library stands for.
const LEFT_OUT: [&str; 6] = ["cuda", "nvrtc", "nvshmem", "libtorch_python", "libtorch_global_deps", "libshm"];

/// The place of a member in the folder of libtorch; `None` for what is left out.
fn place(member: &str) -> Option<String> {
    // A place is built from plain parts only, whatever a wheel names its members.
    let is_plain =
        |part: &str| !part.is_empty() && part != "." && part != ".." && !part.contains(['\\', '\t', '\n', '\r']);
    if !member.split('/').all(is_plain) {
        return None;
    }
    let (folder, name) = member.rsplit_once('/')?;
    if member.starts_with("torch/include/") {
        return member.strip_prefix("torch/").map(str::to_owned);
    }
    if folder == "torch/lib" {
        let is_left_out = name == "libtorch.so" || LEFT_OUT.iter().any(|part| name.contains(part));
        return (is_library(name) && !is_left_out).then(|| format!("lib/{name}"));
    }
    if name.starts_with("libcudart.so.") || name.starts_with("libcupti.so.") {
        return Some(format!("lib/{name}"));
    }
    // The terms under which the libraries are passed on.
    let (_, inside) = member.split_once(".dist-info/")?;
    let is_terms = ["LICENSE", "LICENCE", "NOTICE"].iter().any(|word| name.to_ascii_uppercase().starts_with(word));
    (is_terms && inside.ends_with(name)).then(|| format!("licences/{}", member.replace('/', "-")))
}

/// `libc10.so`, `libgomp.so.1`, `libgomp-98b21ff3.so.1.0.0`.
fn is_library(name: &str) -> bool {
    Path::new(name).extension().is_some_and(|extension| extension == "so") || name.contains(".so.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_build_for_processors_needs_is_kept() {
        let cases = [
            ("torch/include/ATen/ATen.h", Some("include/ATen/ATen.h")),
            ("torch/include/ATen/cuda/CUDAContext.h", Some("include/ATen/cuda/CUDAContext.h")),
            ("torch/lib/libtorch_cpu.so", Some("lib/libtorch_cpu.so")),
            ("torch/lib/libc10.so", Some("lib/libc10.so")),
            ("torch/lib/libgomp.so.1", Some("lib/libgomp.so.1")),
            ("torch/lib/libgomp-98b21ff3.so.1.0.0", Some("lib/libgomp-98b21ff3.so.1.0.0")),
            ("torch/lib/libarm_compute.so", Some("lib/libarm_compute.so")),
            ("nvidia/cu13/lib/libcudart.so.13", Some("lib/libcudart.so.13")),
            ("nvidia/cuda_cupti/lib/libcupti.so.12", Some("lib/libcupti.so.12")),
            ("torch-2.11.0.dist-info/licenses/NOTICE", Some("licences/torch-2.11.0.dist-info-licenses-NOTICE")),
            ("torch/lib/libtorch.so", None),
            ("torch/lib/libtorch_cuda.so", None),
            ("torch/lib/libc10_cuda.so", None),
            ("torch/lib/libtorch_python.so", None),
            ("torch/lib/libcaffe2_nvrtc.so", None),
            ("torch/bin/protoc", None),
            ("torch/_C.cpython-311-x86_64-linux-gnu.so", None),
            ("nvidia/cu13/lib/libnvperf_host.so", None),
            ("torch-2.11.0.dist-info/RECORD", None),
        ];
        for (member, expected) in cases {
            assert_eq!(place(member).as_deref(), expected, "member: {member}");
        }
    }

    #[test]
    fn no_member_leaves_the_folder() {
        for member in [
            "torch/include/../../x",
            "torch/include/./x",
            "torch/include//x",
            "torch/include/a\tb",
            "torch/include/a\\..\\b",
            "../libcudart.so.13",
            "/libcudart.so.13",
            "",
        ] {
            assert_eq!(place(member), None, "member: {member}");
        }
    }

    #[test]
    fn sizes_are_summed_and_libraries_listed() {
        let members = [("torch/lib/libc10.so", 5), ("torch/lib/libc10_cuda.so", 7), ("torch/include/a.h", 11)];
        let picked = Picked::from(&members.map(|(name, size)| (name.to_owned(), size)));
        assert_eq!(picked.libraries, [("libc10.so".to_owned(), 5)]);
        assert_eq!((picked.bytes, picked.plan.len()), (16, 2));
    }
}
