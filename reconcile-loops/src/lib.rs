//! The ACL and TLS loops: make running nodes re-read the files that the kubelet refreshed, and prove that they did.
//!
//! Each loop has the shape observe (`caches`, `seen`) → decide (`plan`) → do (`acl`, `api`), driven by `tick`. The two
//! share code and the read-only caches, no state and no task: a slow, stuck or panicking pass of one never delays the
//! other, and within a pass no node or cluster delays another. Nothing is kept that a restart may not lose.

pub mod acl;
pub mod api;
pub mod authorities;
pub mod caches;
pub mod nodes;
pub mod plan;
pub mod seen;
pub mod tick;
pub mod tls;

use std::error::Error;
use std::sync::Arc;

use shared::run::App;

use crate::acl::AclLoop;
use crate::caches::Caches;
use crate::tls::TlsLoop;

/// Runs both loops until asked to stop.
pub async fn run(app: App) -> Result<(), Box<dyn Error + Send + Sync>> {
    let ready = app.health.ready_flag("caches");
    let caches = Arc::new(Caches::start(app.client.clone()));
    let until_stopped = app.shutdown.wait();
    tokio::pin!(until_stopped);
    tokio::select! {
        biased;
        () = &mut until_stopped => return Ok(()),
        synced = caches.synced() => synced?,
    }
    ready.set(true);
    let acl = AclLoop::new(&app, Arc::clone(&caches));
    let tls = TlsLoop::new(&app, Arc::clone(&caches));
    tokio::join!(
        tick::supervised(
            Arc::new(acl),
            app.settings.acl_tick,
            &app.health,
            &app.shutdown,
            &app.metrics.controller
        ),
        tick::supervised(
            Arc::new(tls),
            app.settings.tls_tick,
            &app.health,
            &app.shutdown,
            &app.metrics.controller
        ),
    );
    Ok(())
}
