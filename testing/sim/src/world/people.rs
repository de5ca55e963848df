//! What people do: the menu, and the clusters that they create, edit and delete.

use std::collections::BTreeMap;
use std::sync::Arc;

use cluster_ctl::ports::Menu;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use shared::api::{ValkeyCluster, ValkeyClusterSpec, ValkeyConfigSpec, ValkeyImageSpec, ValkeyNode};
use shared::names::ANNOTATION_CONFIRMED_DEAD;

use super::World;
use crate::clock::Ms;

/// A person looks after a vanished Pod for this long, milliseconds.
const CONFIRMED_AFTER: Ms = 40_000;

/// The one config of the menu.
pub const CONFIG: &str = "small";
/// The one image of the menu.
const IMAGE: &str = "valkey";

/// A menu with one config and one image of tag `tag`; a tag with `bad` in it cannot be pulled.
pub fn menu(tag: &str) -> Menu {
    let image = ValkeyImageSpec {
        repository: "registry.example/valkey".to_owned(),
        tag: tag.to_owned(),
        version: "9.1.2".to_owned(),
    };
    let config = ValkeyConfigSpec { image_ref: Some(IMAGE.to_owned()), ..ValkeyConfigSpec::default() };
    Menu {
        configs: BTreeMap::from([(CONFIG.to_owned(), config)]),
        images: BTreeMap::from([(IMAGE.to_owned(), image)]),
        roles: BTreeMap::new(),
    }
}

impl World {
    /// Somebody creates a cluster.
    pub fn create_cluster(&mut self, name: &str, shards: u16, replicas: u16) {
        self.say("people", &format!("create {name}: {shards} shards with {replicas} replicas each"));
        let spec = ValkeyClusterSpec {
            config_ref: CONFIG.to_owned(),
            shards: i32::from(shards),
            replicas_per_shard: i32::from(replicas),
            ..ValkeyClusterSpec::default()
        };
        // A name that is taken stays whose it is.
        drop(self.api.create(self.now, ValkeyCluster::new(name, spec)));
    }

    /// Somebody edits the size of a cluster.
    pub fn resize_cluster(&mut self, name: &str, shards: u16, replicas: u16) {
        self.new_turn();
        self.audit.edited.insert(name.to_owned(), self.now);
        self.say("people", &format!("edit {name}: {shards} shards with {replicas} replicas each"));
        let done = self.api.update::<ValkeyCluster>(self.now, name, None, None, |cluster| {
            cluster.spec.shards = i32::from(shards);
            cluster.spec.replicas_per_shard = i32::from(replicas);
            Ok(())
        });
        drop(done);
    }

    /// Somebody deletes a cluster.
    pub fn delete_cluster(&mut self, name: &str) {
        self.say("people", &format!("delete {name}"));
        drop(self.api.delete::<ValkeyCluster>(self.now, name, None, None));
    }

    /// A person who saw a Pod vanish without a trace confirms, a while later, that it is dead: nothing else proves it.
    pub fn confirm_dead(&mut self) {
        if !self.confirms {
            return;
        }
        for node in self.api.list::<ValkeyNode>() {
            let Some(record) = node.status.as_ref().and_then(|status| status.pod.clone()) else { continue };
            let name = node.metadata.name.clone().unwrap_or_default();
            let gone = record.terminated_at.is_none()
                && self.valkey.in_pod(&record.uid).is_none()
                && self.api.get::<Pod>(&name).is_none();
            if !gone {
                self.missed.remove(&record.uid);
                continue;
            }
            let since = *self.missed.entry(record.uid.clone()).or_insert(self.now);
            if self.now - since < CONFIRMED_AFTER
                || node.annotations().contains_key(ANNOTATION_CONFIRMED_DEAD)
            {
                continue;
            }
            self.say("people", &format!("confirm that {name} is dead"));
            let done = self.api.update::<ValkeyNode>(self.now, &name, None, None, |node| {
                node.annotations_mut().insert(ANNOTATION_CONFIRMED_DEAD.to_owned(), record.uid);
                Ok(())
            });
            drop(done);
        }
    }

    /// The platform team names another image tag; every cluster is woken by its heartbeat at the latest.
    pub fn change_image(&mut self, tag: &str) {
        self.say("people", &format!("the image is {tag}"));
        self.menu = Arc::new(menu(tag));
        self.new_turn();
    }
}
