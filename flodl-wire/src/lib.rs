//! Frames, messages and the authenticated handshake between the processes of a flodl training run.
