//! The members of a cluster as they are now: what Kubernetes says of each, and what its server says of itself.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail};
use futures::future::join_all;
use redis::{RedisError, Value as Reply, cmd};
use serde_json::Value;
use shared::slots::SlotSet;
use shared::valkey::parse;
use test_e2e::objects::{self, text};
use test_e2e::{Kind, Objects, processes};

use crate::probe::Nodes;

/// A member.
#[derive(Debug, Clone)]
pub struct Member {
    /// Name of its ValkeyNode and Pod.
    pub name: String,
    /// UID of its Pod.
    pub uid: String,
    /// Where it answers, such as `10.0.0.1:6379`; empty before its Pod has an address.
    pub address: String,
    /// The Kubernetes node that it runs on.
    pub machine: String,
    /// `spec.shardIndex`.
    pub shard: u64,
    /// `spec.lifecycle`.
    pub lifecycle: String,
    /// Its ValkeyNode is being deleted: it has left the cluster, only its Pod is still to end.
    pub has_left: bool,
    /// What its server says; none when it does not answer.
    pub server: Option<Server>,
}

/// What a server says of itself.
#[derive(Debug, Clone)]
pub struct Server {
    /// It is a primary.
    pub primary: bool,
    /// The slots that it owns.
    pub slots: SlotSet,
    /// Of a primary: replicas whose link is up and in sync.
    pub synced_replicas: usize,
    /// Its ID.
    pub id: String,
}

impl Member {
    /// Whether it owns slots by its own account.
    pub fn owns_slots(&self) -> bool {
        self.server.as_ref().is_some_and(|server| server.primary && !server.slots.is_empty())
    }

    /// Sends its server's process a signal, by name. Only on the local Kubernetes.
    ///
    /// # Errors
    ///
    /// It has no process here.
    pub fn signal(&self, signal: &str) -> Result<()> {
        let processes = processes::of_pod(&self.uid)?;
        // Debian's valkey-server is a link to valkey-check-rdb, and the kubelet's probe is a valkey-cli beside it.
        let is_server = |program: &str| program.starts_with("valkey-") && program != "valkey-cli";
        let server = processes.iter().find(|it| is_server(&it.program));
        match server {
            Some(process) => process.signal(signal),
            None => bail!("{} has no valkey-server, but {processes:?}", self.name),
        }
    }
}

/// All members, each asked now.
///
/// # Errors
///
/// The API server does not answer. Silent servers are no error.
pub async fn look(objects: &Objects, nodes: &Nodes, selector: &str) -> Result<Vec<Member>> {
    let records = objects.list(Kind::NODE, selector).await?;
    let pods = objects.list(Kind::POD, selector).await?;
    let pods: BTreeMap<&str, &Value> = pods.iter().map(|pod| (objects::name(pod), pod)).collect();
    let members = records.iter().map(|record| async {
        let name = objects::name(record).to_owned();
        let pod = pods.get(name.as_str()).copied().unwrap_or(&Value::Null);
        let ip = text(pod, "/status/podIP");
        let address = if ip.is_empty() { String::new() } else { format!("{ip}:6379") };
        let server = if ip.is_empty() { None } else { ask(nodes, &address).await.ok() };
        Member {
            uid: text(pod, "/metadata/uid").to_owned(),
            machine: text(pod, "/spec/nodeName").to_owned(),
            shard: record.pointer("/spec/shardIndex").and_then(Value::as_u64).unwrap_or(0),
            lifecycle: text(record, "/spec/lifecycle").to_owned(),
            has_left: !text(record, "/metadata/deletionTimestamp").is_empty(),
            name,
            address,
            server,
        }
    });
    Ok(join_all(members).await)
}

async fn ask(nodes: &Nodes, address: &str) -> Result<Server> {
    let mut info = cmd("INFO");
    info.arg("replication");
    let mut lines = cmd("CLUSTER");
    lines.arg("NODES");
    let info = words(nodes.ask(address, &info).await?)?;
    let lines = words(nodes.ask(address, &lines).await?)?;
    let nodes = parse::cluster_nodes(&lines).context("CLUSTER NODES")?;
    let myself = nodes.iter().find(|line| line.flags.myself).context("no line of its own")?;
    Ok(Server {
        primary: info.lines().any(|line| line.trim_end() == "role:master"),
        slots: myself.slots.clone(),
        synced_replicas: info.lines().filter(|line| is_synced_replica(line)).count(),
        id: myself.id.to_string(),
    })
}

fn words(reply: Reply) -> Result<String, RedisError> {
    Ok(redis::from_redis_value(reply)?)
}

fn is_synced_replica(line: &str) -> bool {
    line.starts_with("slave") && line.contains("state=online")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_counts_when_its_stream_flows() {
        let online = "slave0:ip=10.0.0.1,port=6379,state=online,offset=1,lag=0,type=replica";
        assert!(is_synced_replica(online));
        assert!(!is_synced_replica(&online.replace("online", "send_bulk")));
        assert!(!is_synced_replica("connected_slaves:1"));
    }
}
