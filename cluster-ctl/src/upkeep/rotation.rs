//! Carries out a step of the rotation of passwords. Every step may be repeated, and each ends in at most one update of the
//! auth Secret, under the resourceVersion that the tick read: of two operators one gets through.

use futures::StreamExt;
use shared::names;
use shared::secret::{RandomError, Redacted};
use shared::valkey::error::ValkeyError;

use crate::model::Observed;
use crate::observe::Access;
use crate::passwords::{Pair, Passwords};
use crate::ports::{Kube, KubeError, Server, Valkey, World};
use crate::rotation::Step;

/// Why a step failed.
#[derive(Debug, thiserror::Error)]
pub enum RotationError {
    /// The Secret could not be updated.
    #[error("rotating the passwords failed")]
    Kube(#[from] KubeError),
    /// The system gave no random numbers.
    #[error("drawing passwords failed")]
    Random(#[from] RandomError),
}

/// What came of a step.
#[derive(Debug, PartialEq, Eq)]
pub enum Rotated {
    /// Nothing was to be done.
    Nothing,
    /// Not yet: the node, and why.
    NotYet(String),
    /// The Secret was updated; `true` when that ended the rotation.
    Updated(bool),
}

/// Takes the step.
pub async fn take<K: Kube, V: Valkey>(
    (kube, valkey): (&K, &V),
    world: &World,
    seen: &Observed,
    access: &Access,
    passwords: &Passwords,
    step: &Step,
    draw: impl Fn() -> Result<Redacted<String>, RandomError>,
) -> Result<Rotated, RotationError> {
    let (after, ends) = match step {
        Step::Rest | Step::Wait(_) => return Ok(Rotated::Nothing),
        Step::Begin(token) => (passwords.begin(Pair::draw(draw)?, token), false),
        Step::Switch { revision } => {
            let (Some(next), Some(after)) = (&passwords.next, passwords.switch()) else {
                return Ok(Rotated::Nothing);
            };
            let proved = on_all(seen, access, |server| async move {
                Ok(valkey.proves(&server, revision).await?.then_some(()))
            });
            if let Some(why) = proved.await {
                return Ok(Rotated::NotYet(why));
            }
            if let Some(why) = set_on_all(valkey, seen, access, &next.repl).await {
                return Ok(Rotated::NotYet(why));
            }
            (after, false)
        }
        Step::Finish => {
            if let Some(why) = set_on_all(valkey, seen, access, &passwords.current.repl).await {
                return Ok(Rotated::NotYet(why));
            }
            (passwords.finish(), true)
        }
    };
    let Some(secret) = &world.auth else { return Ok(Rotated::Nothing) };
    match kube.replace_secret(&after.put_into(secret)).await {
        Ok(()) => Ok(Rotated::Updated(ends)),
        // Somebody else was first: the next tick reads what it is now.
        Err(KubeError::Conflict { .. } | KubeError::NotFound { .. }) => {
            Ok(Rotated::NotYet(format!("{} has changed", names::auth_secret(&seen.cluster.name))))
        }
        Err(error) => Err(error.into()),
    }
}

async fn set_on_all<V: Valkey>(
    valkey: &V,
    seen: &Observed,
    access: &Access,
    password: &Redacted<String>,
) -> Option<String> {
    on_all(seen, access, |server| async move {
        valkey.set_replication_password(&server, password).await.map(Some)
    })
    .await
}

/// Asks every member that is to stay, all at once but bounded; the first that did not do it, and why.
async fn on_all<F>(seen: &Observed, access: &Access, ask: impl Fn(Server) -> F) -> Option<String>
where
    F: Future<Output = Result<Option<()>, ValkeyError>>,
{
    let members = seen.staying().filter(|member| !member.verified_dead());
    let servers: Vec<(String, Option<Server>)> = members
        .map(|member| {
            let server = member.pod.as_ref().and_then(|pod| access.server(pod, &member.name, &seen.cluster));
            (member.name.clone(), server)
        })
        .collect();
    let asked = servers.into_iter().map(|(name, server)| {
        let asking = server.map(&ask);
        async move {
            match asking {
                None => Some(format!("{name} has no address")),
                Some(asking) => match asking.await {
                    Ok(Some(())) => None,
                    Ok(None) => Some(format!("{name} does not run the published users.acl yet")),
                    Err(error) => Some(format!("{name}: {}", shared::telemetry::chain(&error))),
                },
            }
        }
    });
    let answers: Vec<Option<String>> =
        futures::stream::iter(asked).buffer_unordered(access.fan_out.max(1)).collect().await;
    answers.into_iter().flatten().min()
}
