//! Reservation of ports that no other environment on this machine takes.
//!
//! A reservation is a socket that is bound to the port and never listens. The bind happens *without* `SO_REUSEADDR`, so
//! that it fails if any other socket has the port. The socket gets the option *afterwards*. The server sets the option
//! too, so the server may bind the same port.
//!
//! So the port stays reserved before the server's first start and through every restart, until the reservation is
//! dropped. Several test binaries can run at once. No file is needed, and the kernel frees the port at the end of this
//! process, even after a kill.

use std::{
    hash::{BuildHasher, Hasher, RandomState},
    io,
    net::{Ipv4Addr, SocketAddrV4},
    os::fd::OwnedFd,
};

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt::set_socket_reuseaddr};

use crate::{Error, Result};

/// Distance from a cluster node's port to the port on which it listens for its peers.
const BUS_OFFSET: u16 = 10_000;
/// Range of ports. Both a port and its bus port lie below 32768, where the ports for outgoing connections begin.
const PORTS: std::ops::Range<u16> = 10_000..22_768;
/// Limit of taken ports in a row, after which another cause is likely.
const ATTEMPTS: usize = 1_000;

/// Reserved port, and the port of the cluster bus that belongs to it.
#[derive(Debug)]
pub struct PortReservation {
    port: u16,
    _sockets: [OwnedFd; 2],
}

impl PortReservation {
    /// Reserves a free port.
    pub fn new() -> Result<Self> {
        let mut last_error = None;
        for _ in 0..ATTEMPTS {
            let port = PORTS.start + (random() % u64::from(PORTS.end - PORTS.start)) as u16;
            match reserve(port).and_then(|socket| Ok([socket, reserve(port + BUS_OFFSET)?])) {
                Ok(_sockets) => return Ok(Self { port, _sockets }),
                Err(error) => last_error = Some(error),
            }
        }
        let source = last_error.unwrap_or_else(|| io::ErrorKind::AddrInUse.into());
        Err(Error::Io { doing: format!("reserving one of the ports {PORTS:?}"), source })
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Port of the cluster bus.
    pub fn bus_port(&self) -> u16 {
        self.port + BUS_OFFSET
    }
}

fn reserve(port: u16) -> io::Result<OwnedFd> {
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, port))?;
    set_socket_reuseaddr(&socket, true)?;
    Ok(socket)
}

/// Returns a number that differs in every call and every process.
pub fn random() -> u64 {
    // The standard library seeds each `RandomState` differently, which is enough here.
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_port_is_refused_to_others_until_it_is_dropped() {
        let reservation = PortReservation::new().unwrap();
        let port = reservation.port();
        assert!(reserve(port).is_err());
        assert!(reserve(port + BUS_OFFSET).is_err());
        drop(reservation);
        assert!(reserve(port).is_ok());
        assert!(reserve(port + BUS_OFFSET).is_ok());
    }
}
