//! What the operator relies on when it speaks to Valkey, proved on real servers of both supported generations.

mod acl;
mod acl_matrix;
mod bootstrap;
mod client;
mod commands;
mod conf_start;
mod conf_values;
mod loops;
mod migration;
mod passwords;
mod tls;

/// Makes one test per engine version out of each `async fn(Version) -> anyhow::Result<()>`.
macro_rules! on_every_version {
    ($($name:ident),+ $(,)?) => {
        mod on_9_1 {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() -> anyhow::Result<()> { super::$name(test_valkey::Version::V9_1).await })+
        }
        mod on_8_1 {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() -> anyhow::Result<()> { super::$name(test_valkey::Version::V8_1).await })+
        }
    };
}
use on_every_version;

use shared::valkey::ValkeyError;

/// The server's words of a refusal; anything else fails the test.
fn refusal<T>(outcome: Result<T, ValkeyError>) -> anyhow::Result<String> {
    match outcome {
        Ok(_) => anyhow::bail!("was not refused"),
        Err(ValkeyError::Refused { reply, .. }) => Ok(reply),
        Err(other) => Err(other.into()),
    }
}
