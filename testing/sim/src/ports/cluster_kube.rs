//! [`cluster_ctl::ports::Kube`] with the modelled API server behind it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use cluster_ctl::build;
use cluster_ctl::ports::{ClusterKey, ClusterObject, Kube, KubeError, PodUpkeep, World as Seen};
use k8s_openapi::api::core::v1::{Pod, PodCondition, PodStatus, Secret};
use kube::ResourceExt;
use shared::api::{Lifecycle, ValkeyCluster, ValkeyClusterStatus, ValkeyNode, ValkeyNodeStatus};
use shared::events::Notice;
use shared::names;

use super::mutants::Mutant;
use super::{Line, objects};
use crate::audit::Kind;
use crate::world::World;
use crate::world::apiserver::caches::ClusterCaches;
use crate::world::apiserver::{ApiError, rules};

/// Kubernetes as one cluster-ctl sees it.
#[derive(Clone)]
pub struct SimKube {
    line: Line,
    caches: Arc<Mutex<ClusterCaches>>,
}

impl SimKube {
    /// Reads from `caches`, writes through `line`.
    pub fn new(line: &Line, caches: Arc<Mutex<ClusterCaches>>) -> Self {
        Self { line: line.clone(), caches }
    }

    /// A write: counted, and judged as part of the tick of `cluster` if it is an action.
    async fn write<T: Send + 'static>(
        &self,
        what: &'static str,
        of: (&str, String),
        kind: Option<Kind>,
        effect: impl FnOnce(&mut World) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, KubeError> {
        let (cluster, detail) = of;
        let (name, tick, cluster) = (self.line.name.to_string(), self.line.tick(cluster), cluster.to_owned());
        let reply = self.line.api(format!("{what} {detail}"), move |world| {
            world.audit.writes += 1;
            if let Some(kind) = kind {
                world.judge_action(&name, &cluster, tick, kind);
            }
            effect(world)
        });
        reply.await.map_err(failed(what))
    }
}

fn failed(what: &'static str) -> impl FnOnce(ApiError) -> KubeError {
    move |error| match error {
        ApiError::NotFound => KubeError::NotFound { what },
        ApiError::Exists => KubeError::Exists { what },
        ApiError::Conflict => KubeError::Conflict { what },
        error => KubeError::Failed { what, source: Box::new(error) },
    }
}

impl Kube for SimKube {
    async fn world(&self, key: &ClusterKey) -> Result<Option<Seen>, KubeError> {
        let mut caches = self.caches.lock().unwrap_or_else(PoisonError::into_inner);
        let (machines, menu) = {
            let world = self.line.world();
            if world.without_api(&self.line.name).is_none() {
                caches.whole_cluster = (world.machines(), Arc::clone(&world.menu));
            }
            caches.whole_cluster.clone()
        };
        let Some(cluster) = caches.clusters.get(&key.name) else { return Ok(None) };
        let uid = cluster.uid().unwrap_or_default();
        let nodes: Vec<Arc<ValkeyNode>> =
            caches.nodes.all().filter(|node| build::owned_by(&node.metadata, &uid)).cloned().collect();
        let world = self.line.world();
        let mutant = self.line.mutant();
        let see = |pod: Arc<Pod>| match mutant {
            Some(mutant) => mutant.see(&world, pod),
            None => pod,
        };
        let pods = nodes
            .iter()
            .filter_map(|node| Some((node.name_any(), caches.pods.get(&node.name_any()).map(see)?)));
        let pods: BTreeMap<String, Arc<Pod>> = pods.collect();
        // The model's Service shows at once what the gate says.
        let published = pods.values().filter(|pod| gate_is_open(pod)).filter_map(|pod| pod.uid()).collect();
        Ok(Some(Seen {
            pods,
            published,
            nodes,
            service: caches.services.get(&names::service(&key.name)),
            auth: caches.secrets.get(&names::auth_secret(&key.name)),
            acl: caches.config_maps.get(&names::acl_config_map(&key.name)),
            // The modelled clusters serve plaintext.
            tls: None,
            machines,
            menu,
            cluster,
        }))
    }

    async fn live_object(
        &self,
        _: &ClusterKey,
        like: &ClusterObject,
    ) -> Result<Option<ClusterObject>, KubeError> {
        let like = like.clone();
        let what = "reading a cluster-level object";
        self.line
            .api(what.to_owned(), move |world| Ok(objects::live(world, &like)))
            .await
            .map_err(failed(what))
    }

    async fn live_nodes(&self, cluster: &ValkeyCluster) -> Result<Vec<ValkeyNode>, KubeError> {
        let uid = cluster.uid().unwrap_or_default();
        if self.line.mutant() == Some(Mutant::StaleList) {
            let caches = self.caches.lock().unwrap_or_else(PoisonError::into_inner);
            let ours = caches.nodes.all().filter(|node| build::owned_by(&node.metadata, &uid));
            return Ok(ours.map(|node| node.as_ref().clone()).collect());
        }
        let reply = self.line.api("list nodes".to_owned(), move |world| {
            let nodes = world.api.list::<ValkeyNode>();
            let ours = nodes.iter().filter(|node| build::owned_by(&node.metadata, &uid));
            Ok(ours.map(|node| node.as_ref().clone()).collect())
        });
        reply.await.map_err(failed("listing the nodes"))
    }

