//! What the accounts hold of rounds that ranks average among themselves.

use super::{Book, CHUNKS, Collected, Ledger, Life, Over};
use crate::sim::violation::Rule;
use flodl_wire::message::data::{Chunk, Codec};
use flodl_wire::message::report::{Folded, FoldedPart};
use flodl_wire::{NcclSession, Round, Version};
use std::rc::Rc;

impl Ledger {
    /// The coordinator lets the open round be averaged on that communicator.
    pub(crate) fn issued(&mut self, round: Round, on: NcclSession) {
        let newest = self.newest_communicator.replace(on);
        if newest.is_some_and(|newest| newest > on) {
            self.broken(Rule::Growth, format!("{round} is averaged on {on} after {newest:?}"));
        }
        match self.book.as_mut().filter(|book| book.round == round).map(|book| &mut book.over) {
            Some(Over::Nccl { session, .. }) => *session = Some(on),
            _ => self.broken(Rule::Growth, format!("{round} is averaged on {on} and is not open for that")),
        }
    }

    /// All members of a communicator have been in a collective.
    pub(crate) fn collected(
        &mut self,
        (round, on): (Round, NcclSession),
        (masses, root): (Vec<(Life, f64)>, Option<Life>),
        bytes: Rc<Vec<u8>>,
    ) {
        if let Some(Book { over: Over::Nccl { collected, .. }, .. }) =
            self.book.as_mut().filter(|book| book.round == round)
        {
            collected.insert(on, Collected { masses, root, bytes });
        }
    }

    /// What the collectives of the open round came to, as a fold would say it: whose work is in it, and its chunks.
    pub(super) fn fold_of(&self, book: &Book) -> Option<(Folded, Vec<Chunk>)> {
        let Over::Nccl { session, collected } = &book.over else { return None };
        let Collected { masses, root, bytes } = collected.get(session.as_ref()?)?;
        let first = self.version.is_none();
        let gives = |life: Life, mass: f64| match root {
            Some(root) => first && life == *root,
            None => mass > 0.0,
        };
        let part = |&((rank, incarnation), mass): &(Life, f64)| {
            let whole = gives((rank, incarnation), mass);
            (rank, incarnation, if whole { FoldedPart::Whole } else { FoldedPart::None })
        };
        let movers = || masses.iter().filter(|(life, mass)| gives(*life, *mass));
        let mass = if first { 1.0 } else { movers().map(|(_, mass)| mass).sum() };
        let cuts = [0, bytes.len().saturating_sub(16), bytes.len().saturating_sub(8), bytes.len()];
        let chunk = |at: usize| Chunk {
            round: book.round,
            version: Version(0),
            chunk: at as u32,
            mass: if at == 0 { mass } else { movers().count() as f64 },
            codec: Codec::Exact,
            bytes: bytes[cuts[at]..cuts[at + 1]].to_vec().into(),
        };
        let any_mass = root.is_none() || first;
        let folded = Folded { round: book.round, ranks: masses.iter().map(part).collect(), digest: 0, any_mass };
        Some((folded, (0..CHUNKS).map(chunk).collect()))
    }
}
