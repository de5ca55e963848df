//! Slot migration (since 9.0) with exactly the rendered grants of the replication user.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use redis::aio::MultiplexedConnection;
use shared::slots::{SlotRange, SlotSet};
use shared::valkey::{MigrationState, Operation, SlotMigration};
use test_valkey::{Cluster, Layout, Options, Version, eventually, users_acl};

/// Hash tag of slot 0, which belongs to the first shard.
const TAG: &str = "{06S}";

/// The slots that move.
const RANGE: SlotRange = SlotRange { start: 0, end: 255 };

/// One key of every type; `T:` stands for the tagged prefix.
const DATA: &[&str] = &[
    "SET T:string v",
    "SET T:ttl v PX 600000",
    "SETRANGE T:range 5 x",
    "APPEND T:append x",
    "RPUSH T:list a b c",
    "SADD T:set a b c",
    "ZADD T:zset 1 a 2 b",
    "HSET T:hash f v g w",
    "HPEXPIRE T:hash 600000 FIELDS 1 f",
    "XADD T:stream 1-1 f v",
    "XGROUP CREATE T:stream g 0",
    "XREADGROUP GROUP g c STREAMS T:stream >",
    "PFADD T:hll a b",
    "PFADD T:hll2 c",
    "GEOADD T:geo 13.3 52.5 b 2.3 48.8 p",
    "SETBIT T:bits 7 1",
    "BITFIELD T:field SET u8 0 200",
];

/// Writes of every kind that may arrive while slots move; `W:` is a prefix of the writer's own, `N:` the
/// number of the round. Reads that replicate are here too.
const LOAD: &[&str] = &[
    "INCR T:n",
    "INCRBYFLOAT T:f 0.5",
    "GETEX T:ttl PX 600000",
    "GETDEL T:getdel",
    "MSET W:m1 a W:m2 b",
    "COPY T:string T:copy REPLACE",
    "RENAME W:m1 W:m3",
    "EXPIRE W:m2 600",
    "PERSIST W:m2",
    "LPUSH T:list x",
    "LMOVE T:list T:list2 LEFT RIGHT",
    "LMPOP 1 T:list2 LEFT",
    "BLPOP T:list2 0.001",
    "LTRIM T:list 0 50",
    "SADD T:set z",
    "SUNIONSTORE T:union T:set",
    "SPOP T:union",
    "SMOVE T:set T:set2 z",
    "ZINCRBY T:zset 1 a",
    "ZUNIONSTORE T:zunion 1 T:zset",
    "ZPOPMIN T:zunion",
    "ZRANGESTORE T:zrange T:zset 0 -1",
    "HINCRBY T:hash n 1",
    "HDEL T:hash n",
    "XADD T:stream MAXLEN 50 * f v",
    "XREADGROUP GROUP g c COUNT 1 STREAMS T:stream >",
    "XACK T:stream g 1-1",
    "XAUTOCLAIM T:stream g c 0 0",
    "XTRIM T:stream MAXLEN 50",
    "PFADD T:hll N:",
    "PFCOUNT T:hll",
    "PFCOUNT T:hll T:hll2",
    "PFMERGE T:hll3 T:hll T:hll2",
    "GEOSEARCHSTORE T:geo2 T:geo FROMLONLAT 2 48 BYRADIUS 100 km",
    "BITOP OR T:bits2 T:bits T:bits",
    "BITFIELD T:field INCRBY u8 0 1",
    "SORT T:list ALPHA STORE T:sorted",
    "UNLINK T:copy",
    "DEL T:sorted",
];

fn layout() -> Layout {
    Layout { version: Version::V9_1, shards: 2, replicas: 1, spare: 1 }
}

async fn send(connection: &mut MultiplexedConnection, command: &str) -> redis::RedisResult<redis::Value> {
    let mut words = command.split(' ').map(|word| word.replace("T:", &format!("{TAG}:")));
    let mut request = redis::cmd(&words.next().unwrap_or_default());
    request.arg(words.collect::<Vec<_>>()).query_async(connection).await
}

/// What the writers did.
#[derive(Default)]
struct Progress {
    stop: AtomicBool,
    /// Acknowledged INCRs of one key.
    increments: AtomicU64,
    /// Complete passes over all kinds of writes.
    rounds: AtomicU64,
}

