//! The flodl worker: the training loop of one rank, from dataset to checkpoint.
