//! The flodl monitor: store, timeline and summary of a training run.
