//! [`cluster_ctl::ports::Valkey`] with the modelled processes behind it.

use std::io;
use std::time::Duration;

use cluster_ctl::ports::{Check, Command, SendError, Server, Valkey};
use shared::acl::PasswordHash;
use shared::secret::Redacted;
use shared::valkey::error::{LostCause, ValkeyError};
use shared::valkey::report::NodeReport;
use shared::valkey::types::NodeId;

use super::mutants::Mutant;
use super::{Line, Reply};
use crate::clock::Ms;
use crate::faults::Fate;
use crate::world::World;
use crate::world::valkey::network::{Contact, End};
use crate::world::valkey::report::report;

/// `valkeyTimeout` of the operator, milliseconds.
const LIMIT: Ms = 1_000;

/// Valkey processes as one operator process reaches them.
#[derive(Clone)]
pub struct SimValkey {
    line: Line,
}

type Answer<T> = Result<T, ValkeyError>;

impl SimValkey {
    /// Reaches the processes of the world behind `line`.
    pub fn new(line: &Line) -> Self {
        Self { line: line.clone() }
    }

    /// A call to a process: under way, carried out, answered.
    fn call<T: Send + 'static>(
        &self,
        what: String,
        quiet: bool,
        effect: impl FnOnce(&mut World) -> Answer<T> + Send + 'static,
    ) -> Reply<Answer<T>> {
        let reply = Reply::default();
        let (crash_before, crash_after) = self.line.count();
        let mut world = self.line.world();
        if crash_before {
            world.say(&self.line.name, &format!("crashes before: {what}"));
            return reply;
        }
        let World { rates, rng, .. } = &mut *world;
        let fate = rates.valkey(rng);
        let there = 1 + rates.latency(rng, LIMIT / 2);
        let back = 1 + rates.latency(rng, LIMIT / 2);
        let (line, answer) = (self.line.clone(), reply.clone());
        let at = world.now + there;
        world.queue.plan(at, move |world| {
            let result = match fate {
                Fate::Fine => effect(world),
                Fate::RequestLost | Fate::Refused => Err(timed_out()),
                Fate::ReplyLost => effect(world).and(Err(timed_out())),
            };
            if !quiet || result.is_err() {
                let outcome = result.as_ref().err().map_or("ok".to_owned(), ToString::to_string);
                world.say(&line.name, &format!("{what}: {outcome}{}", super::fate_word(fate)));
            }
            world.hear_processes();
            if crash_after {
                world.say(&line.name, &format!("crashes before it hears of: {what}"));
                line.crash_now();
                return;
            }
            let late = matches!(
                result,
                Err(ValkeyError::Timeout { .. }
                    | ValkeyError::LostReply { cause: LostCause::TimedOut(_), .. })
            );
            let at = world.now + if late { LIMIT } else { back };
            world.queue.plan(at, move |_| answer.fill(result));
        });
        reply
    }

    /// Dials, logs in and reads: who answered, and what it said.
    fn ask(&self, server: &Server) -> Reply<Answer<(NodeId, NodeReport)>> {
        let (ip, password) = (server.ip, server.credentials.password.clone());
        let endpoint = format!("{ip}:6379");
        self.call(format!("report {}", server.pod), true, move |world| {
            let id = match world.valkey.network.dial(End::Operator, ip) {
                Contact::Answers(id) => id,
                Contact::Refuses => {
                    let source = io::Error::from(io::ErrorKind::ConnectionRefused);
                    return Err(ValkeyError::Unreachable { endpoint, source });
                }
                Contact::Silent => {
                    return Err(ValkeyError::Timeout { endpoint, limit: Duration::from_secs(1) });
                }
            };
            let Some(node) = world.valkey.nodes.get(&id).filter(|node| !node.frozen) else {
                return Err(ValkeyError::Timeout { endpoint, limit: Duration::from_secs(1) });
            };
            if !node.login.users_acl.contains(PasswordHash::of(&password).as_str()) {
                let (user, reply) = ("_momento_operator".to_owned(), "WRONGPASS".to_owned());
                return Err(ValkeyError::AuthRejected { endpoint, user, reply });
            }
            Ok((id, report(node, world.now)))
        })
    }

    /// What a node said, as this process reads it.
    fn read(&self, server: &Server, report: &mut NodeReport) {
        if let Some(mutant) = self.line.mutant() {
            let formed = self.line.world().formed(cluster_of(&server.pod));
            mutant.read(report, formed);
        }
    }

    fn mutated(&self, command: &Command) -> Command {
        let command = command.clone();
        self.line.mutant().map_or_else(|| command.clone(), |mutant| mutant.send(command.clone()))
    }

    /// A command on the connection to process `id`.
    fn command(&self, server: &Server, id: NodeId, command: Command) -> Reply<Answer<()>> {
        let (ip, pod) = (server.ip, server.pod.clone());
        let (name, tick) = (self.line.name.to_string(), self.line.tick(cluster_of(&pod)));
        self.call(format!("{command:?} on {pod}"), false, move |world| {
            if !world.valkey.nodes.contains_key(&id) {
                return Err(ValkeyError::LostReply { command: "command", cause: LostCause::Closed });
            }
            if world.valkey.network.dial(End::Operator, ip) != Contact::Answers(id) {
                return Err(timed_out());
            }
            world.judge_send(&name, tick, &pod, id, &command);
            if world.valkey.nodes.get(&id).is_some_and(|node| node.frozen) {
                // The kernel took it; the process does it when it continues.
                world.audit.late.push((id, command));
                return Err(timed_out());
            }
            world.judge_command(id, &command);
            let done = world.valkey.execute(id, &command, world.now);
            done.map_err(|reply| ValkeyError::Refused { command: "command", reply })
        })
    }
}

