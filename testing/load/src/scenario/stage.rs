//! A cluster under load on which operations and faults are played, one after the other.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use test_e2e::objects::text;
use test_e2e::{Deployed, Kind, Probe, Scene, eventually};

use super::actions::Actions;
use super::members::{self, Member};
use super::order::{Order, Rules};
use crate::interruptions::{self, OPERATOR, Window};
use crate::ledger::Verdict;
use crate::report::{self, Results, Row, Settled};
use crate::resolve::{Names, Seeds};
use crate::run::{Load, Options};

/// Where the local Kubernetes resolves names.
const DNS: &str = "10.86.0.1:53";
/// How long nodes may take to agree after the status says that all is well.
const AGREED_WITHIN: Duration = Duration::from_secs(20);
/// Rest before an operation, so that what clients see before it is ordinary.
const REST: Duration = Duration::from_secs(3);

/// A cluster under load.
pub struct Stage<'a> {
    /// Where it plays.
    pub scene: &'a Scene,
    /// The cluster.
    pub cluster: Deployed<'a>,
    /// Its clients.
    pub load: Load,
    /// Every operation so far.
    pub rows: Vec<Row>,
    scenario: String,
    _actions: Actions,
    order: Order,
}

/// An operation that has begun.
pub struct Operation {
    name: String,
    from: Duration,
    fault: bool,
}

/// Sets the menu of a scene to what a cluster under load needs: memory for data, no limit of CPU.
///
/// # Errors
///
/// The API server refuses it.
pub async fn roomy(scene: &Scene) -> Result<()> {
    scene.menu(Kind::CONFIG, &scene.name, config(&scene.name, &json!({}))).await
}

/// The spec of a config with further fields.
pub fn config(image: &str, fields: &Value) -> Value {
    let mut spec = json!({ "imageRef": image, "resources": { "memory": "768Mi" } });
    test_e2e::objects::merge(&mut spec, fields);
    spec
}

impl<'a> Stage<'a> {
    /// Makes a cluster, waits until it is settled, and puts it under load.
    ///
    /// # Errors
    ///
    /// It does not settle, or does not take the first writes.
    pub async fn open(
        scene: &'a Scene,
        scenario: &str,
        shards: usize,
        replicas: usize,
        options: &Options,
    ) -> Result<Self> {
        roomy(scene).await?;
        let cluster = scene.blueprint(scenario, shards, replicas).create().await?;
        cluster.settled(Duration::from_mins(2)).await?;
        Self::over(scene, scenario, cluster, None, options).await
    }

    /// Puts a cluster that is settled under load, by TLS if there are authorities to trust.
    ///
    /// # Errors
    ///
    /// It does not take the first writes.
    pub async fn over(
        scene: &'a Scene,
        scenario: &str,
        cluster: Deployed<'a>,
        authorities: Option<String>,
        options: &Options,
    ) -> Result<Self> {
        let server: SocketAddr = std::env::var("VALKEY_OPERATOR_DNS")
            .unwrap_or_else(|_| DNS.to_owned())
            .parse()
            .context("VALKEY_OPERATOR_DNS is no address with a port")?;
        let name = shared::names::service_host(&cluster.name, &scene.name);
        let login = cluster.login.clone();
        let seeds = Seeds::Name { names: Names::of(server)?, name, port: 6379, authorities, login };
        let load = Load::start(&seeds, options).await?;
        let kubeconfig = scene.cluster.kubeconfig.clone();
        let recorder = load.recorder.clone();
        let actions = Actions::follow(scene.operator.clone(), kubeconfig, scene.name.clone(), recorder);
        let order = Order::watch(scene.objects.clone(), load.nodes.clone(), cluster.selector());
        tokio::time::sleep(REST).await;
        Ok(Self {
            scene,
            cluster,
            load,
            rows: Vec::new(),
            scenario: scenario.to_owned(),
            _actions: actions,
            order,
        })
    }

    /// The members as they are now.
    ///
    /// # Errors
    ///
    /// The API server does not answer.
    pub async fn members(&self) -> Result<Vec<Member>> {
        members::look(&self.scene.objects, &self.load.nodes, &self.cluster.selector()).await
    }

    /// The primaries that own slots, by shard.
    ///
    /// # Errors
    ///
    /// The API server does not answer.
    pub async fn primaries(&self) -> Result<Vec<Member>> {
        let mut primaries: Vec<Member> =
            self.members().await?.into_iter().filter(Member::owns_slots).collect();
        primaries.sort_by_key(|member| member.shard);
        Ok(primaries)
    }

    /// A planned operation begins; `rules` must hold until it ends.
    pub fn begin(&self, name: &str, rules: Rules) -> Operation {
        self.order.set(Some(rules));
        self.load.recorder.mark(name);
        Operation { name: name.to_owned(), from: self.load.recorder.now(), fault: false }
    }

    /// A fault begins.
    pub fn fault(&self, name: &str) -> Operation {
        self.order.set(None);
        self.load.recorder.mark(name);
        Operation { name: name.to_owned(), from: self.load.recorder.now(), fault: true }
    }

    /// Waits until the cluster is as specified, has a look at all data, and adds a row. That it does not settle is in
    /// the row and no error.
    ///
    /// # Errors
    ///
    /// None but those of an environment that is gone.
    pub async fn end(&mut self, operation: Operation, limit: Duration, note: &str) -> Result<&Row> {
        let outcome = self.await_whole(&operation, limit).await;
        let settled_at = self.load.recorder.now();
        let (outcome_of, told) = match outcome {
            Ok(at) => (Settled::After(seconds(at.saturating_sub(operation.from))), note.to_owned()),
            Err(error) => (Settled::No, format!("{note} {error:#}")),
        };
        self.add(operation, settled_at, outcome_of, told).await
    }

