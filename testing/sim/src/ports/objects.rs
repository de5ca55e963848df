//! What writes of cluster-level objects do to the API server: server-side apply as far as the operator uses it.

use cluster_ctl::ports::ClusterObject;
use k8s_openapi::api::core::v1::{ConfigMap, Secret, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::world::World;
use crate::world::apiserver::{ApiError, Stored, owner};

type Done = Result<(), ApiError>;

/// Creates an object.
pub fn create(world: &mut World, object: ClusterObject) -> Done {
    let now = world.now;
    match object {
        ClusterObject::Service(it) => world.api.create(now, *it).map(drop),
        ClusterObject::Secret(it) => world.api.create(now, *it).map(drop),
        ClusterObject::ConfigMap(it) => world.api.create(now, *it).map(drop),
    }
}

/// Applies an object: what it names is set, what others set stays; one that is not there is made.
pub fn apply(world: &mut World, object: ClusterObject) -> Done {
    match object {
        ClusterObject::Service(it) => {
            upsert(world, *it, |have: &mut Service, want| have.spec.clone_from(&want.spec))
        }
        ClusterObject::Secret(it) => upsert(world, *it, |have: &mut Secret, want| {
            if let Some(data) = &want.data {
                have.data.get_or_insert_default().extend(data.clone());
            }
        }),
        ClusterObject::ConfigMap(it) => upsert(world, *it, |have: &mut ConfigMap, want| {
            have.data.get_or_insert_default().extend(want.data.clone().unwrap_or_default());
        }),
    }
}

fn upsert<T: Stored>(world: &mut World, want: T, content: impl FnOnce(&mut T, &T)) -> Done {
    let name = want.meta().name.clone().unwrap_or_default();
    let now = world.now;
    let Some(have) = world.api.get::<T>(&name) else { return world.api.create(now, want).map(drop) };
    if owner(have.meta()) != owner(want.meta()) {
        world.violated(format!("applies {name}, which is not its own"));
    }
    let done = world.api.update::<T>(now, &name, None, None, |object| {
        merge_meta(object.meta_mut(), want.meta());
        content(object, &want);
        Ok(())
    });
    done.map(drop)
}

fn merge_meta(have: &mut ObjectMeta, want: &ObjectMeta) {
    if let Some(labels) = &want.labels {
        have.labels.get_or_insert_default().extend(labels.clone());
    }
    for finalizer in want.finalizers.iter().flatten() {
        let list = have.finalizers.get_or_insert_default();
        if !list.contains(finalizer) {
            list.push(finalizer.clone());
        }
    }
}

/// The object of this kind and name.
pub fn live(world: &World, like: &ClusterObject) -> Option<ClusterObject> {
    let name = like.meta().0.name.clone()?;
    Some(match like {
        ClusterObject::Service(_) => {
            ClusterObject::Service(Box::new(world.api.get::<Service>(&name)?.as_ref().clone()))
        }
        ClusterObject::Secret(_) => {
            ClusterObject::Secret(Box::new(world.api.get::<Secret>(&name)?.as_ref().clone()))
        }
        ClusterObject::ConfigMap(_) => {
            ClusterObject::ConfigMap(Box::new(world.api.get::<ConfigMap>(&name)?.as_ref().clone()))
        }
    })
}