    async fn live_pod(&self, _: &str, name: &str) -> Result<Option<Pod>, KubeError> {
        let pod = name.to_owned();
        let reply = self.line.api(format!("read Pod {name}"), move |world| {
            Ok(world.api.get::<Pod>(&pod).map(|it| it.as_ref().clone()))
        });
        reply.await.map_err(failed("reading the Pod"))
    }

    async fn save_status(
        &self,
        cluster: &ValkeyCluster,
        status: &ValkeyClusterStatus,
    ) -> Result<ValkeyCluster, KubeError> {
        let number = |status: Option<&ValkeyClusterStatus>| {
            status.and_then(|status| status.last_action.as_ref()).map(|last| last.number)
        };
        let intent = number(Some(status)) != number(cluster.status.as_ref());
        let word = status.last_action.as_ref().filter(|_| intent).map_or_else(
            || "shown".to_owned(),
            |last| format!("intent {} {} {}", last.number, last.kind, last.on),
        );
        let (name, status) = (cluster.name_any(), status.clone());
        let lock = self.line.mutant() != Some(Mutant::NoLock);
        let (uid, version) = (cluster.uid(), cluster.resource_version().filter(|_| lock));
        let action = number(Some(&status)).unwrap_or_default();
        let kind = status.last_action.as_ref().map(|last| last.kind.clone()).unwrap_or_default();
        let (line, tick, of) = (self.line.name.to_string(), self.line.tick(&name), name.clone());
        self.write("save status", (&cluster.name_any(), word), None, move |world| {
            let saved = world.api.update::<ValkeyCluster>(
                world.now,
                &name,
                uid.as_deref(),
                version.as_deref(),
                |cluster| {
                    cluster.status = Some(status);
                    Ok(())
                },
            )?;
            if intent {
                world.note_intent(&line, (&of, tick), action, kind);
            }
            Ok(saved.as_ref().clone())
        })
        .await
    }

    async fn set_cluster_finalizer(
        &self,
        cluster: &ValkeyCluster,
        present: bool,
    ) -> Result<ValkeyCluster, KubeError> {
        let (name, uid) = (cluster.name_any(), cluster.uid());
        let kind = (!present).then_some(Kind::Release);
        let detail = format!("{name} {present}");
        self.write("set cluster finalizer", (&cluster.name_any(), detail), kind, move |world| {
            if !present {
                world.judge_release(&name);
            }
            let done = world.api.update::<ValkeyCluster>(world.now, &name, uid.as_deref(), None, |cluster| {
                let deleting = cluster.metadata.deletion_timestamp.is_some();
                let list = &mut cluster.metadata.finalizers;
                rules::set_finalizer(list, deleting, names::CLUSTER_FINALIZER, present)
            });
            // Applied with a UID, it is not made where it is not there.
            done.map(|cluster| cluster.as_ref().clone())
                .map_err(|error| if error == ApiError::NotFound { ApiError::Conflict } else { error })
        })
        .await
    }

    async fn release_secret(&self, secret: &Secret) -> Result<(), KubeError> {
        let (name, version) = (secret.name_any(), secret.resource_version());
        let cluster = name.trim_end_matches("-operator-auth").to_owned();
        self.write("release Secret", (&cluster, name.clone()), Some(Kind::Release), move |world| {
            let done = world.api.update::<Secret>(world.now, &name, None, version.as_deref(), |secret| {
                rules::set_finalizer(&mut secret.metadata.finalizers, true, names::AUTH_FINALIZER, false)
            });
            done.map(drop)
        })
        .await
    }

    async fn replace_secret(&self, secret: &Secret) -> Result<(), KubeError> {
        let (wanted, version) = (secret.clone(), secret.resource_version());
        let detail = secret.name_any();
        self.write("replace Secret", ("", detail), None, move |world| {
            let name = wanted.name_any();
            let done = world.api.update::<Secret>(world.now, &name, None, version.as_deref(), |secret| {
                secret.data.clone_from(&wanted.data);
                secret.metadata.annotations.clone_from(&wanted.metadata.annotations);
                Ok(())
            });
            done.map(drop)
        })
        .await
    }

    async fn create_node(&self, node: &ValkeyNode) -> Result<(), KubeError> {
        let node = node.clone();
        let (cluster, detail) = (node.spec.cluster_name.clone(), node.name_any());
        self.write("create node", (&cluster, detail), Some(Kind::Create), move |world| {
            world.judge_create(&node);
            world.api.create(world.now, node).map(drop)
        })
        .await
    }

