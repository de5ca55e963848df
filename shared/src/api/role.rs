//! `ValkeyRole`: a reusable set of commands that ACL bindings grant.

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A named set of allowed and denied commands.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[kube(
    group = "valkey.gomomento.com",
    version = "v1alpha1",
    kind = "ValkeyRole",
    plural = "valkeyroles",
    category = "valkey",
    derive = "PartialEq",
    derive = "Default",
    doc = "ValkeyRole is a reusable set of Valkey commands. Cluster-scoped and owned by the platform team; permissions of ACL bindings grant it with roleRef. Everything starts denied; categories are applied first, then commands, each in the order written.",
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = super::schema::strict)]
pub struct ValkeyRoleSpec {
    /// Command categories, as listed by "ACL CAT", applied in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub categories: Vec<CategoryRule>,

    /// Single commands or subcommands, applied in order after the categories.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub commands: Vec<CommandRule>,
}

/// Allows or denies a category of commands.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = super::schema::strict)]
pub struct CategoryRule {
    /// Category without the "@", for example "read".
    #[schemars(length(min = 1, max = 64), regex(pattern = "^[a-zA-Z][a-zA-Z0-9_-]*$"))]
    pub name: String,

    /// "allow" or "deny".
    pub access: Access,
}

/// Allows or denies a command, or one of its subcommands.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = super::schema::strict)]
pub struct CommandRule {
    /// Command, for example "get" or "config".
    #[schemars(length(min = 1, max = 64), regex(pattern = "^[a-zA-Z][a-zA-Z0-9_-]*$"))]
    pub name: String,

    /// Subcommand, for example "get" for "CONFIG GET". Unset: the command with all its subcommands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64), regex(pattern = "^[a-zA-Z][a-zA-Z0-9_-]*$"))]
    pub subcommand: Option<String>,

    /// "allow" or "deny".
    pub access: Access,
}

/// Whether a rule grants or takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Access {
    /// Grants.
    Allow,
    /// Takes away.
    Deny,
}
