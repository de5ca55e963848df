//! What the local Kubernetes should be like. Remembered while it is up: what `up` is not told stays as it is.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use crate::paths::Paths;
use crate::settings::MAX_NODES;

/// Command-line options of `up`.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct UpOptions {
    /// Number of nodes; zones zone-a, zone-b, zone-c in turn [default: 3]
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=i64::from(MAX_NODES)))]
    nodes: Option<u8>,
    /// How soon an edited ConfigMap or Secret reaches the files in a pod [default: fast]
    #[arg(long, value_enum)]
    propagation: Option<Propagation>,
    /// When a silent node counts as lost, such as 8s; "default" is Kubernetes' own [default: default]
    #[arg(long, value_parser = parse_grace)]
    node_monitor_grace: Option<Grace>,
    /// Whose API requests are logged [default: operator]
    #[arg(long, value_enum)]
    audit: Option<Audit>,
}

/// Speed at which kubelets bring `ConfigMaps` and Secrets into pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Propagation {
    /// In one to two seconds, or a little more on a busy machine
    Fast,
    /// Within 90 seconds, as Kubernetes does unless configured
    Default,
}

/// Whose API requests go to the audit log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Audit {
    /// The operator's, told by its namespace valkey-operator
    Operator,
    /// Nobody's
    None,
}

/// When the controller manager counts a silent node as lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Grace {
    /// Kubernetes' own default.
    Default,
    /// So many seconds; at least 4.
    Seconds(u32),
}

/// All options, settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Options {
    /// Number of nodes.
    pub(crate) nodes: u8,
    /// Speed of `ConfigMaps` and Secrets.
    pub(crate) propagation: Propagation,
    /// Patience with silent nodes.
    pub(crate) grace: Grace,
    /// Whose API requests are logged.
    pub(crate) audit: Audit,
}

impl Default for Options {
    fn default() -> Self {
        Self { nodes: 3, propagation: Propagation::Fast, grace: Grace::Default, audit: Audit::Operator }
    }
}

impl Options {
    /// These options, changed by what the command line says.
    pub(crate) fn with(self, asked: &UpOptions) -> Self {
        Self {
            nodes: asked.nodes.unwrap_or(self.nodes),
            propagation: asked.propagation.unwrap_or(self.propagation),
            grace: asked.node_monitor_grace.unwrap_or(self.grace),
            audit: asked.audit.unwrap_or(self.audit),
        }
    }

    /// The options of the cluster that is up, or `None` when none should be.
    pub(crate) fn saved(paths: &Paths) -> Result<Option<Self>> {
        let path = file(paths);
        if !path.exists() {
            return Ok(None);
        }
        let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        let value = serde_json::from_str(&text).with_context(|| format!("parse {}", path.display()))?;
        Ok(Some(Self::from_json(&value)))
    }

    /// Remembers that a cluster like this should be up.
    pub(crate) fn save(self, paths: &Paths) -> Result<()> {
        let path = file(paths);
        let new = path.with_extension("new");
        fs::write(&new, format!("{:#}\n", self.to_json())).context("write the options")?;
        fs::rename(&new, &path).with_context(|| format!("write {}", path.display()))
    }

    /// Remembers that no cluster should be up.
    pub(crate) fn forget(paths: &Paths) -> Result<()> {
        match fs::remove_file(file(paths)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(error).context("forget the options")
            }
            _ => Ok(()),
        }
    }

    fn to_json(self) -> Value {
        let grace = match self.grace {
            Grace::Default => Value::Null,
            Grace::Seconds(seconds) => json!(seconds),
        };
        json!({
            "nodes": self.nodes,
            "propagationFast": self.propagation == Propagation::Fast,
            "nodeMonitorGraceSeconds": grace,
            "auditOperator": self.audit == Audit::Operator,
        })
    }

    /// What is missing or unreadable (written by an older version) is the default.
    fn from_json(value: &Value) -> Self {
        let default = Self::default();
        let number = |name: &str| value.get(name).and_then(Value::as_u64);
        let flag = |name: &str| value.get(name).and_then(Value::as_bool);
        Self {
            nodes: number("nodes").and_then(|n| u8::try_from(n).ok()).unwrap_or(default.nodes),
            propagation: match flag("propagationFast") {
                Some(false) => Propagation::Default,
                _ => Propagation::Fast,
            },
            grace: number("nodeMonitorGraceSeconds")
                .and_then(|n| u32::try_from(n).ok())
                .map_or(Grace::Default, Grace::Seconds),
            audit: match flag("auditOperator") {
                Some(false) => Audit::None,
                _ => Audit::Operator,
            },
        }
    }
}

fn file(paths: &Paths) -> PathBuf {
    paths.state().join("options.json")
}

fn parse_grace(text: &str) -> Result<Grace, String> {
    if text == "default" {
        return Ok(Grace::Default);
    }
    let seconds = text.strip_suffix('s').unwrap_or(text).parse::<u32>();
    match seconds {
        Ok(seconds) if seconds >= 4 => Ok(Grace::Seconds(seconds)),
        _ => Err("seconds, at least 4, such as 8s; or: default".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_survive_being_saved() {
        let options = Options {
            nodes: 5,
            propagation: Propagation::Default,
            grace: Grace::Seconds(8),
            audit: Audit::None,
        };
        assert_eq!(Options::from_json(&options.to_json()), options);
        assert_eq!(Options::from_json(&Options::default().to_json()), Options::default());
    }

    #[test]
    fn what_is_not_asked_for_stays_as_it_is() {
        let running = Options { nodes: 5, ..Options::default() };
        let asked = UpOptions { propagation: Some(Propagation::Default), ..UpOptions::default() };
        assert_eq!(running.with(&asked), Options { propagation: Propagation::Default, ..running });
    }

    #[test]
    fn grace_is_seconds_or_the_default() {
        assert_eq!(parse_grace("8s"), Ok(Grace::Seconds(8)));
        assert_eq!(parse_grace("default"), Ok(Grace::Default));
        assert!(parse_grace("3s").is_err() && parse_grace("1m").is_err());
    }
}
