//! The flodl relay: one per host, owns the host's training processes and folds their contributions.