/// Keeps every kind of write coming until told to stop or the slot has moved.
async fn keep_writing(
    name: usize,
    mut connection: MultiplexedConnection,
    progress: Arc<Progress>,
) -> Result<()> {
    while !progress.stop.load(Ordering::Relaxed) {
        for command in LOAD {
            let round = progress.rounds.load(Ordering::Relaxed);
            let words = command.replace("W:", &format!("T:{name}:")).replace("N:", &round.to_string());
            match send(&mut connection, &words).await {
                Ok(_) if *command == "INCR T:n" => _ = progress.increments.fetch_add(1, Ordering::Relaxed),
                Ok(_) => {}
                Err(error) if error.kind() == redis::ErrorKind::Server(redis::ServerErrorKind::Moved) => {
                    return Ok(());
                }
                Err(error) => return Err(anyhow!("{command}: {error}")),
            }
        }
        let mut script = redis::cmd("EVAL");
        script.arg("redis.call('SET', KEYS[1], ARGV[1]) return redis.call('INCR', KEYS[2])");
        script.arg(2).arg(format!("{TAG}:eval")).arg(format!("{TAG}:eval-n")).arg("v");
        let mut transaction = redis::pipe();
        transaction.atomic();
        transaction.cmd("SET").arg(format!("{TAG}:tx")).arg("v").ignore();
        transaction.cmd("RPUSH").arg(format!("{TAG}:tx-list")).arg("v").ignore();
        let scripted: redis::RedisResult<redis::Value> = script.query_async(&mut connection).await;
        let transacted: redis::RedisResult<()> = transaction.query_async(&mut connection).await;
        // MOVED in either ends the next round; what matters here is that the stream carries them.
        if scripted.is_err() || transacted.is_err() {
            tokio::task::yield_now().await;
        }
        progress.rounds.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

fn critical(log: &str) -> String {
    log.lines()
        .filter(|line| line.contains("CRITICAL") || line.contains("igration") || line.contains("NOPERM"))
        .collect::<Vec<_>>()
        .join("\n")
}

/// Moves 256 slots to the spare member while two writers send every kind of write; gives the source's job at the end.
async fn move_under_load(cluster: &Cluster) -> Result<(SlotMigration, Progress)> {
    let [source, _, _, _, target] = cluster.members.as_slice() else { anyhow::bail!("members") };
    let mut data = source.server.raw(None).await?;
    for command in DATA {
        send(&mut data, command).await.with_context(|| (*command).to_owned())?;
    }
    // Enough else in the slot that the snapshot takes a moment.
    let mut bulk = redis::pipe();
    for number in 0..40_000 {
        bulk.cmd("SET").arg(format!("{TAG}:bulk:{number}")).arg("x".repeat(500)).ignore();
    }
    let stored: redis::RedisResult<()> = bulk.query_async(&mut data).await;
    stored?;
    let progress = Arc::new(Progress::default());
    let writers: Vec<_> = [source.server.raw(None).await?, source.server.raw(None).await?]
        .into_iter()
        .enumerate()
        .map(|(name, connection)| tokio::spawn(keep_writing(name, connection, Arc::clone(&progress))))
        .collect();
    let rounds = || progress.rounds.load(Ordering::Relaxed);
    eventually("the writers are under way", Duration::from_secs(10), || async {
        if rounds() > 4 { Ok(()) } else { Err(rounds().to_string()) }
    })
    .await?;
    let before = rounds();
    source.connection.migrate_slots(&[RANGE], target.id).await?;
    let ended = eventually("the job ends", Duration::from_secs(30), || async {
        let jobs = source.connection.slot_migrations().await.map_err(|error| error.to_string())?;
        match jobs.into_iter().next() {
            Some(job) if !job.state.is_open() => Ok(job),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    let during = rounds() - before;
    progress.stop.store(true, Ordering::Relaxed);
    for writer in writers {
        writer.await??;
    }
    ensure!(during >= 2, "only {during} rounds of writes while the job ran: nothing is proved");
    let progress = Arc::into_inner(progress).context("a writer still runs")?;
    Ok((ended?, progress))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_data_type_moves_under_load_to_a_new_primary_and_nothing_is_lost() -> Result<()> {
    let cluster = Cluster::form(layout()).await?;
    let [source, _, _, _, target] = cluster.members.as_slice() else { anyhow::bail!("members") };
    let (job, progress) = move_under_load(&cluster).await?;
    let why = || critical(&target.server.log());
    ensure!(job.state == MigrationState::Success && job.operation == Operation::Export, "{job:?} {}", why());
    ensure!(job.slots == SlotSet::from_ranges([RANGE]) && job.target == Some(target.id), "{job:?}");
    for member in [source, target] {
        eventually("both ends see the new owner", Duration::from_secs(10), || async {
            let report = member.connection.report(false).await.map_err(|error| error.to_string())?;
            let line = report.line(target.id).map(|line| line.slots.clone());
            if line == Some(SlotSet::from_ranges([RANGE])) { Ok(()) } else { Err(format!("{line:?}")) }
        })
        .await?;
    }
    let mut data = target.server.raw(None).await?;
    let counted: u64 = redis::cmd("GET").arg(format!("{TAG}:n")).query_async(&mut data).await?;
    let acknowledged = progress.increments.into_inner();
    ensure!(counted >= acknowledged && acknowledged > 0, "{acknowledged} acknowledged, {counted} kept");
    for (key, kind) in [
        ("string", "string"),
        ("list", "list"),
        ("set", "set"),
        ("zset", "zset"),
        ("hash", "hash"),
        ("stream", "stream"),
        ("hll", "string"),
        ("geo", "zset"),
        ("bulk:39999", "string"),
        ("eval", "string"),
        ("tx-list", "list"),
    ] {
        let found: String = redis::cmd("TYPE").arg(format!("{TAG}:{key}")).query_async(&mut data).await?;
        ensure!(found == kind, "{key} is {found}");
    }
    let left: i64 = redis::cmd("PTTL").arg(format!("{TAG}:ttl")).query_async(&mut data).await?;
    ensure!(left > 0, "the expiry of a key is lost");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_grant_less_fails_the_move_and_leaves_the_slots() -> Result<()> {
    // PFCOUNT is no write command but is replicated: the least obvious of the grants.
    let acl = users_acl(Version::V9_1, &[], &BTreeMap::new())?.text.replace(" +pfcount", "");
    let cluster =
        Cluster::form_with(layout(), |_| Options { acl: Some(acl.clone()), ..Options::default() }).await?;
    let (job, _) = move_under_load(&cluster).await?;
    ensure!(job.state == MigrationState::Failed, "{job:?}");
    let [source, _, _, _, target] = cluster.members.as_slice() else { anyhow::bail!("members") };
    let log = critical(&target.server.log());
    ensure!(log.contains("pfcount"), "{log}");
    let owned = source.connection.report(false).await?.myself().map(|line| line.slots.clone());
    ensure!(owned.is_some_and(|owned| owned.contains(0) && owned.contains(255)), "the slots moved");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_can_be_seen_and_cancelled_and_the_slots_stay() -> Result<()> {
    let cluster = Cluster::form(layout()).await?;
    let [source, _, _, _, target] = cluster.members.as_slice() else { anyhow::bail!("members") };
    let range = SlotRange { start: 0, end: 99 };
    // A frozen target keeps the job from getting anywhere.
    target.server.freeze()?;
    source.connection.migrate_slots(&[range], target.id).await?;
    let again = source.connection.migrate_slots(&[SlotRange { start: 5, end: 5 }], target.id).await;
    let words = crate::refusal(again)?;
    ensure!(words.contains("I am already migrating slot 5"), "{words}");
    let jobs = source.connection.slot_migrations().await?;
    ensure!(jobs.first().is_some_and(|job| job.state.is_open()), "{jobs:?}");
    source.connection.cancel_slot_migrations().await?;
    target.server.thaw()?;
    let jobs = source.connection.slot_migrations().await?;
    ensure!(jobs.first().is_some_and(|job| job.state == MigrationState::Cancelled), "{jobs:?}");
    let owned =
        source.connection.report(false).await?.myself().map(|line| line.slots.clone()).unwrap_or_default();
    ensure!(owned.contains(0) && owned.contains(99), "{owned:?}");
    // With nothing to cancel the order is obeyed already.
    source.connection.cancel_slot_migrations().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_to_a_replica_fails_with_the_engines_words() -> Result<()> {
    let cluster = Cluster::form(layout()).await?;
    let [source, _, _, other_replica, _] = cluster.members.as_slice() else { anyhow::bail!("members") };
    let range = SlotRange { start: 0, end: 9 };
    source.connection.migrate_slots(&[range], other_replica.id).await?;
    let message = eventually("the job fails", Duration::from_secs(20), || async {
        let jobs = source.connection.slot_migrations().await.map_err(|error| error.to_string())?;
        match jobs.first() {
            Some(job) if job.state == MigrationState::Failed => Ok(job.message.clone()),
            other => Err(format!("{other:?}")),
        }
    })
    .await?;
    ensure!(message.contains("can only be used on primary nodes"), "{message}");
    Ok(())
}
