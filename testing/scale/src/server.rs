//! Valkey servers that only pretend: one listener answers on every address of a prefix, and each address is a server of
//! its own with an ID, a config epoch and slots.
//!
//! It knows what a cluster of one primary is asked between its birth and its rest, and refuses the rest. It believes
//! every password, keeps no keys and has no peers.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, Result, bail};
use sha2::{Digest as _, Sha256};
use shared::names;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// Longest word that a server accepts, bytes.
const MOST_BYTES: usize = 1 << 20;
/// Most words in one command.
const MOST_WORDS: usize = 1 << 15;

/// What one server knows of itself.
#[derive(Debug, Clone, Default)]
struct Node {
    epoch: u64,
    slots: Vec<(u16, u16)>,
}

type Nodes = Arc<Mutex<BTreeMap<Ipv4Addr, Node>>>;

/// Answers on the client port of every address that is local to this machine, until the process ends.
///
/// # Errors
///
/// The port is taken.
pub(crate) async fn listen() -> Result<()> {
    let port = names::CLIENT_PORT;
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await;
    let listener = listener.with_context(|| format!("listen on port {port}"))?;
    let nodes = Nodes::default();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let nodes = Arc::clone(&nodes);
            // A client that goes away ends its task; nobody waits for it.
            tokio::spawn(async move { drop(serve(stream, nodes).await) });
        }
    });
    Ok(())
}

async fn serve(stream: TcpStream, nodes: Nodes) -> Result<()> {
    let IpAddr::V4(ip) = stream.local_addr()?.ip() else { bail!("not an IPv4 address") };
    let mut stream = BufReader::new(stream);
    while let Some(words) = read_command(&mut stream).await? {
        let reply = {
            let mut nodes = nodes.lock().unwrap_or_else(PoisonError::into_inner);
            answer(ip, nodes.entry(ip).or_default(), &words)
        };
        stream.get_mut().write_all(reply.as_bytes()).await?;
    }
    Ok(())
}

/// One command as an array of bulk strings (RESP2), `None` at the end of the stream.
async fn read_command(stream: &mut BufReader<TcpStream>) -> Result<Option<Vec<String>>> {
    let Some(count) = read_number(stream, '*').await? else { return Ok(None) };
    anyhow::ensure!(count <= MOST_WORDS, "{count} words");
    let mut words = Vec::with_capacity(count);
    for _ in 0..count {
        let length = read_number(stream, '$').await?.context("a command breaks off")?;
        anyhow::ensure!(length <= MOST_BYTES, "a word of {length} bytes");
        let mut bytes = vec![0; length + 2];
        stream.read_exact(&mut bytes).await?;
        bytes.truncate(length);
        words.push(String::from_utf8(bytes)?);
    }
    Ok(Some(words))
}

async fn read_number(stream: &mut BufReader<TcpStream>, kind: char) -> Result<Option<usize>> {
    let mut line = String::new();
    if stream.read_line(&mut line).await? == 0 {
        return Ok(None);
    }
    let digits = line.trim_end().strip_prefix(kind).with_context(|| format!("{line:?} instead of {kind}"))?;
    Ok(Some(digits.parse()?))
}

fn answer(ip: Ipv4Addr, node: &mut Node, words: &[String]) -> String {
    let word = |index: usize| words.get(index).map(|word| word.to_ascii_uppercase()).unwrap_or_default();
    let text = |text: &str| format!("${}\r\n{text}\r\n", text.len());
    match (word(0).as_str(), word(1).as_str()) {
        ("PING", _) => "+PONG\r\n".to_owned(),
        ("AUTH", _) | ("ACL", "LOAD") | ("CONFIG", "SET") => "+OK\r\n".to_owned(),
        ("INFO", _) => text(&info()),
        ("CLUSTER", "MYID") => text(&id(ip)),
        ("CLUSTER", "NODES") => text(&nodes_line(ip, node)),
        ("CLUSTER", "INFO") => text(&cluster_info(node)),
        ("CLUSTER", "GETSLOTMIGRATIONS") => "*0\r\n".to_owned(),
        ("CLUSTER", "SET-CONFIG-EPOCH") => match word(2).parse() {
            Ok(epoch) if node.epoch == 0 => {
                node.epoch = epoch;
                "+OK\r\n".to_owned()
            }
            _ => "-ERR Node config epoch is already non-zero\r\n".to_owned(),
        },
        ("CLUSTER", "ADDSLOTSRANGE") => add_slots(node, words.get(2..).unwrap_or_default()),
        _ => format!("-ERR unknown command '{}'\r\n", words.join(" ").replace(['\r', '\n'], " ")),
    }
}

