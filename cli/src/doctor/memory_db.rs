//! Servers of Amazon MemoryDB. The program knows them by their names, and relies on no other sign.

/// Returns true for an address of Amazon MemoryDB, such as `clustercfg.locks.abcdef.memorydb.eu-west-1.amazonaws.com`.
pub(crate) fn is_of_memory_db(address: &str) -> bool {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.ends_with(".amazonaws.com") && host.split('.').any(|part| part == "memorydb")
}
