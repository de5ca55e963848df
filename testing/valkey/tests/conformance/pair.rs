//! Real servers and the model, side by side: whatever is done is done to both, and both are looked at.
//!
//! The model's time is the time of the servers: it is moved on before each look and each command. IDs and addresses
//! are the servers', because their order decides between equal epochs.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use cluster_ctl::ports::Command;
use shared::valkey::{Connection, Epoch, NodeId, ValkeyError};
use sim::clock::{Ms, START};
use sim::world::valkey::Valkey;
use sim::world::valkey::engine::STEP;
use sim::world::valkey::node::{Home, Login};
use sim::world::valkey::report::report;
use test_valkey::{Options, Server, Version, eventually, users_acl};

use crate::op::{Op, Place, key_of, range};
use crate::picture::{Name, Picture, Pictures};
use crate::words::{plain, send};

/// How long both may take to come to the same picture.
const LIMIT: Duration = Duration::from_secs(25);
/// How long they must stay in it.
const REST: Duration = Duration::from_millis(1_500);
/// The same where somebody fell silent: longer than a node timeout, a missed ping and an election.
const LONG_REST: Duration = Duration::from_secs(10);
/// A write is with the replicas by then; the model passes it on with each step.
const REPLICATED: Duration = Duration::from_millis(300);
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(250);

/// One node on both sides.
struct Member {
    server: Server,
    connection: Connection,
    id: NodeId,
    lives: usize,
    alive: bool,
    frozen: bool,
}

/// Both sides.
pub(crate) struct Pair {
    version: Version,
    members: Vec<Member>,
    model: Valkey,
    names: BTreeMap<NodeId, Name>,
    ids: BTreeMap<(Place, usize), NodeId>,
    began: Instant,
    stepped: Ms,
    rest: Duration,
    done: Vec<String>,
    /// Chance decides the order of epochs.
    by_chance: bool,
}

impl Pair {
    /// `count` empty nodes.
    pub(crate) async fn start(version: Version, count: usize) -> Result<Self> {
        let mut pair = Self {
            version,
            members: Vec::new(),
            model: Valkey::new(fastrand::Rng::with_seed(1)),
            names: BTreeMap::new(),
            ids: BTreeMap::new(),
            began: Instant::now(),
            stepped: START,
            rest: REST,
            done: Vec::new(),
            by_chance: false,
        };
        for _ in 0..count {
            pair.add().await?;
        }
        Ok(pair)
    }

    /// Empty nodes, formed to so many shards of so many replicas by the operator's order: epochs, slots, MEET, REPLICATE.
    /// First the primaries, then the replicas shard after shard; what is left are members without slots.
    pub(crate) async fn formed(version: Version, shards: u16, replicas: u16, spare: usize) -> Result<Self> {
        let shaped = usize::from(shards) * (1 + usize::from(replicas));
        let mut pair = Self::start(version, shaped + spare).await?;
        for (place, epoch) in (1..).enumerate().take(shaped + spare) {
            pair.does(Op::Epoch(place, epoch)).await?;
        }
        for (place, slots) in shared::slots::contiguous_spread(shards).into_iter().enumerate() {
            pair.does(Op::Slots(place, slots.start, slots.end)).await?;
        }
        for place in 1..shaped + spare {
            pair.does(Op::Meet(0, place)).await?;
        }
        pair.until("all know all", |all| all.values().all(|one| one.lines.len() == shaped + spare)).await?;
        for place in usize::from(shards)..shaped {
            pair.does(Op::Replicate(place, place % usize::from(shards))).await?;
        }
        pair.until("all serve", |all| all.values().all(|one| one.serves && one.linked != Some(false)))
            .await?;
        Ok(pair)
    }

    /// From now on chance decides the order of epochs: only that they differ is compared.
    pub(crate) fn leave_to_chance(&mut self) {
        self.by_chance = true;
    }

    /// How many nodes there ever were.
    pub(crate) fn count(&self) -> usize {
        self.members.len()
    }

    /// Which life a node is in.
    pub(crate) fn life(&self, place: Place) -> usize {
        self.members.get(place).map_or(0, |member| member.lives)
    }

