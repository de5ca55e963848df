//! How a tick reaches the nodes: with which passwords, and by whose word it believes who answers.

use std::sync::Arc;

use shared::names;
use shared::tls::{AuthorityRecord, Material};
use shared::valkey::client::Credentials;

use super::{Context, TickError};
use crate::build;
use crate::model::Observed;
use crate::observe::Access;
use crate::passwords::Passwords;
use crate::ports::{ClusterKey, Host, Kube, Valkey, World};
use crate::upkeep::objects;

impl<K: Kube, V: Valkey, H: Host> Context<K, V, H> {
    /// The passwords in the auth Secret, or our own copy of them when it is gone.
    pub(super) fn passwords(&self, key: &ClusterKey, world: &World, uid: &str) -> Option<Passwords> {
        let Some(secret) = &world.auth else { return self.memory.passwords(key, uid) };
        Passwords::of(secret).filter(|_| build::owned_by(&secret.metadata, uid))
    }

    /// A lost auth Secret is made anew from our own copy, if a node has just accepted it.
    pub(super) async fn restore_secret(
        &self,
        world: &World,
        seen: &Observed,
        copy: Option<&Passwords>,
    ) -> Result<(), TickError> {
        if let Some(copy) = copy
            && world.auth.is_none()
            && seen.reports().next().is_some()
        {
            objects::restore_secret(&self.kube, world, copy).await?;
        }
        Ok(())
    }

    /// How to reach the nodes; `None` for a TLS cluster whose authorities are not known: nobody can be verified then.
    pub(super) fn access(&self, key: &ClusterKey, world: &World, passwords: &Passwords) -> Option<Access> {
        let password = passwords.current.operator.clone();
        Some(Access {
            credentials: Arc::new(Credentials { user: names::USER_OPERATOR.to_owned(), password }),
            ca_pem: match &world.tls {
                Some(material) => Some(self.authorities(key, world, material)?),
                None => None,
            },
            fan_out: self.fan_out(),
        })
    }

    /// Who may vouch for the nodes: the authorities of the Secret, if it can be used, and those of the record that not all
    /// nodes are proved to have left behind; nodes keep what they have until they are told to read it again.
    fn authorities(&self, key: &ClusterKey, world: &World, material: &Material) -> Option<Arc<str>> {
        let uid = world.cluster.metadata.uid.as_deref().unwrap_or_default();
        let secret = world.cluster.spec.tls.as_ref()?.secret_ref.as_str();
        let usable = material.usable_authorities(secret, &key.name, &key.namespace);
        if let Some(usable) = &usable {
            self.memory.keep_authorities(key, uid, usable);
        }
        let ours = world.auth.as_ref().filter(|secret| build::owned_by(&secret.metadata, uid));
        let record = ours.and_then(|secret| AuthorityRecord::of(secret));
        AuthorityRecord::trusted(record.as_ref(), usable.as_ref())
            .or_else(|| self.memory.authorities(key, uid))
            .or_else(|| material.authorities())
    }
}
