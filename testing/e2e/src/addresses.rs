//! Which address the next Pod of a machine of the local Kubernetes gets, and who knows whom all the while.
//!
//! The network plug-in of a machine gives out the addresses of its range in turn and keeps the last one in a file: who
//! writes that file chooses the next.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use shared::names;
use shared::valkey::types::{NodeAddress, NodeId, NodeLine};
use shared::valkey::{Credentials, Endpoint, Limits, Pool};
use tokio::sync::Mutex;
use tokio::task::JoinHandle;

use crate::deployed::Deployed;
use crate::objects::{Kind, Objects, text};

/// Where the machines of the local Kubernetes keep what they have given out.
const RUN: &str = "/run/valkey-operator-k8s";
/// Between two looks at all members.
const PAUSE: Duration = Duration::from_millis(100);
/// A member that does not answer in time is asked again in the next look.
const LIMITS: Limits = Limits { connect: Duration::from_millis(300), response: Duration::from_millis(500) };

/// Makes `address` the next that `machine` gives to a Pod, if it is free.
///
/// # Errors
///
/// This is not the local Kubernetes.
pub fn give_next(machine: &str, address: Ipv4Addr) -> Result<()> {
    let before = Ipv4Addr::from(u32::from(address) - 1);
    // In one piece: of a file that is empty for a moment the plug-in makes the first address of the range.
    let file = last_given(machine)?;
    let whole = file.with_extension("chosen");
    fs::write(&whole, before.to_string()).context("choose the next address")?;
    fs::rename(&whole, &file).context("choose the next address")
}

fn last_given(machine: &str) -> Result<PathBuf> {
    let folder = PathBuf::from(RUN).join(machine).join("ipam");
    let networks = fs::read_dir(&folder).with_context(|| {
        format!(
            "no {}: this test needs the local Kubernetes; on another one leave it out with `--skip local_`",
            folder.display()
        )
    })?;
    let files = networks.flatten().map(|network| network.path().join("last_reserved_ip.0"));
    files.into_iter().find(|file| file.exists()).context("no address was given out yet")
}

/// A cluster whose members are looked at.
#[derive(Clone)]
struct Watched {
    name: String,
    selector: String,
    login: Credentials,
}

/// What was seen, over all looks.
#[derive(Debug, Default, Clone)]
pub struct Seen {
    /// Looks at a member that answered, by cluster.
    pub looks: BTreeMap<String, u32>,
    /// IDs that members say are their own, by cluster.
    pub members: BTreeMap<String, BTreeSet<NodeId>>,
    /// IDs that a member of a cluster lists.
    known: BTreeMap<(String, NodeId), BTreeSet<NodeId>>,
    /// Introductions that were under way between a member and the address of another cluster's Pod.
    greetings: BTreeSet<Stranger>,
    /// The members that were looked at, by address, of the last look.
    addresses: BTreeMap<IpAddr, String>,
}

/// A member that knew of another cluster.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stranger {
    /// Its cluster.
    pub cluster: String,
    /// Its ID.
    pub member: NodeId,
    /// Some member of its own cluster knows it.
    pub has_joined: bool,
    /// Of whom it knew.
    pub knew: String,
}

impl Seen {
    /// Every member that ever knew of another cluster, with each of whom it knew.
    pub fn strangers(&self) -> Vec<Stranger> {
        let listed = self.known.iter().flat_map(|((cluster, member), known)| {
            let others = self.members.iter().filter(move |(other, _)| *other != cluster);
            others.flat_map(move |(other, members)| {
                known.intersection(members).map(move |id| Stranger {
                    cluster: cluster.clone(),
                    member: *member,
                    has_joined: false,
                    knew: format!("{id} of {other}"),
                })
            })
        });
        let all: BTreeSet<Stranger> = listed.chain(self.greetings.iter().cloned()).collect();
        all.into_iter().map(|it| Stranger { has_joined: self.has_joined(&it), ..it }).collect()
    }