    /// When the cluster was as specified. After a fault the status may say so for a moment longer, because nobody has
    /// noticed yet: then the nodes are asked first.
    async fn await_whole(&self, operation: &Operation, limit: Duration) -> Result<Duration> {
        if operation.fault {
            self.cluster.whole(limit).await?;
            self.cluster.settled(limit).await?;
            return Ok(self.load.recorder.now());
        }
        self.cluster.settled(limit).await?;
        let at = self.load.recorder.now();
        self.cluster.whole(AGREED_WITHIN).await?;
        Ok(at)
    }

    /// Ends an operation after which the cluster is held on purpose, not as specified.
    ///
    /// # Errors
    ///
    /// None but those of an environment that is gone.
    pub async fn end_held(&mut self, operation: Operation, note: &str) -> Result<&Row> {
        let now = self.load.recorder.now();
        self.add(operation, now, Settled::Held, note.to_owned()).await
    }

    /// Waits until the operator has taken an action of this kind since `operation` began.
    ///
    /// # Errors
    ///
    /// It has not within `limit`.
    pub async fn until_action(&self, operation: &Operation, kind: &str, limit: Duration) -> Result<()> {
        let words = format!("{OPERATOR}{kind} ");
        eventually(&format!("the action {kind}"), limit, || async {
            let seen = self.load.recorder.with(|record| {
                let marks = record.marks.iter().filter(|mark| mark.at >= operation.from);
                marks
                    .map(|mark| mark.text.clone())
                    .filter(|text| text.starts_with(OPERATOR))
                    .collect::<Vec<_>>()
            });
            let found = seen.iter().any(|text| text.starts_with(&words));
            Ok(Probe::of(found, format!("{} actions, the last {:?}", seen.len(), seen.last())))
        })
        .await
    }

    async fn add(
        &mut self,
        operation: Operation,
        to: Duration,
        settled: Settled,
        note: String,
    ) -> Result<&Row> {
        let Operation { name, from, fault } = operation;
        // What began before the end is to be seen whole.
        tokio::time::sleep(Duration::from_millis(500)).await;
        let (order, samples) = self.order.findings();
        self.order.set(None);
        let end = to + Duration::from_millis(300);
        let window: Window = self.load.recorder.with(|record| interruptions::window(record, from, end));
        let looked = Instant::now();
        let verdict: Verdict = self.load.verify().await;
        let looked = looked.elapsed();
        let writable_s = fault.then(|| seconds(Duration::from_millis(window.slot_ms)));
        let row = Row { name, settled, writable_s, window, verdict, order, note };
        test_e2e::say(report::table(std::slice::from_ref(&row)).lines().last().unwrap_or_default());
        test_e2e::say(&format!(
            "    {:.1} s looked at {} keys in {looked:.1?}, {samples} samples of the order, slot interruptions {:?}, application {:?}",
            self.load.recorder.now().as_secs_f64(),
            row.verdict.keys,
            row.window.interruptions_ms,
            row.window.application_interruptions_ms,
        ));
        for (kind, stalls) in &row.window.steps_ms {
            test_e2e::say(&format!("    {kind}: slot stalls {stalls:?}"));
        }
        let gaps = row.window.gaps_ms.iter();
        let gaps: Vec<String> = gaps.map(|(kinds, gaps)| format!("{kinds} {}", median(gaps))).collect();
        test_e2e::say(&format!("    from step to step, median ms: {}", gaps.join(", ")));
        for example in row.verdict.examples.iter().take(5) {
            test_e2e::say(&format!("    {example}"));
        }
        self.rows.push(row);
        tokio::time::sleep(REST).await;
        self.rows.last().context("a row that was just added")
    }

    /// Stops the load; table, JSON and picture go to `folder`.
    ///
    /// # Errors
    ///
    /// They cannot be written.
    pub async fn close(self, folder: Option<&PathBuf>) -> Result<Vec<Row>> {
        let mut record = self.load.stop().await?;
        record.marks.sort_by_key(|mark| mark.at);
        test_e2e::say(&format!("\n{}", report::table(&self.rows)));
        for noticed in record.noticed.iter().take(5) {
            test_e2e::say(&format!("noticed at {:.2} s: {}", noticed.at.as_secs_f64(), noticed.text));
        }
        if let Some(folder) = folder {
            let results = Results { scenario: &self.scenario, rows: &self.rows, record: &record };
            report::save(folder, &results)?;
            test_e2e::say(&format!("results in {}/{}.*", folder.display(), self.scenario));
        }
        Ok(self.rows)
    }

    /// Waits until something planned has begun: an edit of the menu changes no generation of the cluster.
    ///
    /// # Errors
    ///
    /// Nothing begins within 30 s.
    pub async fn progressing(&self) -> Result<()> {
        let begun = |object: &Value| test_e2e::objects::condition_is(object, "Progressing", "True");
        self.cluster.until("to begin", Duration::from_secs(30), begun).await.map(drop)
    }

    /// Waits until `reason` is the reason of the condition Progressing.
    ///
    /// # Errors
    ///
    /// It is not within `limit`.
    pub async fn until_reason(&self, reason: &str, limit: Duration) -> Result<()> {
        let is = |object: &Value| {
            test_e2e::objects::condition(object, "Progressing")
                .is_some_and(|it| text(it, "/reason") == reason)
        };
        self.cluster.until(&format!("to say {reason}"), limit, is).await.map(drop)
    }
}

fn median(values: &[u64]) -> u64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
}

fn seconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1000.0).round() / 1000.0
}
