//! Whether a run may still be bit-equal to another one with the same settings.
//!
//! Plans follow nothing that is measured then, but they follow who is there. Whoever comes or goes once windows are planned does so
//! at a moment that no setting fixes.

use crate::change::{Change, Unrepeatable};

/// What became of it.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Promise {
    /// Nobody asked for it.
    #[default]
    None,
    /// No window is planned yet: who is there is there from the beginning.
    Made,
    /// So far nothing has happened that the settings do not fix.
    Kept,
    /// Something has.
    Broken,
}

impl Promise {
    pub(crate) fn new(deterministic: bool) -> Self {
        if deterministic { Self::Made } else { Self::None }
    }

    /// A window is planned.
    pub(crate) fn begins(&mut self) {
        if *self == Self::Made {
            *self = Self::Kept;
        }
    }

    /// Something happened that happens at no fixed place. It is said once.
    pub(crate) fn breaks(&mut self, why: Unrepeatable, changes: &mut Vec<Change>) {
        let holds = match why {
            Unrepeatable::Joined(_) => *self == Self::Kept,
            Unrepeatable::Left(_) | Unrepeatable::Restored => matches!(self, Self::Made | Self::Kept),
        };
        if holds {
            *self = Self::Broken;
            changes.push(Change::Unrepeatable(why));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::span::Slot;

    #[test]
    fn who_comes_late_or_goes_breaks_it_once() {
        let said = |deterministic, planned, whys: &[Unrepeatable]| {
            let (mut promise, mut changes) = (Promise::new(deterministic), Vec::new());
            if planned {
                promise.begins();
            }
            whys.iter().for_each(|&why| promise.breaks(why, &mut changes));
            changes.len()
        };
        let (joined, left) = (Unrepeatable::Joined(Slot(1)), Unrepeatable::Left(Slot(2)));
        assert_eq!(said(false, true, &[joined, left]), 0);
        assert_eq!(said(true, false, &[joined]), 0, "the first members come before the first window");
        assert_eq!(said(true, false, &[left]), 1);
        assert_eq!(said(true, true, &[joined, left, joined]), 1);
        assert_eq!(said(true, false, &[Unrepeatable::Restored]), 1);
    }
}
