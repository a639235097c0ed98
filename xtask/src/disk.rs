//! The disk that the build writes to.
//!
//! A compiler on a full disk fails in places that say nothing of it (a link that misses symbols, an archive cut short), so
//! whoever starts a long build looks first.

use std::path::Path;

use crate::failure::Failure;

/// What a build of everything from nothing takes, bindings and libtorch included; measured, rounded up.
const WHOLE: u64 = 8 << 30;
/// Less than this is full: what is built goes on only by luck.
const FULL: u64 = 1 << 30;

/// Says what is free at `place`, as a sentence where that may be too little.
///
/// # Errors
///
/// Where the disk is full.
pub(crate) fn look(place: &Path) -> Result<Option<String>, Failure> {
    match rustix::fs::statvfs(place) {
        Ok(disk) => judge(disk.f_bavail.saturating_mul(disk.f_frsize), place),
        // Whoever cannot learn it builds: the compiler will say what is wrong.
        Err(_) => Ok(None),
    }
}

fn judge(free: u64, place: &Path) -> Result<Option<String>, Failure> {
    let shown = format!("{:.1} GiB are free at {}", free as f64 / f64::from(1 << 30), place.display());
    if free < FULL {
        return Err(Failure::failed(format!(
            "{shown}, a build needs up to {} GiB: free some space, or set CARGO_TARGET_DIR to another disk",
            WHOLE >> 30
        )));
    }
    Ok((free < WHOLE).then(|| format!("{shown}; a build from nothing needs up to {} GiB", WHOLE >> 30)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_refused_and_a_small_one_is_told() {
        let place = Path::new("/somewhere");
        assert_eq!(judge(WHOLE, place).expect("room enough"), None);
        let told = judge(WHOLE - 1, place).expect("may do").expect("a sentence");
        assert!(told.starts_with("8.0 GiB are free at /somewhere"), "{told}");
        let refused = judge(FULL - 1, place).expect_err("full").message().map(ToString::to_string);
        assert!(refused.is_some_and(|said| said.contains("CARGO_TARGET_DIR")));
    }

    #[test]
    fn the_disk_of_this_test_is_known() {
        assert!(rustix::fs::statvfs(Path::new(".")).is_ok_and(|disk| disk.f_frsize > 0));
        assert!(look(Path::new("/no/such/folder")).expect("unknown is no failure").is_none());
    }
}