fn add_slots(node: &mut Node, bounds: &[String]) -> String {
    let ranges: Option<Vec<(u16, u16)>> = bounds
        .chunks(2)
        .map(|pair| match pair {
            [start, end] => Some((start.parse().ok()?, end.parse().ok()?)),
            _ => None,
        })
        .collect();
    match ranges {
        Some(ranges) if node.slots.is_empty() => {
            node.slots = ranges;
            "+OK\r\n".to_owned()
        }
        _ => "-ERR Slot is already busy\r\n".to_owned(),
    }
}

/// Forty hexadecimal digits that are this address's own.
fn id(ip: Ipv4Addr) -> String {
    hex::encode(Sha256::digest(ip.octets())).chars().take(40).collect()
}

fn nodes_line(ip: Ipv4Addr, node: &Node) -> String {
    let slots: Vec<String> = node.slots.iter().map(|(start, end)| format!(" {start}-{end}")).collect();
    let (id, port, bus, epoch) = (id(ip), names::CLIENT_PORT, names::BUS_PORT, node.epoch);
    format!("{id} {ip}:{port}@{bus} myself,master - 0 0 {epoch} connected{}\n", slots.concat())
}

fn cluster_info(node: &Node) -> String {
    let slots: u32 = node.slots.iter().map(|(start, end)| u32::from(end - start) + 1).sum();
    let (state, size) = if slots == 16384 { ("ok", 1) } else { ("fail", 0) };
    let epoch = node.epoch;
    format!(
        "cluster_state:{state}\r\ncluster_slots_assigned:{slots}\r\ncluster_slots_ok:{slots}\r\n\
         cluster_slots_pfail:0\r\ncluster_slots_fail:0\r\ncluster_known_nodes:1\r\ncluster_size:{size}\r\n\
         cluster_current_epoch:{epoch}\r\ncluster_my_epoch:{epoch}\r\n"
    )
}

fn info() -> String {
    let now = jiff::Timestamp::now().as_microsecond();
    format!(
        "# Server\r\nvalkey_version:9.1.2\r\nrun_id:0000000000000000000000000000000000000000\r\n\
         uptime_in_seconds:100\r\nserver_time_usec:{now}\r\n# Memory\r\nused_memory:1000000\r\nmaxmemory:0\r\n\
         # Persistence\r\nloading:0\r\n# Replication\r\nrole:master\r\nconnected_slaves:0\r\n\
         master_replid:0000000000000000000000000000000000000000\r\nmaster_repl_offset:0\r\n# Keyspace\r\n"
    )
}

#[cfg(test)]
mod tests {
    use shared::valkey::info;
    use shared::valkey::parse;

    use super::*;

    fn words(command: &str) -> Vec<String> {
        command.split(' ').map(ToOwned::to_owned).collect()
    }

    #[test]
    fn a_server_becomes_the_owner_of_all_slots_and_says_so_in_words_that_the_operator_reads() {
        let (ip, mut node) = (Ipv4Addr::new(10, 87, 0, 1), Node::default());
        let say = |node: &mut Node, command| answer(ip, node, &words(command));
        assert_eq!(say(&mut node, "CLUSTER SET-CONFIG-EPOCH 1"), "+OK\r\n");
        assert!(say(&mut node, "CLUSTER SET-CONFIG-EPOCH 2").starts_with("-ERR"));
        assert_eq!(say(&mut node, "CLUSTER ADDSLOTSRANGE 0 16383"), "+OK\r\n");
        assert!(say(&mut node, "CLUSTER MEET 10.87.0.2 6379").starts_with("-ERR unknown"));
        let nodes = parse::cluster_nodes(&nodes_line(ip, &node)).unwrap();
        assert_eq!(nodes[0].slots.len(), 16384);
        assert!(parse::cluster_info(&cluster_info(&node)).unwrap().ok);
        assert_eq!(info::info(&info()).unwrap().keys, 0);
    }
}
