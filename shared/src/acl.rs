//! Renders users.acl: who may log in to a cluster's nodes and what they may do. Pure and deterministic.
//!
//! Owns the text of the file and its revision. What cannot be expressed without doubt is an error, never a guess: one
//! bad line makes a running server refuse the whole file and a starting one exit. The file has no comment lines (they
//! are fatal too) and the system users come last, so that no binding can override them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};

use sha2::{Digest, Sha256};

use crate::api::{Access, AclBinding, KeyAccess, KeyPattern, Permission, ValkeyRoleSpec};
use crate::names;
use crate::secret::Redacted;
use crate::valkey::EngineVersion;

pub mod refusal;
#[cfg(test)]
mod tests;

/// Largest users.acl in bytes; a ConfigMap holds 1 MiB and may keep a second copy out of place of the first.
pub const MAX_BYTES: usize = 900 * 1024;

/// User names with this prefix are the operator's.
const RESERVED_PREFIX: &str = "_momento_";

/// Commands that the operator sends to every engine; `shared::valkey::commands` is the list they come from.
const OPERATOR_COMMANDS: &str = "+ping +info +acl|load +config|set +cluster|nodes +cluster|info +cluster|shards \
     +cluster|myid +cluster|meet +cluster|addslotsrange +cluster|replicate +cluster|forget +cluster|failover +cluster|reset \
     +cluster|set-config-epoch";

/// Those that exist since 9.0. An unknown subcommand is fatal at the start of an older engine.
const OPERATOR_COMMANDS_9: &str =
    "+cluster|migrateslots +cluster|getslotmigrations +cluster|cancelslotmigrations";

/// What a replica needs on its primary.
const REPL_COMMANDS: &str = "+psync +replconf +ping";

/// What the source of a slot migration needs on the target, which runs the replicated data commands under this user
/// (measured on 9.1.2 with every data type under load). What no migration link carries is taken out again.
const REPL_COMMANDS_9: &str = "~* +cluster|syncslots +select +@write +pfcount -flushall -flushdb -swapdb -migrate \
     -function -pfdebug";

/// SHA-256 of a password, as an ACL file carries it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct PasswordHash(String);

impl PasswordHash {
    /// The hash of `password`.
    pub fn of(password: &Redacted<String>) -> Self {
        Self(sha256_hex(password.expose().as_bytes()))
    }

    /// 64 lower-case hexadecimal digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// All that users.acl depends on.
#[derive(Debug, Clone)]
pub struct AclInput<'a> {
    /// Bindings of the resolved config.
    pub config: &'a [AclBinding],
    /// Bindings of the cluster.
    pub cluster: &'a [AclBinding],
    /// Known roles by name.
    pub roles: &'a BTreeMap<String, ValkeyRoleSpec>,
    /// Accepted passwords of the operator's user; two while they are rotated.
    pub operator_passwords: &'a [PasswordHash],
    /// Accepted passwords of the replication user; two while they are rotated.
    pub repl_passwords: &'a [PasswordHash],
    /// The lowest engine version that will load the file.
    pub engine: EngineVersion,
}

/// A rendered users.acl.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AclFile {
    /// The file, ending in a newline.
    pub text: String,
    /// SHA-256 of all lines but the last, 64 lower-case hexadecimal digits. The last line carries it.
    pub revision: String,
}

/// Why no users.acl can be rendered. The texts are what status, condition, event and log say.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AclError {
    /// A user name is bound twice, in one list or across both.
    #[error("duplicate username \"{username}\" in merged ACL bindings")]
    DuplicateUsername {
        /// The name.
        username: String,
    },
    /// A permission names a role that does not exist.
    #[error("ValkeyRole \"{role}\" not found (referenced by user \"{username}\")")]
    RoleNotFound {
        /// The role.
        role: String,
        /// The user.
        username: String,
    },
    /// A value that admission should have refused.
    #[error("{what} {value:?} of user {username:?} cannot be expressed safely: {problem}")]
    Unsafe {
        /// The user, as written.
        username: String,
        /// Which value.
        what: Item,
        /// The value, cut to 80 characters.
        value: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// A system user would have no password.
    #[error("no password for system user {username}")]
    NoSystemPassword {
        /// The user.
        username: &'static str,
    },
    /// The file would not fit its ConfigMap.
    #[error(
        "ACL too large: {bytes} bytes, at most {MAX_BYTES} are possible; bind fewer users or shorter roles"
    )]
    TooLarge {
        /// Size of the file.
        bytes: usize,
    },
}

/// What a value of a binding or role is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Item {
    /// A user name.
    Username,
    /// A password hash.
    PasswordHash,
    /// A key pattern.
    KeyPattern,
    /// A channel pattern.
    Channel,
    /// A command category.
    Category,
    /// A command or subcommand.
    Command,
}

impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Username => "username",
            Self::PasswordHash => "password hash",
            Self::KeyPattern => "key pattern",
            Self::Channel => "channel",
            Self::Category => "category",
            Self::Command => "command",
        })
    }
}

/// Renders users.acl.
///
/// # Errors
/// The first problem in the order duplicate names, then line by line. Nothing is rendered in part.
pub fn render(input: &AclInput<'_>) -> Result<AclFile, AclError> {
    let bindings: Vec<&AclBinding> = input.config.iter().chain(input.cluster).collect();
    let mut seen = BTreeSet::new();
    for binding in &bindings {
        if !seen.insert(binding.username.as_str()) {
            return Err(AclError::DuplicateUsername { username: binding.username.clone() });
        }
    }
    let mut text = String::new();
    if bindings.is_empty() {
        text.push_str("user default on nopass ~* &* +@all\n");
    } else if !seen.contains("default") {
        // Without a line of its own the default user would stay open to everyone.
        text.push_str("user default off resetpass resetchannels resetkeys -@all\n");
    }
    for binding in bindings {
        push_line(&mut text, &user_line(binding, input.roles)?);
    }
    let newer = input.engine.migrates_slots();
    let since_9 = |commands| if newer { commands } else { "" };
    let operator = [OPERATOR_COMMANDS, since_9(OPERATOR_COMMANDS_9)];
    push_line(&mut text, &system_line(names::USER_OPERATOR, input.operator_passwords, operator)?);
    let repl = [REPL_COMMANDS, since_9(REPL_COMMANDS_9)];
    push_line(&mut text, &system_line(names::USER_REPL, input.repl_passwords, repl)?);
    let revision = sha256_hex(text.as_bytes());
    push_line(&mut text, &marker_line(&revision));
    if text.len() > MAX_BYTES {
        return Err(AclError::TooLarge { bytes: text.len() });
    }
    Ok(AclFile { text, revision })
}

/// The revision of a rendered file, or `None` when its last line is not the marker of its other lines: then it is not
/// what [`render`] made.
pub fn revision(text: &str) -> Option<String> {
    let body_end = text.strip_suffix('\n')?.rfind('\n')? + 1;
    let (body, last) = text.split_at_checked(body_end)?;
    let revision = sha256_hex(body.as_bytes());
    (last.strip_suffix('\n')? == marker_line(&revision)).then_some(revision)
}

/// A user that may do nothing but log in with the revision: a successful login proves which file the node runs.
fn marker_line(revision: &str) -> String {
    let hash = sha256_hex(revision.as_bytes());
    format!("user {} on resetkeys resetchannels -@all #{hash}", names::USER_REVISION)
}

fn push_line(text: &mut String, line: &str) {
    text.push_str(line);
    text.push('\n');
}

fn system_line(
    username: &'static str,
    passwords: &[PasswordHash],
    commands: [&str; 2],
) -> Result<String, AclError> {
    if passwords.is_empty() {
        return Err(AclError::NoSystemPassword { username });
    }
    let mut line = format!("user {username} on resetchannels resetkeys -@all");
    for hash in passwords {
        push_word(&mut line, format_args!("#{}", hash.as_str()));
    }
    for words in commands.iter().filter(|words| !words.is_empty()) {
        push_word(&mut line, format_args!("{words}"));
    }
    Ok(line)
}

fn user_line(binding: &AclBinding, roles: &BTreeMap<String, ValkeyRoleSpec>) -> Result<String, AclError> {
    let username = checked(binding, Item::Username, &binding.username, username_problem)?;
    let mut line = format!("user {username} on resetchannels resetkeys -@all");
    if binding.password_hashes.is_empty() {
        return Err(unsafe_value(binding, Item::PasswordHash, "", "a user needs at least one"));
    }
    for hash in &binding.password_hashes {
        let hash = checked(binding, Item::PasswordHash, hash, hash_problem)?;
        push_word(&mut line, format_args!("#{hash}"));
    }
    for (index, permission) in binding.permissions.iter().enumerate() {
        let words = permission_words(binding, permission, roles)?;
        match index {
            0 if words.is_empty() => {}
            0 => push_word(&mut line, format_args!("{words}")),
            // A selector starts from the server's acl-pubsub-default, which a config may have opened.
            _ => {
                let space = if words.is_empty() { "" } else { " " };
                push_word(&mut line, format_args!("(resetchannels -@all{space}{words})"));
            }
        }
    }
    Ok(line)
}

