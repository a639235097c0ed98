//! What a rank computes with: its share of the cores, its device.

use tch::{Cuda, Device};

/// Divides the machine's cores among its ranks: libtorch gets `max(1, cores / ranks of this host)` threads. Nothing is done where
/// no rank's environment is found, and where `OMP_NUM_THREADS` says what is wanted.
///
/// The ranks of this host are `FLODL_LOCAL_WORLD_SIZE`, and where that is not set `FLODL_WORLD_SIZE`. The number is libtorch's and
/// holds for the whole process.
pub fn share_cores() {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    if let Some(threads) = threads(cores, |name| std::env::var(name).ok()) {
        tch::set_num_threads(threads);
    }
}

/// The device of this rank: of the CUDA devices that libtorch finds the one that `FLODL_LOCAL_RANK` names, beginning again at the
/// first where a host has more ranks than devices; the CPU where there are none.
#[must_use]
pub fn rank_device() -> Device {
    device(Cuda::device_count(), std::env::var("FLODL_LOCAL_RANK").ok())
}

fn device(count: i64, local_rank: Option<String>) -> Device {
    let rank: usize = local_rank.and_then(|rank| rank.parse().ok()).unwrap_or(0);
    match usize::try_from(count) {
        Ok(count) if count > 0 => Device::Cuda(rank % count),
        _ => Device::Cpu,
    }
}

fn threads(cores: usize, variable: impl Fn(&str) -> Option<String>) -> Option<i32> {
    if variable("OMP_NUM_THREADS").is_some() {
        return None;
    }
    let ranks = variable("FLODL_LOCAL_WORLD_SIZE").or_else(|| variable("FLODL_WORLD_SIZE"))?;
    let ranks: usize = ranks.parse().ok()?;
    i32::try_from((cores / ranks.max(1)).max(1)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_take_devices_in_turn() {
        for (count, rank, expect) in [
            (0, Some("1"), Device::Cpu),
            (-1, None, Device::Cpu),
            (2, None, Device::Cuda(0)),
            (2, Some("1"), Device::Cuda(1)),
            (2, Some("2"), Device::Cuda(0)),
            (2, Some("first"), Device::Cuda(0)),
        ] {
            assert_eq!(device(count, rank.map(str::to_owned)), expect, "{count} {rank:?}");
        }
    }

    #[test]
    fn ranks_share_the_cores_of_their_host() {
        for (cores, variables, expect) in [
            (8, &[("FLODL_LOCAL_WORLD_SIZE", "3"), ("FLODL_WORLD_SIZE", "8")][..], Some(2)),
            (8, &[("FLODL_WORLD_SIZE", "2")], Some(4)),
            (2, &[("FLODL_WORLD_SIZE", "3")], Some(1)),
            (4, &[("FLODL_WORLD_SIZE", "0")], Some(4)),
            (4, &[("FLODL_WORLD_SIZE", "many")], None),
            (4, &[], None),
            (4, &[("OMP_NUM_THREADS", "3"), ("FLODL_WORLD_SIZE", "2")], None),
        ] {
            let variable =
                |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
            assert_eq!(threads(cores, variable), expect, "{cores} {variables:?}");
        }
    }
}
