//! From records to what a person reads: the summary (JSON and text), the progress line, the sentences, the README.

mod laws;
mod readme;
mod summary;
mod words;