/// The cluster that a Pod's name is made of.
pub fn cluster_of(pod: &str) -> &str {
    pod.rsplit_once('-').map_or(pod, |(cluster, _)| cluster)
}

fn timed_out() -> ValkeyError {
    ValkeyError::LostReply { command: "command", cause: LostCause::TimedOut(Duration::from_secs(1)) }
}

impl Valkey for SimValkey {
    async fn proves(&self, server: &Server, revision: &str) -> Result<bool, ValkeyError> {
        let (id, _) = self.ask(server).await?;
        let revision = revision.to_owned();
        self.call(format!("prove revision of {}", server.pod), true, move |world| {
            let node = world.valkey.nodes.get(&id).ok_or_else(timed_out)?;
            Ok(shared::acl::revision(&node.login.users_acl).as_deref() == Some(revision.as_str()))
        })
        .await
    }

    async fn set_replication_password(
        &self,
        server: &Server,
        password: &Redacted<String>,
    ) -> Result<(), ValkeyError> {
        let (id, _) = self.ask(server).await?;
        let password = password.clone();
        self.call(format!("set replication password of {}", server.pod), false, move |world| {
            let node = world.valkey.nodes.get_mut(&id).ok_or_else(timed_out)?;
            node.login.repl = password.expose().as_str().into();
            Ok(())
        })
        .await
    }

    async fn report(&self, server: &Server) -> Result<NodeReport, ValkeyError> {
        let (_, mut report) = self.ask(server).await?;
        self.read(server, &mut report);
        Ok(report)
    }

    async fn send(&self, server: &Server, check: &Check<'_>, command: &Command) -> Result<(), SendError> {
        let (id, mut report) = self.ask(server).await?;
        self.read(server, &mut report);
        check(&report).map_err(SendError::Precondition)?;
        let done = self.command(server, id, self.mutated(command)).await;
        if self.line.mutant() == Some(Mutant::ForceTwice) && matches!(command, Command::Failover(_)) {
            return Ok(self.command(server, id, command.clone()).await?);
        }
        Ok(done?)
    }
}