/// Keys, channels, categories and commands of one permission, in the order written.
fn permission_words(
    binding: &AclBinding,
    permission: &Permission,
    roles: &BTreeMap<String, ValkeyRoleSpec>,
) -> Result<String, AclError> {
    let not_found =
        || AclError::RoleNotFound { role: permission.role_ref.clone(), username: binding.username.clone() };
    let role = roles.get(&permission.role_ref).ok_or_else(not_found)?;
    let mut words = String::new();
    let all_keys = |key: &KeyPattern| key.pattern == "*" && key.access == KeyAccess::ReadWrite;
    // The server refuses any pattern next to one that already covers everything.
    let every_key = permission.keys.iter().any(all_keys);
    for key in &permission.keys {
        let pattern = checked(binding, Item::KeyPattern, &key.pattern, key_problem)?;
        if every_key {
            continue;
        }
        let prefix = match key.access {
            KeyAccess::Read => "%R~",
            KeyAccess::Write => "%W~",
            KeyAccess::ReadWrite => "~",
        };
        push_word(&mut words, format_args!("{prefix}{pattern}"));
    }
    if every_key {
        push_word(&mut words, format_args!("~*"));
    }
    let every_channel = permission.channels.iter().any(|channel| channel == "*");
    for channel in &permission.channels {
        let channel = checked(binding, Item::Channel, channel, channel_problem)?;
        if !every_channel {
            push_word(&mut words, format_args!("&{channel}"));
        }
    }
    if every_channel {
        push_word(&mut words, format_args!("&*"));
    }
    push_role(binding, role, &mut words)?;
    Ok(words)
}

fn push_role(binding: &AclBinding, role: &ValkeyRoleSpec, words: &mut String) -> Result<(), AclError> {
    let sign = |access| match access {
        Access::Allow => '+',
        Access::Deny => '-',
    };
    for category in &role.categories {
        let name = checked(binding, Item::Category, &category.name, word_problem)?;
        push_word(words, format_args!("{}@{name}", sign(category.access)));
    }
    for command in &role.commands {
        let name = checked(binding, Item::Command, &command.name, word_problem)?;
        push_word(words, format_args!("{}{name}", sign(command.access)));
        if let Some(subcommand) = &command.subcommand {
            let subcommand = checked(binding, Item::Command, subcommand, word_problem)?;
            words.push('|');
            words.push_str(subcommand);
        }
    }
    Ok(())
}

/// Appends a word, separated by one space from what is there.
fn push_word(line: &mut String, word: fmt::Arguments<'_>) {
    if !line.is_empty() {
        line.push(' ');
    }
    // Writing to a String cannot fail.
    line.write_fmt(word).unwrap_or_default();
}

fn checked<'a>(
    binding: &AclBinding,
    what: Item,
    value: &'a str,
    problem: impl Fn(&str) -> Option<&'static str>,
) -> Result<&'a str, AclError> {
    match problem(value) {
        None => Ok(value),
        Some(problem) => Err(unsafe_value(binding, what, value, problem)),
    }
}

fn unsafe_value(binding: &AclBinding, what: Item, value: &str, problem: &'static str) -> AclError {
    let cut = |text: &str| text.chars().take(80).collect();
    AclError::Unsafe { username: cut(&binding.username), what, value: cut(value), problem }
}

fn username_problem(name: &str) -> Option<&'static str> {
    let allowed = |char: char| char.is_ascii_alphanumeric() || matches!(char, '_' | '-');
    if name.is_empty() || !name.chars().all(allowed) {
        Some("a name consists of letters, digits, underscores and dashes")
    } else if name.starts_with(RESERVED_PREFIX) {
        Some("names that start with _momento_ are reserved for the operator")
    } else {
        None
    }
}

fn hash_problem(hash: &str) -> Option<&'static str> {
    let digits = hash.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    (hash.len() != 64 || !digits).then_some("a hash is 64 lower-case hexadecimal digits")
}

fn key_problem(pattern: &str) -> Option<&'static str> {
    if pattern.contains('~') { Some("it contains ~") } else { pattern_problem(pattern) }
}

fn channel_problem(pattern: &str) -> Option<&'static str> {
    if pattern.contains('&') { Some("it contains &") } else { pattern_problem(pattern) }
}

/// The server splits a line at white space and quotes, and a word that ends in `)` closes a selector.
fn pattern_problem(pattern: &str) -> Option<&'static str> {
    if pattern.is_empty() {
        Some("it is empty")
    } else if pattern.chars().any(|char| char.is_control() || char.is_whitespace()) {
        Some("it contains a space or control character")
    } else if pattern.contains(['"', '\'']) {
        Some("it contains a quote")
    } else if pattern.ends_with(')') {
        Some("it ends in ), which would close a selector")
    } else {
        None
    }
}

fn word_problem(word: &str) -> Option<&'static str> {
    let allowed = |char: char| char.is_ascii_alphanumeric() || matches!(char, '_' | '-');
    let first = word.chars().next().is_some_and(|char| char.is_ascii_alphabetic());
    (!first || !word.chars().all(allowed))
        .then_some("a command or category consists of letters, digits, underscores and dashes")
}

fn sha256_hex(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}