    /// The name of a node in its present life.
    pub(crate) fn name(&self, place: Place) -> Name {
        name_of(place, self.life(place))
    }

    /// A node that is dead (false) or stopped (true).
    pub(crate) fn silent(&self) -> Option<(Place, bool)> {
        let silent = self.members.iter().position(|member| !member.alive || member.frozen)?;
        Some((silent, self.members.get(silent).is_some_and(|member| member.frozen)))
    }

    /// What was done so far, a line each.
    pub(crate) fn told(&self) -> String {
        self.done.join(", ")
    }

    async fn add(&mut self) -> Result<()> {
        let server = Server::start(self.version, self.options()?).await?;
        let (connection, id) = login(&server).await?;
        let place = self.members.len();
        self.members.push(Member { server, connection, id, lives: 0, alive: true, frozen: false });
        self.begin_life(place, id);
        self.start_model(place)
    }

    fn options(&self) -> Result<Options> {
        let acl = users_acl(self.version, &[], &BTreeMap::new())?.text;
        Ok(Options { acl: Some(acl), ..Options::default() })
    }

    fn begin_life(&mut self, place: Place, id: NodeId) {
        let lives = self.members.get(place).map_or(0, |member| member.lives);
        self.names.insert(id, name_of(place, lives));
        self.ids.insert((place, lives), id);
    }

    fn start_model(&mut self, place: Place) -> Result<()> {
        let now = self.catch_up();
        let member = self.members.get(place).context("no such node")?;
        let home = Home {
            pod: format!("node {place}"),
            pod_uid: member.id.to_string(),
            cluster: "c".to_owned(),
            machine: "m".to_owned(),
            ip: member.server.ip,
        };
        self.model.ordain(member.id);
        let id = self.model.start(home, Login { users_acl: "".into(), repl: "".into() }, now);
        ensure!(id == member.id, "the model calls it {id}");
        Ok(())
    }

    /// Moves the model on to this moment.
    fn catch_up(&mut self) -> Ms {
        let now = START + Ms::try_from(self.began.elapsed().as_millis()).unwrap_or(Ms::MAX);
        while self.stepped + STEP <= now {
            self.stepped += STEP;
            self.model.step(self.stepped);
        }
        now
    }

    fn member(&self, place: Place) -> Result<&Member> {
        self.members.get(place).with_context(|| format!("there is no node {place}"))
    }

    fn member_mut(&mut self, place: Place) -> Result<&mut Member> {
        self.members.get_mut(place).with_context(|| format!("there is no node {place}"))
    }

    /// Does `op`, which both sides must take.
    pub(crate) async fn does(&mut self, op: Op) -> Result<()> {
        match self.run(op).await? {
            None => Ok(()),
            Some(words) => bail!("{op:?} is refused: {words}"),
        }
    }

    /// Does `op`, which both sides must refuse with words that contain `words`.
    pub(crate) async fn refuses(&mut self, op: Op, words: &str) -> Result<()> {
        let refusal = self.run(op).await?.with_context(|| format!("{op:?} is not refused: {words}"))?;
        ensure!(refusal.contains(words), "{op:?} is refused with {refusal}, not {words}");
        Ok(())
    }

    /// Does `op` to both sides; the words of a refusal, which must be the same.
    pub(crate) async fn run(&mut self, op: Op) -> Result<Option<String>> {
        self.done.push(format!("{op:?}"));
        if op.silences() {
            self.rest = LONG_REST;
        }
        if let Some(place) = op.on() {
            self.member(place)?;
        }
        match op {
            Op::Kill(place) => self.kill(place)?,
            Op::Freeze(place) => self.freeze(place, true)?,
            Op::Thaw(place) => self.freeze(place, false)?,
            Op::Restart(place) => self.restart(place).await?,
            Op::Start => self.add().await?,
            Op::Write(place, slot) => return self.write(place, slot).await,
            _ => return self.command(op).await,
        }
        Ok(None)
    }

    fn kill(&mut self, place: Place) -> Result<()> {
        let now = self.catch_up();
        let member = self.member_mut(place)?;
        ensure!(member.alive, "it is dead already");
        member.server.kill()?;
        member.alive = false;
        let id = member.id;
        self.model.end(id, now);
        Ok(())
    }

