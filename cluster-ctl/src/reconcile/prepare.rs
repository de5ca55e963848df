//! What a tick wants, from the menu and the cluster, and what it publishes towards it: users.acl and the next step of a
//! rotation of passwords.

use shared::names;
use shared::secret::RandomError;

use super::{Context, TickError};
use crate::desired;
use crate::model::{Desired, Limits, Observed, Shape};
use crate::passwords::Passwords;
use crate::ports::{ClusterKey, Host, Kube, Valkey, World};
use crate::publish::{self, Publication};
use crate::rotation;
use crate::upkeep::objects;

/// Times a fresh node name is drawn again when taken, per needed name, before the tick gives up.
const NAME_DRAWS: usize = 4;

/// What a tick wants.
pub(super) struct Prepared {
    pub(super) want: Desired,
    pub(super) publication: Option<Publication>,
    pub(super) rotation: rotation::Step,
}

impl<K: Kube, V: Valkey, H: Host> Context<K, V, H> {
    /// What is wanted, the users.acl that is published towards it, and the next step of a rotation of passwords.
    pub(super) async fn prepare(
        &self,
        key: &ClusterKey,
        world: &World,
        seen: &mut Observed,
        passwords: Option<&Passwords>,
    ) -> Result<Prepared, TickError> {
        let resolution = desired::resolve(world);
        let count = seen.cluster.snapshot.map_or(1, Shape::members).max(1);
        let names = self.draw_names(key, world, count)?;
        let mut want = desired::desired(world, &resolution, names, self.settings.default_zone_spread);
        want.limits = Limits {
            slot_batch: self.settings.slot_batch,
            slot_batch_bytes: self.settings.slot_batch_bytes.0,
        };
        want.patience.failover_millis =
            i64::try_from(self.settings.failover_patience.as_millis()).unwrap_or(i64::MAX);
        want.patience.node_loss_millis =
            i64::try_from(self.settings.node_loss_patience.as_millis()).unwrap_or(i64::MAX);
        let mut publication = None;
        let mut rotation = rotation::Step::Rest;
        if let Some(passwords) = passwords {
            let engine = desired::acl_engine(seen, &resolution);
            let known = desired::are_known(passwords, world);
            match desired::acl_file(world, &resolution, passwords, engine) {
                Ok(file) if known => publication = Some(publish::decide(file, world.acl.as_deref())),
                Ok(_) => {}
                Err(words) => want.acl = Err(words),
            }
            let text = publication.as_ref().map(|publication| publication.text.as_str());
            seen.objects.acl = objects::acl(&self.kube, key, world, text).await?;
            if known {
                let published = publish::text(world.acl.as_deref()) == text;
                let requested = objects::requested_rotation(world);
                rotation = rotation::next(passwords, requested, seen, publication.as_ref(), published);
                want.notices.extend(rotation::notice(passwords, &rotation));
            } else {
                want.notices.push(desired::unknown_passwords());
            }
        }
        desired::note_access(&mut want, world, publication.as_ref());
        desired::note_tls(&mut want, world);
        Ok(Prepared { want, publication, rotation })
    }

    /// `count` node names that no node of the cluster has.
    fn draw_names(&self, key: &ClusterKey, world: &World, count: usize) -> Result<Vec<String>, RandomError> {
        let taken = |name: &String| world.nodes.iter().any(|node| node.metadata.name.as_ref() == Some(name));
        let mut names: Vec<String> = Vec::with_capacity(count);
        for _ in 0..count.saturating_mul(NAME_DRAWS) {
            if names.len() == count {
                break;
            }
            let name = names::node(&key.name, &self.host.random_hex(names::NODE_SUFFIX_LEN)?);
            if !taken(&name) && !names.contains(&name) {
                names.push(name);
            }
        }
        Ok(names)
    }
}
