//! A distributed read-write lock.