    fn freeze(&mut self, place: Place, frozen: bool) -> Result<()> {
        self.catch_up();
        let member = self.member_mut(place)?;
        if frozen {
            member.server.freeze()?;
        } else {
            member.server.thaw()?;
        }
        member.frozen = frozen;
        let id = member.id;
        self.model.freeze(id, frozen);
        Ok(())
    }

    async fn restart(&mut self, place: Place) -> Result<()> {
        if self.member(place)?.alive {
            self.kill(place)?;
        }
        let ip = self.member(place)?.server.ip;
        let server = Server::start_at(self.version, self.options()?, ip).await?;
        let (connection, id) = login(&server).await?;
        let member = self.member_mut(place)?;
        *member = Member { server, connection, id, lives: member.lives + 1, alive: true, frozen: false };
        self.begin_life(place, id);
        self.start_model(place)
    }

    /// A write of a client: taken, or refused with the same first word.
    async fn write(&mut self, place: Place, slot: u16) -> Result<Option<String>> {
        let mut client = self.member(place)?.server.raw(None).await?;
        let stored: redis::RedisResult<()> =
            redis::cmd("SET").arg(key_of(slot)).arg("v").query_async(&mut client).await;
        let refusal = match stored {
            Ok(()) => None,
            Err(error) => Some(error.code().with_context(|| format!("SET: {error}"))?.to_owned()),
        };
        let now = self.catch_up();
        let id = self.member(place)?.id;
        let node = self.model.nodes.get_mut(&id).context("not in the model")?;
        let modelled = if !node.serves(now) {
            Some("CLUSTERDOWN".to_owned())
        } else if !node.own_slots().contains(slot) {
            Some("MOVED".to_owned())
        } else {
            node.stream.keys.insert(slot, 1);
            node.stream.feed(40);
            None
        };
        tokio::time::sleep(REPLICATED).await;
        ensure!(refusal == modelled, "SET: {refusal:?} by a server, {modelled:?} in the model");
        Ok(refusal)
    }

    async fn command(&mut self, op: Op) -> Result<Option<String>> {
        let Some(place) = op.on() else { bail!("{op:?} is no command") };
        let command = self.translate(op)?;
        self.catch_up();
        let member = self.member(place)?;
        let id = member.id;
        let refusal = match send(&member.connection, &command).await {
            Ok(()) => None,
            Err(ValkeyError::Refused { reply, .. }) => Some(plain(&reply)),
            Err(other) => return Err(other).context(format!("{op:?}")),
        };
        let reborn = matches!(op, Op::Reset(_)) && refusal.is_none();
        if reborn {
            let new = member.connection.my_id().await?;
            let member = self.member_mut(place)?;
            (member.id, member.lives) = (new, member.lives + 1);
            self.begin_life(place, new);
            self.model.ordain(new);
        }
        let now = self.catch_up();
        let modelled = self.model.execute(id, &command, now).err().map(|words| plain(&words));
        ensure!(refusal == modelled, "{op:?}: {refusal:?} by a server, {modelled:?} in the model");
        Ok(refusal)
    }

    fn translate(&self, op: Op) -> Result<Command> {
        let id = |place: Place| -> Result<NodeId> { Ok(self.member(place)?.id) };
        Ok(match op {
            Op::Epoch(_, epoch) => Command::SetConfigEpoch(Epoch(epoch)),
            Op::Slots(_, start, end) => Command::AddSlots(vec![range(start, end)]),
            Op::Meet(_, other) => Command::Meet(self.member(other)?.server.ip),
            Op::Replicate(_, primary) => Command::Replicate(id(primary)?),
            Op::Forget(_, other, life) => {
                Command::Forget(*self.ids.get(&(other, life)).context("it never had this life")?)
            }
            Op::Failover(_, kind) => Command::Failover(kind),
            Op::Reset(_) => Command::Reset,
            Op::Migrate(_, start, end, to) => Command::MigrateSlots(vec![range(start, end)], id(to)?),
            other => bail!("{other:?} is no command"),
        })
    }

