//! The operator's commands as a server takes them, and the words of a refusal.

use cluster_ctl::ports::Command;
use shared::names::CLIENT_PORT;
use shared::valkey::{Connection, ValkeyError};

/// Sends a command to a server.
pub(crate) async fn send(connection: &Connection, command: &Command) -> Result<(), ValkeyError> {
    match command {
        Command::SetConfigEpoch(epoch) => connection.set_config_epoch(*epoch).await,
        Command::AddSlots(ranges) => connection.add_slots_range(ranges).await,
        Command::Meet(ip) => connection.meet(*ip, CLIENT_PORT).await,
        Command::Replicate(primary) => connection.replicate(*primary).await,
        Command::Forget(id) => connection.forget(*id).await.map(drop),
        Command::Failover(kind) => connection.failover(*kind).await,
        Command::Reset => connection.reset_hard().await,
        Command::MigrateSlots(ranges, target) => connection.migrate_slots(ranges, *target).await,
    }
}

/// A refusal without what differs from node to node.
pub(crate) fn plain(words: &str) -> String {
    let is_id = |word: &&str| word.len() == 40 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
    let words = words.trim_start_matches('-').split_whitespace().filter(|word| !is_id(word));
    words.collect::<Vec<_>>().join(" ")
}
