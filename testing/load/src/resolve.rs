//! The name of a Service, resolved by the cluster's own DNS: this tool may run beside the cluster instead of in it.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::net::UdpSocket;
use tokio::time::timeout;

/// What a DNS server is given for an answer.
const ANSWER: Duration = Duration::from_secs(1);
/// Type A, class IN.
const QUESTION: [u8; 4] = [0, 1, 0, 1];
/// Largest answer without extensions.
const LARGEST: usize = 512;

/// How clients find their first node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seeds {
    /// Addresses.
    Fixed(Vec<String>),
    /// A name, asked of a DNS server each time.
    Name {
        /// The DNS server.
        server: SocketAddr,
        /// The name, complete.
        name: String,
        /// Port of the nodes.
        port: u16,
    },
}

/// Why a name has no addresses.
#[derive(Debug, thiserror::Error)]
pub enum ResolveError {
    /// The server cannot be asked.
    #[error("DNS server {server}")]
    Io {
        /// It.
        server: SocketAddr,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// No answer in time.
    #[error("DNS server {0} did not answer")]
    Silent(SocketAddr),
    /// An answer without an address.
    #[error("{0} has no address")]
    NoAddress(String),
}

impl Seeds {
    /// Addresses of nodes, such as `10.0.0.1:6379`; at least one.
    ///
    /// # Errors
    ///
    /// The name has no address now.
    pub async fn resolve(&self) -> Result<Vec<String>, ResolveError> {
        match self {
            Self::Fixed(addresses) => Ok(addresses.clone()),
            Self::Name { server, name, port } => {
                let found = ask(*server, name).await?;
                if found.is_empty() {
                    return Err(ResolveError::NoAddress(name.clone()));
                }
                Ok(found.iter().map(|ip| format!("{ip}:{port}")).collect())
            }
        }
    }
}

async fn ask(server: SocketAddr, name: &str) -> Result<Vec<Ipv4Addr>, ResolveError> {
    let io = |source| ResolveError::Io { server, source };
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).await.map_err(io)?;
    socket.connect(server).await.map_err(io)?;
    socket.send(&query(name)).await.map_err(io)?;
    let mut answer = [0; LARGEST];
    let length = timeout(ANSWER, socket.recv(&mut answer))
        .await
        .map_err(|_elapsed| ResolveError::Silent(server))?
        .map_err(io)?;
    Ok(addresses(answer.get(..length).unwrap_or_default()).unwrap_or_default())
}

fn query(name: &str) -> Vec<u8> {
    // Any id will do: the socket is connected and asks once. Recursion desired, one question.
    let mut packet = vec![0x4c, 0x44, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.trim_end_matches('.').split('.') {
        packet.push(u8::try_from(label.len()).unwrap_or(0));
        packet.extend_from_slice(label.as_bytes());
    }
    packet.push(0);
    packet.extend_from_slice(&QUESTION);
    packet
}

/// The A records of an answer; `None` when it is cut or garbled.
fn addresses(answer: &[u8]) -> Option<Vec<Ipv4Addr>> {
    let number = |at: usize| Some(u16::from_be_bytes([*answer.get(at)?, *answer.get(at + 1)?]));
    let (questions, records) = (number(4)?, number(6)?);
    let mut at = 12;
    for _ in 0..questions {
        at = after_name(answer, at)? + 4;
    }
    let mut found = Vec::new();
    for _ in 0..records {
        at = after_name(answer, at)?;
        let (kind, length) = (number(at)?, usize::from(number(at + 8)?));
        let data = answer.get(at + 10..at + 10 + length)?;
        if let (1, [a, b, c, d]) = (kind, data) {
            found.push(Ipv4Addr::new(*a, *b, *c, *d));
        }
        at += 10 + length;
    }
    Some(found)
}

fn after_name(answer: &[u8], mut at: usize) -> Option<usize> {
    loop {
        match answer.get(at)? {
            0 => return Some(at + 1),
            length if length & 0xc0 == 0xc0 => return Some(at + 2),
            length => at += 1 + usize::from(*length),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(records: &[[u8; 4]]) -> Vec<u8> {
        let mut packet = query("a.ns.svc.cluster.local");
        packet[7] = u8::try_from(records.len()).unwrap();
        for record in records {
            // The name as a pointer to the question, type A, class IN, 5 seconds, 4 bytes.
            packet.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 5, 0, 4]);
            packet.extend(record);
        }
        packet
    }

    #[test]
    fn addresses_are_read_from_an_answer() {
        let packet = answer(&[[10, 86, 1, 2], [10, 86, 2, 3]]);
        let found = addresses(&packet).unwrap();
        assert_eq!(found, [Ipv4Addr::new(10, 86, 1, 2), Ipv4Addr::new(10, 86, 2, 3)]);
        assert_eq!(addresses(&answer(&[])), Some(vec![]));
    }

    #[test]
    fn a_cut_answer_is_none() {
        let packet = answer(&[[10, 86, 1, 2]]);
        for length in 0..packet.len() {
            assert_eq!(addresses(&packet[..length]), None, "{length}");
        }
    }

    #[tokio::test]
    async fn a_silent_server_is_given_up() {
        let silent = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let seeds = Seeds::Name { server: silent.local_addr().unwrap(), name: "a".to_owned(), port: 6379 };
        assert!(matches!(seeds.resolve().await, Err(ResolveError::Silent(_))));
    }
}