    /// FORGET of a node in one of its lives on every other one that answers.
    pub(crate) async fn forget(&mut self, whom: Place, life: usize) -> Result<()> {
        let others: Vec<Place> = (0..self.members.len()).filter(|place| *place != whom).collect();
        for place in others {
            let member = self.member(place)?;
            if member.alive && !member.frozen {
                self.does(Op::Forget(place, whom, life)).await?;
            }
        }
        Ok(())
    }

    /// Waits until both sides show the same picture and stay in it.
    pub(crate) async fn agree(&mut self) -> Result<Pictures> {
        self.until("the same picture", |_| true).await
    }

    /// Lets time pass.
    pub(crate) async fn wait(&mut self, time: Duration) {
        self.done.push(format!("{time:?}"));
        tokio::time::sleep(time).await;
    }

    /// Waits until both sides show the same picture, `holds` of it, and they stay in it.
    pub(crate) async fn until(&mut self, what: &str, holds: impl Fn(&Pictures) -> bool) -> Result<Pictures> {
        self.done.push(format!("until {what}"));
        let rest = std::mem::replace(&mut self.rest, REST);
        let start = Instant::now();
        let mut resting: Option<(Instant, Pictures)> = None;
        loop {
            let (server, model) = self.look().await?;
            let differences = differences(&server, &model);
            let same = differences.is_empty() && holds(&server);
            resting = match resting {
                Some((since, before)) if same && before == server => Some((since, before)),
                _ => same.then(|| (Instant::now(), server.clone())),
            };
            if let Some((since, pictures)) = &resting
                && since.elapsed() >= rest
            {
                return Ok(pictures.clone());
            }
            if start.elapsed() > LIMIT + rest {
                let seen = if differences.is_empty() { format!("both: {server:#?}") } else { differences };
                bail!("{what}: not within {LIMIT:?}; last seen:\n{seen}");
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Both sides at this moment: every node that answers.
    async fn look(&mut self) -> Result<(Pictures, Pictures)> {
        let migrations = self.version == Version::V9_1;
        let answering = self.members.iter().enumerate().filter(|(_, member)| member.alive && !member.frozen);
        let asked = answering
            .map(|(place, member)| async move { (place, member.connection.report(migrations).await) });
        let mut server = Pictures::new();
        for (place, report) in futures::future::join_all(asked).await {
            let report = report.with_context(|| format!("node {place} does not answer"))?;
            server.insert(place, Picture::of(&report, &self.names));
        }
        let now = self.catch_up();
        let mut model = Pictures::new();
        for place in server.keys() {
            let id = self.member(*place)?.id;
            let node = self.model.nodes.get(&id).with_context(|| format!("{place} is not in the model"))?;
            let mut picture = Picture::of(&report(node, now), &self.names);
            picture.counts = node.stream.fed;
            model.insert(*place, picture);
        }
        let stopped = self.members.iter().enumerate().filter(|(_, member)| member.frozen);
        let stopped: Vec<Name> = stopped.map(|(place, member)| name_of(place, member.lives)).collect();
        for picture in server.values_mut().chain(model.values_mut()) {
            if self.by_chance {
                picture.forget_order();
            }
            picture.forget_links(&stopped);
        }
        Ok((server, model))
    }
}

/// The name of a node in one of its lives.
fn name_of(place: Place, life: usize) -> Name {
    format!("{place}{}", "'".repeat(life))
}

async fn login(server: &Server) -> Result<(Connection, NodeId)> {
    // With many servers that start at once, a young one may drop its first connection.
    eventually("the server lets us in", Duration::from_secs(10), || async {
        let connection = server.operator().await.map_err(|error| format!("{error:#}"))?;
        let id = connection.my_id().await.map_err(|error| error.to_string())?;
        Ok((connection, id))
    })
    .await
}

fn differences(server: &Pictures, model: &Pictures) -> String {
    let mut found = String::new();
    for (place, picture) in server {
        let Some(modelled) = model.get(place) else { continue };
        for difference in picture.differences(modelled) {
            found.extend(["node ", &place.to_string(), " ", &difference, "\n"]);
        }
    }
    found
}
