//! placeholder until the servers are there
