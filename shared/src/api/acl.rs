//! ACL bindings: the users of a cluster, as configs and clusters write them. Rendering is in [`crate::acl`].

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A Valkey user and what it may do.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = super::schema::strict)]
pub struct AclBinding {
    /// Name of the user. The name "default" configures Valkey's default user, which is off as soon as there is any
    /// binding. Names that start with "_momento_" are reserved for the operator.
    #[schemars(length(min = 1, max = 128), regex(pattern = "^[a-zA-Z0-9_-]+$"))]
    #[x_kube(validation = Rule::new("!self.startsWith('_momento_')")
        .message("usernames that start with _momento_ are reserved for the operator"))]
    pub username: String,

    /// SHA-256 of each accepted password: 64 lowercase hex digits, without "#". Several allow a change of password
    /// without an interruption.
    #[schemars(length(min = 1, max = 8), inner(regex(pattern = "^[0-9a-f]{64}$")))]
    pub password_hashes: Vec<String>,

    /// What the user may do. A command is allowed if one permission allows it with all the keys and channels it uses.
    #[schemars(length(min = 1, max = 16))]
    pub permissions: Vec<Permission>,
}

/// A role, together with the keys and channels on which it is granted.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = super::schema::strict)]
pub struct Permission {
    /// Name of the ValkeyRole with the commands.
    #[schemars(length(min = 1, max = 253), regex(pattern = "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"))]
    pub role_ref: String,

    /// Keys that the commands may touch. An empty list: none.
    #[schemars(length(max = 16))]
    pub keys: Vec<KeyPattern>,

    /// Glob patterns of pub/sub channels, without "&". Unset or empty: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 16),
        inner(
            length(min = 1, max = 128),
            regex(pattern = r#"^[^\x00-\x20\x7F-\x9F"'&]*[^\x00-\x20\x7F-\x9F"'&)]$"#)
        )
    )]
    pub channels: Vec<String>,
}

/// Keys by glob pattern, and how they may be used.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = super::schema::strict)]
pub struct KeyPattern {
    /// Glob pattern of key names, without "~", for example "app:*". No spaces, quotes or control characters; it may
    /// not end in ")".
    #[schemars(
        length(min = 1, max = 256),
        regex(pattern = r#"^[^\x00-\x20\x7F-\x9F"'~]*[^\x00-\x20\x7F-\x9F"'~)]$"#)
    )]
    pub pattern: String,

    /// "read", "write" or "readwrite".
    #[serde(default)]
    pub access: KeyAccess,
}

/// How keys may be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum KeyAccess {
    /// Commands that read the key's value.
    Read,
    /// Commands that write it.
    Write,
    /// Both.
    #[default]
    ReadWrite,
}