    async fn set_lifecycle(
        &self,
        _: &str,
        name: &str,
        uid: &str,
        to: Lifecycle,
        clear_join_type: bool,
    ) -> Result<(), KubeError> {
        if self.line.mutant() == Some(Mutant::DeletesUnreset) && to == Lifecycle::Leaving {
            return self.delete_node("", name, uid).await;
        }
        let (name, uid) = (name.to_owned(), uid.to_owned());
        let cluster = super::valkey::cluster_of(&name).to_owned();
        let detail = format!("{name} {to}");
        self.write("set lifecycle", (&cluster, detail), Some(Kind::Lifecycle), move |world| {
            let done = world.api.update::<ValkeyNode>(world.now, &name, Some(&uid), None, |node| {
                // A JSON patch: what it takes away must be there.
                if clear_join_type && node.labels_mut().remove(names::LABEL_JOIN_TYPE).is_none() {
                    return Err(ApiError::Conflict);
                }
                rules::move_lifecycle(node, to)
            });
            // One that a rule refuses cannot be told from one whose test fails.
            done.map(drop).map_err(|error| match error {
                ApiError::Invalid(_) => ApiError::Conflict,
                error => error,
            })
        })
        .await
    }

    async fn delete_node(&self, _: &str, name: &str, uid: &str) -> Result<(), KubeError> {
        let (name, uid) = (name.to_owned(), uid.to_owned());
        let cluster = super::valkey::cluster_of(&name).to_owned();
        let detail = name.clone();
        self.write("delete node", (&cluster, detail), Some(Kind::Delete), move |world| {
            world.judge_delete(&name, &uid);
            match world.api.delete::<ValkeyNode>(world.now, &name, Some(&uid), None) {
                Err(ApiError::NotFound | ApiError::Conflict) => Ok(()),
                done => done,
            }
        })
        .await
    }

    async fn delete_pod(&self, _: &str, name: &str, uid: &str) -> Result<(), KubeError> {
        let (name, uid) = (name.to_owned(), uid.to_owned());
        let cluster = super::valkey::cluster_of(&name).to_owned();
        let detail = name.clone();
        self.write("delete Pod", (&cluster, detail), Some(Kind::EndPod), move |world| {
            world.judge_pod_end(&name, &uid);
            match world.api.delete::<Pod>(world.now, &name, Some(&uid), Some(30)) {
                Err(ApiError::NotFound | ApiError::Conflict) => Ok(()),
                done => done,
            }
        })
        .await
    }

    async fn save_node_status(&self, node: &ValkeyNode, status: &ValkeyNodeStatus) -> Result<(), KubeError> {
        let (name, status) = (node.name_any(), status.clone());
        let (uid, version) = (node.uid(), node.resource_version());
        let detail = name.clone();
        self.write("save node status", (&node.spec.cluster_name, detail), None, move |world| {
            let (uid, version) = (uid.as_deref(), version.as_deref());
            let done = world.api.update::<ValkeyNode>(world.now, &name, uid, version, |node| {
                rules::apply_node_status(node, &status)
            });
            done.map(drop)
        })
        .await
    }

    async fn create_object(&self, object: &ClusterObject) -> Result<(), KubeError> {
        let object = object.clone();
        let detail = object.meta().0.name.clone().unwrap_or_default();
        self.write("create", ("", detail), None, move |world| objects::create(world, object)).await
    }

    async fn apply_object(&self, object: &ClusterObject) -> Result<(), KubeError> {
        let object = object.clone();
        let detail = object.meta().0.name.clone().unwrap_or_default();
        self.write("apply", ("", detail), None, move |world| objects::apply(world, object)).await
    }

    async fn upkeep_pod(&self, pod: &Pod, change: &PodUpkeep) -> Result<(), KubeError> {
        let (name, uid, change) = (pod.name_any(), pod.uid(), change.clone());
        if let Some(joined) = change.joined {
            let (pod, uid) = (name.clone(), uid.clone());
            self.write("gate Pod", ("", format!("{name} {joined}")), None, move |world| {
                let done = world.api.update::<Pod>(world.now, &pod, uid.as_deref(), None, |pod| {
                    set_gate(pod, joined);
                    Ok(())
                });
                done.map(drop)
            })
            .await?;
        }
        if change.labels.is_empty() && change.annotations.is_empty() {
            return Ok(());
        }
        let detail = name.clone();
        self.write("label Pod", ("", detail), None, move |world| {
            let done = world.api.update::<Pod>(world.now, &name, uid.as_deref(), None, |pod| {
                pod.labels_mut().extend(change.labels);
                pod.annotations_mut().extend(change.annotations);
                Ok(())
            });
            done.map(drop)
        })
        .await
    }

    async fn notify(&self, cluster: &ValkeyCluster, notice: &Notice) {
        let detail = format!("{}: {}", notice.reason, notice.note);
        // An event that is not written is no trouble.
        drop(self.write("event", (&cluster.name_any(), detail), None, |_| Ok(())).await);
    }
}

fn gate_is_open(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|it| it.type_ == names::READINESS_GATE && it.status == "True")
}

fn set_gate(pod: &mut Pod, joined: bool) {
    let status = pod.status.get_or_insert_with(PodStatus::default);
    let conditions = status.conditions.get_or_insert_with(Vec::new);
    conditions.retain(|condition| condition.type_ != names::READINESS_GATE);
    conditions.push(PodCondition {
        type_: names::READINESS_GATE.to_owned(),
        status: if joined { "True" } else { "False" }.to_owned(),
        ..PodCondition::default()
    });
}
