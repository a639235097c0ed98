//! NCCL for flodl: sys, result and safe layers over a library loaded at run time.