    fn has_joined(&self, stranger: &Stranger) -> bool {
        let of_its_own = self
            .known
            .iter()
            .filter(|((cluster, by), _)| *cluster == stranger.cluster && *by != stranger.member);
        of_its_own.flat_map(|(_, known)| known).any(|id| *id == stranger.member)
    }

    fn note(&mut self, cluster: &str, lines: &[NodeLine]) {
        *self.looks.entry(cluster.to_owned()).or_default() += 1;
        let Some(own) = lines.iter().find(|line| line.flags.myself).map(|line| line.id) else { return };
        self.members.entry(cluster.to_owned()).or_default().insert(own);
        let known = self.known.entry((cluster.to_owned(), own)).or_default();
        known.extend(lines.iter().filter(|line| !line.flags.handshake && line.id != own).map(|line| line.id));
        // Whoever is being greeted has a random ID until it has said its own.
        for line in lines.iter().filter(|line| line.flags.handshake) {
            let ip = line.address.as_ref().and_then(NodeAddress::ip);
            let of = ip.and_then(|ip| self.addresses.get(&ip)).filter(|of| *of != cluster);
            self.greetings.extend(of.map(|of| Stranger {
                cluster: cluster.to_owned(),
                member: own,
                has_joined: false,
                knew: format!("{ip:?}, an address of {of}"),
            }));
        }
    }
}

/// Looks at `CLUSTER NODES` of every member of some clusters of one namespace, ten times a second.
pub struct Watch {
    task: JoinHandle<()>,
    seen: Arc<Mutex<Seen>>,
}

impl Watch {
    /// Begins.
    ///
    /// # Errors
    ///
    /// A cluster has no login yet.
    pub async fn start(clusters: &[&Deployed<'_>]) -> Result<Self> {
        let mut watched = Vec::new();
        for cluster in clusters {
            watched.push(Watched {
                name: cluster.name.clone(),
                selector: cluster.selector(),
                login: cluster.operator_login().await?,
            });
        }
        let Some(first) = clusters.first() else { bail!("nothing to look at") };
        let (objects, seen) = (first.scene.objects.clone(), Arc::new(Mutex::new(Seen::default())));
        let task = tokio::spawn(look_on(objects, watched, Arc::clone(&seen)));
        Ok(Self { task, seen })
    }

    /// What was seen until now.
    pub async fn seen(&self) -> Seen {
        self.seen.lock().await.clone()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn look_on(objects: Objects, clusters: Vec<Watched>, seen: Arc<Mutex<Seen>>) {
    let pool = Arc::new(Pool::new(LIMITS, 64));
    loop {
        let mut asked = Vec::new();
        let mut addresses = BTreeMap::new();
        for cluster in &clusters {
            // A look that the API server does not allow is one less; they are counted.
            let pods = objects.list(Kind::POD, &cluster.selector).await.unwrap_or_default();
            for pod in pods {
                let Ok(ip) = text(&pod, "/status/podIP").parse::<IpAddr>() else { continue };
                if text(&pod, "/status/phase") == "Running" {
                    addresses.insert(ip, cluster.name.clone());
                    asked.push((cluster.clone(), text(&pod, "/metadata/uid").to_owned(), ip));
                }
            }
        }
        let asked = asked.into_iter().map(|(cluster, uid, ip)| {
            let pool = Arc::clone(&pool);
            tokio::spawn(async move {
                let endpoint = Endpoint { ip, port: names::CLIENT_PORT, tls: None };
                let connection = pool.get(&uid, &endpoint, &cluster.login).await.ok()?;
                Some((cluster.name, connection.nodes().await.ok()?))
            })
        });
        let asked: Vec<_> = asked.collect();
        let mut answers = Vec::new();
        for answer in asked {
            answers.extend(answer.await.ok().flatten());
        }
        let mut seen = seen.lock().await;
        seen.addresses = addresses;
        for (cluster, lines) in answers {
            seen.note(&cluster, &lines);
        }
        drop(seen);
        tokio::time::sleep(PAUSE).await;
    }
}
