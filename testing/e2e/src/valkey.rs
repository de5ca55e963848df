//! What the Valkey nodes themselves say, and what clients get: asked from the client Pod inside the cluster network.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;
use shared::slots::{SLOT_COUNT, SlotSet, even_share};
use shared::valkey::info::{self, Info, Role};
use shared::valkey::parse;
use shared::valkey::report::ClusterInfo;
use shared::valkey::types::{NodeId, NodeLine};
use support::{Probe, eventually};

use crate::deployed::Deployed;
use crate::objects::{Kind, condition_is, name, text};

/// Separates the replies of nodes in the output of a script.
const MARK: &str = "@@@@";

/// One node's view.
#[derive(Debug)]
pub struct View {
    /// Name of its Pod.
    pub pod: String,
    /// CLUSTER NODES.
    pub nodes: Vec<NodeLine>,
    /// CLUSTER INFO.
    pub cluster: ClusterInfo,
    /// INFO.
    pub info: Info,
}

impl View {
    /// Its own ID.
    pub fn id(&self) -> Option<NodeId> {
        self.myself().map(|line| line.id)
    }

    /// Its own line.
    pub fn myself(&self) -> Option<&NodeLine> {
        self.nodes.iter().find(|line| line.flags.myself)
    }

    fn owners(&self) -> BTreeMap<NodeId, SlotSet> {
        self.nodes
            .iter()
            .filter(|line| !line.slots.is_empty())
            .map(|line| (line.id, line.slots.clone()))
            .collect()
    }
}

impl Deployed<'_> {
    /// Pod names and IPs of the members that have one.
    ///
    /// # Errors
    ///
    /// The API server does not answer.
    pub async fn addresses(&self) -> Result<BTreeMap<String, String>> {
        let pods = self.list(Kind::POD).await?;
        Ok(pods
            .iter()
            .filter(|pod| !text(pod, "/status/podIP").is_empty() && text(pod, "/status/phase") == "Running")
            .map(|pod| (name(pod).to_owned(), text(pod, "/status/podIP").to_owned()))
            .collect())
    }

    /// The view of every member.
    ///
    /// # Errors
    ///
    /// A member does not answer, or says something that cannot be read.
    pub async fn views(&self) -> Result<Vec<View>> {
        let addresses = self.addresses().await?;
        let asks = format!("echo {MARK}; $c CLUSTER INFO; echo {MARK}; $c INFO {}", info::SECTIONS.join(" "));
        let options = self.client_options();
        let script: Vec<String> = addresses
            .values()
            .map(|ip| {
                format!("c='valkey-cli -t 0.3 -h {ip} {options}'; $c CLUSTER NODES; {asks}; echo {MARK}")
            })
            .collect();
        let output = self.scene.run(&script.join("; ")).await?;
        let replies: Vec<&str> = output.split(&format!("{MARK}\n")).collect();
        addresses.keys().zip(replies.chunks(3)).map(|(pod, reply)| view(pod, reply)).collect()
    }

    /// Waits until every node of the cluster agrees that it is whole: slots, shards, replicas, sync, objects.
    ///
    /// # Errors
    ///
    /// Not within `limit`: the text is the first thing that was wrong.
    pub async fn whole(&self, limit: Duration) -> Result<()> {
        eventually(&format!("{} to be whole in every view", self.name), limit, || async {
            let views = self.views().await?;
            match self.judge(&views).await {
                Ok(()) => Ok(Probe::Yes(())),
                Err(error) => Ok(Probe::NotYet(format!("{error:#}"))),
            }
        })
        .await
    }

    async fn judge(&self, views: &[View]) -> Result<()> {
        let nodes = self.list(Kind::NODE).await?;
        let pods = self.list(Kind::POD).await?;
        equal("ValkeyNodes", nodes.len(), self.members())?;
        equal("Pods", pods.len(), self.members())?;
        equal("views", views.len(), self.members())?;
        for pod in &pods {
            if !condition_is(pod, "Ready", "True") {
                bail!("Pod {} is not ready", name(pod));
            }
        }
        let by_pod: BTreeMap<&str, &Value> = nodes.iter().map(|node| (name(node), node)).collect();
        let first = views.first().context("no view")?;
        let ids: BTreeSet<NodeId> = views.iter().filter_map(View::id).collect();
        for view in views {
            judge_view(view, first, &ids, self.shards)?;
            let node =
                by_pod.get(view.pod.as_str()).with_context(|| format!("no ValkeyNode {}", view.pod))?;
            judge_node(node, view)?;
        }
        self.judge_shards(views, &by_pod)
    }

    fn judge_shards(&self, views: &[View], nodes: &BTreeMap<&str, &Value>) -> Result<()> {
        let index = |view: &View| {
            nodes.get(view.pod.as_str()).and_then(|it| it.pointer("/spec/shardIndex")?.as_u64())
        };
        let primaries: Vec<&View> = views.iter().filter(|view| view.info.role == Role::Primary).collect();
        equal("primaries", primaries.len(), self.shards)?;
        let shards = u16::try_from(self.shards)?;
        let mut sizes: Vec<u16> =
            primaries.iter().filter_map(|view| Some(view.myself()?.slots.len())).collect();
        let mut shares: Vec<u16> = (0..shards).map(|index| even_share(index, shards)).collect();
        sizes.sort_unstable();
        shares.sort_unstable();
        if sizes != shares {
            bail!("slots per shard are {sizes:?}, not {shares:?}");
        }
        for primary in primaries {
            let replicas: Vec<&View> = views
                .iter()
                .filter(|view| view.myself().and_then(|line| line.primary) == primary.id())
                .filter(|view| view.info.role == Role::Replica)
                .collect();
            equal(&format!("replicas of {}", primary.pod), replicas.len(), self.replicas)?;
            for replica in replicas {
                judge_replica(primary, replica)?;
                if index(replica) != index(primary) {
                    bail!("{} and its primary {} have different shard indices", replica.pod, primary.pod);
                }
            }
        }
        Ok(())
    }
}

