//! The one place where names on the wire become those of the scheduler and of the averages, and back.

#[cfg(all(feature = "shell", target_os = "linux"))]
use flodl_cpureduce::Absence;
use flodl_elche::Span;
use flodl_wire::Range;
#[cfg(all(feature = "shell", target_os = "linux"))]
use flodl_wire::message::data::AbsentWhy;

/// A range of the wire as a span. A hostile range whose end lies before its start becomes an empty span.
pub(crate) fn span(range: Range) -> Span {
    Span::new(range.start, range.end.max(range.start))
}

/// A span as a range of the wire.
pub(crate) fn range(span: Span) -> Range {
    Range { start: span.start, end: span.end }
}

/// [`range`] of each.
pub(crate) fn ranges(spans: &[Span]) -> Vec<Range> {
    spans.iter().copied().map(range).collect()
}

/// Why nothing is contributed, as the averages say it.
#[cfg(all(feature = "shell", target_os = "linux"))]
pub(crate) fn absence(why: AbsentWhy) -> Absence {
    match why {
        AbsentWhy::Joining => Absence::Joining,
        AbsentWhy::NothingTrained => Absence::NothingTrained,
        AbsentWhy::NonFinite => Absence::NonFinite,
        AbsentWhy::Dead => Absence::Dead,
        AbsentWhy::LinkLost => Absence::LinkLost,
        AbsentWhy::Stale => Absence::Stale,
        AbsentWhy::Empty => Absence::Empty,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back() {
        let list = [Range { start: 3, end: 9 }, Range { start: 0, end: 0 }];
        assert_eq!(list.map(|one| range(span(one))), list);
        assert!(span(Range { start: 9, end: 3 }).is_empty());
    }
}
