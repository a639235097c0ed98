//! The flodl coordinator: who trains which samples for how long, when to average, who is dead.
