//! Why a call to a Valkey node did not give what was asked for.
//!
//! One enum with one question answered per variant: can the command have taken effect? Only after [`LostReply`] is
//! that unknown; the next observation tells.
//!
//! [`LostReply`]: ValkeyError::LostReply

use std::io;
use std::time::Duration;

use super::parse::ParseError;

/// A failed call to one Valkey node. No variant ever carries a password.
#[derive(Debug, thiserror::Error)]
pub enum ValkeyError {
    /// No connection: refused, no route, or closed before the login was over. Nothing was sent but the login.
    #[error("cannot reach {endpoint}")]
    Unreachable {
        /// What was dialled.
        endpoint: String,
        /// The system's reason.
        #[source]
        source: io::Error,
    },
    /// No connection within the limit (TCP, TLS or login). Nothing was sent but the login.
    #[error("no answer from {endpoint} within {limit:?}")]
    Timeout {
        /// What was dialled.
        endpoint: String,
        /// The limit.
        limit: Duration,
    },
    /// The TLS handshake failed: wrong name, unknown authority, expired, or no TLS at all on that port.
    #[error("TLS to {endpoint} for {server_name} failed")]
    TlsRejected {
        /// What was dialled.
        endpoint: String,
        /// The name that the certificate has to cover.
        server_name: String,
        /// The handshake's reason.
        #[source]
        source: io::Error,
    },
    /// The node does not accept our user or password (WRONGPASS, NOAUTH). Not the same as unreachable.
    #[error("{endpoint} rejected the login as {user}: {reply}")]
    AuthRejected {
        /// What was dialled.
        endpoint: String,
        /// As whom.
        user: String,
        /// The server's words.
        reply: String,
    },
    /// Our user may not run the command (NOPERM); it was not executed.
    #[error("{command} not permitted: {reply}")]
    NoPermission {
        /// The command, without arguments.
        command: &'static str,
        /// The server's words.
        reply: String,
    },
    /// The server refused the command; it was not executed.
    #[error("{command} refused: {reply}")]
    Refused {
        /// The command, without arguments.
        command: &'static str,
        /// The server's words, code included: `ERR Unknown node …`.
        reply: String,
    },
    /// The node is loading a data set (LOADING); the command was not executed.
    #[error("{command} refused: the node is loading its data set")]
    Loading {
        /// The command, without arguments.
        command: &'static str,
    },
    /// The command was handed to the connection and no reply came: it may have been executed or not.
    #[error("the reply to {command} was lost: {cause}")]
    LostReply {
        /// The command, without arguments.
        command: &'static str,
        /// What happened instead.
        cause: LostCause,
    },
    /// The reply is not what the protocol promises; the command was executed.
    #[error("unexpected reply to {command}: {problem}")]
    Protocol {
        /// The command, without arguments.
        command: &'static str,
        /// What is wrong with the reply.
        problem: String,
    },
    /// The reply cannot be parsed; the command was executed.
    #[error("unreadable reply to {command}")]
    Unreadable {
        /// The command, without arguments.
        command: &'static str,
        /// What is wrong with it.
        #[source]
        source: ParseError,
    },
}

/// How a reply got lost.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LostCause {
    /// None within the limit.
    #[error("nothing came within {0:?}")]
    TimedOut(Duration),
    /// The connection ended first.
    #[error("the connection ended")]
    Closed,
    /// Reading or writing failed.
    #[error("{0}")]
    Failed(String),
}

impl ValkeyError {
    /// A stable word for metrics, reasons and logs.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Unreachable { .. } => "unreachable",
            Self::Timeout { .. } => "timeout",
            Self::TlsRejected { .. } => "tls_rejected",
            Self::AuthRejected { .. } => "auth_rejected",
            Self::NoPermission { .. } => "no_permission",
            Self::Refused { .. } => "refused",
            Self::Loading { .. } => "loading",
            Self::LostReply { .. } => "lost_reply",
            Self::Protocol { .. } | Self::Unreadable { .. } => "protocol",
        }
    }

    /// Whether a command may have taken effect although no success was reported.
    pub fn outcome_unknown(&self) -> bool {
        matches!(self, Self::LostReply { .. })
    }

    /// The server's words, when it answered at all.
    pub fn reply(&self) -> Option<&str> {
        match self {
            Self::AuthRejected { reply, .. }
            | Self::NoPermission { reply, .. }
            | Self::Refused { reply, .. } => Some(reply),
            _ => None,
        }
    }
}
