//! What is kept of each rank, by its number: ranks are given out in order, so a place is found without a search.

use flodl_wire::Rank;
use flodl_wire::limits::RANKS_MAX;

/// A list with a place for each rank.
#[derive(Clone, Debug)]
pub(crate) struct Roll<T> {
    places: Vec<Option<T>>,
    taken: usize,
}

impl<T> Default for Roll<T> {
    fn default() -> Roll<T> {
        Roll { places: Vec::new(), taken: 0 }
    }
}

impl<T> Roll<T> {
    pub(crate) fn get(&self, rank: Rank) -> Option<&T> {
        self.places.get(rank.0 as usize)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, rank: Rank) -> Option<&mut T> {
        self.places.get_mut(rank.0 as usize)?.as_mut()
    }

    /// Puts it at a rank's place; gives what was there. Beyond the largest world there is no place, and it is dropped.
    pub(crate) fn insert(&mut self, rank: Rank, item: T) -> Option<T> {
        let at = rank.0 as usize;
        if rank.0 >= RANKS_MAX {
            return None;
        }
        if self.places.len() <= at {
            self.places.resize_with(at + 1, || None);
        }
        let before = self.places[at].replace(item);
        self.taken += usize::from(before.is_none());
        before
    }

    /// How many places are taken.
    pub(crate) fn len(&self) -> usize {
        self.taken
    }

    /// All that is there, in rank order.
    pub(crate) fn values(&self) -> impl Iterator<Item = &T> {
        self.places.iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_found_by_number_and_gaps_are_nobodys() {
        let mut roll = Roll::default();
        assert_eq!(roll.insert(Rank(2), 'c'), None);
        assert_eq!((roll.insert(Rank(0), 'a'), roll.insert(Rank(2), 'd')), (None, Some('c')));
        assert_eq!((roll.get(Rank(1)), roll.get(Rank(2)), roll.get(Rank(u32::MAX))), (None, Some(&'d'), None));
        assert_eq!((roll.len(), roll.values().collect::<String>()), (2, "ad".to_owned()));
        roll.get_mut(Rank(0)).into_iter().for_each(|item| *item = 'b');
        assert_eq!(roll.get(Rank(0)), Some(&'b'));
        assert_eq!((roll.insert(Rank(RANKS_MAX), 'z'), roll.len()), (None, 2), "no place for it");
    }
}
