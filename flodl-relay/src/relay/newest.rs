//! Which controller of the run a relay listens to.

/// The newest controller of the run that has answered. One whose place it has taken may not know of it: it may have stood
/// still, or have been out of reach.
#[derive(Copy, Clone, Debug)]
pub struct Newest {
    generation: u64,
}

/// Who answers.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The newest one, as before.
    Same,
    /// Another one, which does not know the run: it is the newest from now on.
    Anew,
    /// One whose place another one has taken: nothing that it says counts.
    Outlived,
}

impl Newest {
    /// The first controller that answered.
    #[must_use]
    pub fn new(generation: u64) -> Newest {
        Newest { generation }
    }

    /// One answers. What its handshake proves is that it holds the run's secret and which controller of the run it is.
    pub fn answers(&mut self, generation: u64) -> Answer {
        if generation < self.generation {
            return Answer::Outlived;
        }
        match std::mem::replace(&mut self.generation, generation) == generation {
            true => Answer::Same,
            false => Answer::Anew,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b16_who_was_followed_by_another_one_is_not_listened_to_again() {
        let mut newest = Newest::new(0);
        let heard = [0, 2, 0, 1, 2, 3, 2].map(|generation| newest.answers(generation));
        use Answer::{Anew, Outlived, Same};
        assert_eq!(heard, [Same, Anew, Outlived, Outlived, Same, Anew, Outlived]);
    }
}