fn judge_view(view: &View, first: &View, ids: &BTreeSet<NodeId>, shards: usize) -> Result<()> {
    let pod = &view.pod;
    let cluster = &view.cluster;
    if !cluster.ok || cluster.slots_ok != SLOT_COUNT || cluster.slots_assigned != SLOT_COUNT {
        bail!("in the view of {pod}: {cluster:?}");
    }
    equal(&format!("cluster size in the view of {pod}"), cluster.size as usize, shards)?;
    let known: BTreeSet<NodeId> = view.nodes.iter().map(|line| line.id).collect();
    if known != *ids {
        bail!("{pod} knows {known:?}, but the members are {ids:?}");
    }
    for line in &view.nodes {
        let flags = &line.flags;
        if flags.fail || flags.pfail || flags.handshake || flags.noaddr {
            bail!("{pod} says of {}: {flags:?}", line.id);
        }
    }
    if view.owners() != first.owners() {
        bail!("{pod} and {} disagree on who owns which slot", first.pod);
    }
    let owned: u32 = view.owners().values().map(|slots| u32::from(slots.len())).sum();
    equal(&format!("slots with an owner in the view of {pod}"), owned as usize, usize::from(SLOT_COUNT))
}

fn judge_node(node: &Value, view: &View) -> Result<()> {
    let id = view.id().map(|id| id.to_string()).unwrap_or_default();
    if text(node, "/status/nodeId") != id {
        bail!(
            "ValkeyNode {} records node ID {}, its server says {id}",
            view.pod,
            text(node, "/status/nodeId")
        );
    }
    if text(node, "/spec/lifecycle") != "Active" {
        bail!("ValkeyNode {} is {}", view.pod, text(node, "/spec/lifecycle"));
    }
    Ok(())
}

fn judge_replica(primary: &View, replica: &View) -> Result<()> {
    let link = replica.info.link.as_ref().with_context(|| format!("{} has no link", replica.pod))?;
    if !link.up || link.sync_in_progress {
        bail!("the link of {} to {} is {link:?}", replica.pod, primary.pod);
    }
    Ok(())
}

fn view(pod: &str, replies: &[&str]) -> Result<View> {
    let [nodes, cluster, info] = replies else { bail!("{pod} did not answer: {replies:?}") };
    Ok(View {
        pod: pod.to_owned(),
        nodes: parse::cluster_nodes(nodes).with_context(|| format!("CLUSTER NODES of {pod}: {nodes:?}"))?,
        cluster: parse::cluster_info(cluster)
            .with_context(|| format!("CLUSTER INFO of {pod}: {cluster:?}"))?,
        info: info::info(info).with_context(|| format!("INFO of {pod}: {info:?}"))?,
    })
}

fn equal(what: &str, seen: usize, wanted: usize) -> Result<()> {
    if seen == wanted { Ok(()) } else { bail!("{what}: {seen}, not {wanted}") }
}
