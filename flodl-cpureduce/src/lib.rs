//! Weighted, streamed, bit-reproducible averaging of model parameters on the CPU.
