//! Explains why a connection failed before the server answered: TLS on one side only, or a certificate.
//!
//! Connects to the port again, and sends a few bytes that contain no secret.

use redis::{ConnectionAddr, ConnectionInfo};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::link::{Failure, TIMEOUT};

/// Incomplete start of a handshake. A server with TLS answers with an alert.
const HELLO: [u8; 9] = [0x16, 0x03, 0x01, 0x00, 0x04, 0x01, 0x00, 0x00, 0x00];
/// First byte of a TLS server's answer: an alert, or a part of a handshake.
const TLS_RECORDS: [u8; 2] = [0x15, 0x16];

/// Parts of error texts of rustls, each with advice.
const CERTIFICATES: [(&str, &str); 6] = [
    ("UnknownIssuer", "give the authority that has signed the server's certificate: RWLOCK_TLS_CA=ca.pem"),
    ("CaUsedAsEndEntity", "give the server a certificate of its own, signed by an authority in RWLOCK_TLS_CA"),
    (
        "NotValidForName",
        "connect by a name in the server's certificate, or set RWLOCK_TLS_SERVER_NAME to such a name; let a cluster announce such names",
    ),
    (
        "not valid for name",
        "connect by a name in the server's certificate, or set RWLOCK_TLS_SERVER_NAME to such a name; let a cluster announce such names",
    ),
    ("xpired", "renew the server's certificate"),
    ("not valid yet", "compare the clocks of both machines"),
];
const CLIENT: &str =
    "give a certificate that the server accepts: RWLOCK_TLS_CLIENT_CERTIFICATE and RWLOCK_TLS_CLIENT_KEY";

/// Explains a failed connection by its error, and by the answer of its port.
pub(super) async fn explained(info: &ConnectionInfo, error: String) -> Failure {
    match info.addr() {
        ConnectionAddr::TcpTls { host, port, .. } => {
            if error.contains("alert") {
                return Failure::Tls { message: error, advice: CLIENT.to_owned() };
            }
            if error.contains("certificate") {
                let known = CERTIFICATES.iter().find(|(words, _)| error.contains(words));
                let advice = known
                    .map_or("check the server's certificate, and the authority in RWLOCK_TLS_CA", |(_, advice)| advice);
                return Failure::Tls { message: error, advice: advice.to_owned() };
            }
            match first_byte(host, *port, b"PING\r\n").await {
                Some(b'+' | b'-') => Failure::Tls {
                    message: format!("the server speaks no TLS at this port ({error})"),
                    advice: "use redis:// in place of rediss://, or the server's port with TLS".to_owned(),
                },
                _ => Failure::Unreachable(error),
            }
        }
        ConnectionAddr::Tcp(host, port) => match first_byte(host, *port, &HELLO).await {
            Some(byte) if TLS_RECORDS.contains(&byte) => Failure::Tls {
                message: format!("the server speaks TLS at this port ({error})"),
                advice:
                    "use rediss:// in place of redis://, and set RWLOCK_TLS_CA if the server's authority is not public"
                        .to_owned(),
            },
            _ => Failure::Unreachable(error),
        },
        _ => Failure::Unreachable(error),
    }
}

/// Returns the first byte of the answer to these bytes, if there is one.
async fn first_byte(host: &str, port: u16, bytes: &[u8]) -> Option<u8> {
    let asking = async {
        let mut stream = TcpStream::connect((host, port)).await.ok()?;
        stream.write_all(bytes).await.ok()?;
        stream.read_u8().await.ok()
    };
    timeout(TIMEOUT, asking).await.ok().flatten()
}
