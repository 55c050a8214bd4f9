//! Rules of the repository: words, names, folders and documents. They read the sources and need no server.
#![allow(missing_docs, clippy::missing_panics_doc)] // a test binary has no public items, and tests panic to fail

mod house;
mod tidy;
mod words;
