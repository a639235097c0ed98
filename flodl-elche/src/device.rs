//! How fast a device should be, by what its maker says of it: a guess for the first window, until something is measured.

/// What a maker says of a device.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct DeviceSpec {
    /// Peak arithmetic in single precision, in TFLOP/s.
    pub tflops: f64,
    /// Peak memory bandwidth, in GB/s.
    pub memory_gb_s: f64,
}

/// Name, single-precision TFLOP/s, memory GB/s, by the makers' data sheets. Where one name is a part of another the longer
/// one comes first.
const KNOWN: [(&str, f64, f64); 27] = [
    ("H200", 67.0, 4800.0),
    ("H100 PCIe", 51.0, 2000.0),
    ("H100", 67.0, 3350.0),
    ("A100-SXM4-80GB", 19.5, 2039.0),
    ("A100", 19.5, 1555.0),
    ("V100", 15.7, 900.0),
    ("L40S", 91.6, 864.0),
    ("L40", 90.5, 864.0),
    ("L4", 30.3, 300.0),
    ("RTX A6000", 38.7, 768.0),
    ("A40", 37.4, 696.0),
    ("A10", 31.2, 600.0),
    ("Tesla T4", 8.1, 320.0),
    ("RTX 5090", 104.8, 1792.0),
    ("RTX 5080", 56.3, 960.0),
    ("RTX 5060 Ti", 23.7, 448.0),
    ("RTX 4090", 82.6, 1008.0),
    ("RTX 4080", 48.7, 717.0),
    ("RTX 4070", 29.1, 504.0),
    ("RTX 3090", 35.6, 936.0),
    ("RTX 3080", 29.8, 760.0),
    ("RTX 3070", 20.3, 448.0),
    ("RTX 3060", 12.7, 360.0),
    ("RTX 2080 Ti", 13.4, 616.0),
    ("GTX 1080 Ti", 11.3, 484.0),
    ("GTX 1080", 8.9, 320.0),
    ("GTX 1060", 4.4, 192.0),
];

impl DeviceSpec {
    /// What is known of a device with this name, as its driver gives it ("NVIDIA GeForce RTX 4090"); nothing for most
    /// devices, all CPUs among them: their speed depends on how many threads they are given.
    pub fn of(name: &str) -> Option<Self> {
        let (_, tflops, memory_gb_s) = KNOWN.iter().find(|(known, ..)| contains(name, known))?;
        Some(Self { tflops: *tflops, memory_gb_s: *memory_gb_s })
    }

    /// A relative speed for training: the geometric mean of the two, because some of a step's time goes with arithmetic
    /// and some with memory, and nobody knows beforehand how much.
    ///
    /// ```
    /// use flodl_elche::DeviceSpec;
    /// let speed = |name| DeviceSpec::of(name).map(|spec| spec.speed());
    /// let ratio = speed("NVIDIA GeForce RTX 4090").unwrap() / speed("NVIDIA GeForce RTX 3060").unwrap();
    /// assert!((4.0..5.0).contains(&ratio));
    /// assert_eq!(speed("cpu"), None);
    /// ```
    pub fn speed(&self) -> f64 {
        (self.tflops * self.memory_gb_s).sqrt()
    }
}

/// Whether `name` holds `part` as words of its own: an "A100" is no "A10".
fn contains(name: &str, part: &str) -> bool {
    name.match_indices(part).any(|(at, _)| {
        let before = name[..at].chars().next_back();
        let after = name[at + part.len()..].chars().next();
        ![before, after].into_iter().flatten().any(char::is_alphanumeric)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_as_drivers_give_them() {
        for (name, tflops) in [
            ("NVIDIA H200", Some(67.0)),
            ("cuda:0 NVIDIA A100-SXM4-80GB", Some(19.5)),
            ("NVIDIA A100-PCIE-40GB", Some(19.5)),
            ("NVIDIA A10", Some(31.2)),
            ("NVIDIA L40S", Some(91.6)),
            ("NVIDIA L4", Some(30.3)),
            ("NVIDIA GeForce RTX 3060", Some(12.7)),
            ("NVIDIA GeForce RTX 5060 Ti", Some(23.7)),
            ("NVIDIA GeForce GTX 1060 6GB", Some(4.4)),
            ("NVIDIA GeForce RTX 30600", None),
            ("XL4", None),
            ("cpu", None),
            ("", None),
        ] {
            assert_eq!(DeviceSpec::of(name).map(|spec| spec.tflops), tflops, "{name}");
        }
    }

    #[test]
    fn the_longer_name_is_found_first() {
        for (i, (name, ..)) in KNOWN.iter().enumerate() {
            let found = KNOWN.iter().position(|(known, ..)| contains(name, known));
            assert_eq!(found, Some(i), "{name}");
        }
    }
}
