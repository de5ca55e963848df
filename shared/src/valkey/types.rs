//! The words of the cluster protocol as types: ids, epochs, offsets, versions, one line of CLUSTER NODES.
//!
//! Owns their textual form and order. Knows nothing of connections or of Kubernetes.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::slots::SlotSet;

/// A text that is not what its type demands.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not {expected}")]
pub struct InvalidText {
    /// What was expected, with its article.
    pub expected: &'static str,
    /// The text, cut to 80 characters.
    pub text: String,
}

impl InvalidText {
    fn new(expected: &'static str, text: &str) -> Self {
        Self { expected, text: text.chars().take(80).collect() }
    }
}

/// Defines an id of exactly 40 lower-case hexadecimal digits, kept as 20 bytes.
macro_rules! hex_id {
    ($(#[$doc:meta])* $name:ident, $expected:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name([u8; 20]);

        impl FromStr for $name {
            type Err = InvalidText;

            fn from_str(text: &str) -> Result<Self, InvalidText> {
                let mut bytes = [0; 20];
                // hex accepts upper case, the engine never writes it: one id must have one text.
                let lower = text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
                match hex::decode_to_slice(text, &mut bytes) {
                    Ok(()) if lower => Ok(Self(bytes)),
                    _ => Err(InvalidText::new($expected, text)),
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&hex::encode(self.0))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }

        impl $name {
            /// The id made of these bytes; for tests and models that need distinct ids.
            pub const fn from_bytes(bytes: [u8; 20]) -> Self {
                Self(bytes)
            }
        }
    };
}

hex_id! {
    /// Identity of a Valkey node: 40 lower-case hexadecimal digits, drawn by the node at its first start or RESET HARD.
    NodeId, "a node id (40 lower-case hexadecimal digits)"
}

hex_id! {
    /// Identity of a shard: 40 lower-case hexadecimal digits, shared by a primary and its replicas.
    ShardId, "a shard id (40 lower-case hexadecimal digits)"
}

/// A configuration epoch: of two nodes that claim a slot the higher one owns it. 0 means none yet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Epoch(pub u64);

/// A replication offset in bytes; -1 or 0 where nothing was replicated yet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Offset(pub i64);

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Offset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Version of the engine as INFO reports it, for example 9.1.2.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EngineVersion {
    /// Major.
    pub major: u16,
    /// Minor.
    pub minor: u16,
    /// Patch.
    pub patch: u16,
}

impl EngineVersion {
    /// A version from its parts.
    pub const fn new(major: u16, minor: u16, patch: u16) -> Self {
        Self { major, minor, patch }
    }

    /// Whether slots can move in atomic jobs (`CLUSTER MIGRATESLOTS`, since 9.0).
    pub fn migrates_slots(self) -> bool {
        self >= Self::new(9, 0, 0)
    }
}

impl FromStr for EngineVersion {
    type Err = InvalidText;

    /// Reads `9.1.2`, `9.1` (patch 0) and forms with a suffix such as `9.1.2-rc1` or `8.1.1+dfsg1`, whose suffix is
    /// dropped. A leading `v` is accepted, since people write it in image versions.
    fn from_str(text: &str) -> Result<Self, InvalidText> {
        let invalid = || InvalidText::new("an engine version such as 9.1.2", text);
        let bare = text.strip_prefix('v').unwrap_or(text);
        let bare = bare.split(['-', '+', '~']).next().unwrap_or_default();
        let mut parts = bare.split('.').map(|part| {
            // u16 would read "+9" too.
            let digits = part.bytes().all(|byte| byte.is_ascii_digit());
            part.parse::<u16>().ok().filter(|_| digits).ok_or_else(invalid)
        });
        let (Some(major), Some(minor)) = (parts.next(), parts.next()) else { return Err(invalid()) };
        let version = Self { major: major?, minor: minor?, patch: parts.next().transpose()?.unwrap_or(0) };
        if parts.next().is_some() { Err(invalid()) } else { Ok(version) }
    }
}

impl fmt::Display for EngineVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

impl Serialize for EngineVersion {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Where a view says that a node is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct NodeAddress {
    /// IP address as the engine writes it (IPv6 without brackets). Empty while a fresh node does not know its own.
    pub host: String,
    /// Client port; the TLS port when there is no other.
    pub port: u16,
    /// Cluster bus port.
    pub bus_port: u16,
}

impl NodeAddress {
    /// The host as an IP address; `None` when it is empty or a name.
    pub fn ip(&self) -> Option<IpAddr> {
        self.host.parse().ok()
    }
}

/// Flags of a line of CLUSTER NODES. Flags that this list does not know are ignored.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[expect(clippy::struct_excessive_bools, reason = "the engine's flags are independent bits")]
pub struct NodeFlags {
    /// The answering node's own line. Its failure flags are never set on it.
    pub myself: bool,
    /// A primary (the engine writes `master`).
    pub primary: bool,
    /// A replica (the engine writes `slave`).
    pub replica: bool,
    /// `fail`: a majority of primaries agreed that it does not answer.
    pub fail: bool,
    /// `fail?`: the answering node alone does not reach it.
    pub pfail: bool,
    /// Introduced, but not yet known by its real id: the id of this line is random.
    pub handshake: bool,
    /// Its address is unknown.
    pub noaddr: bool,
    /// Will not stand for election.
    pub nofailover: bool,
}

/// A slot in the hands of the classic, key by key migration, which the operator never starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum OpenSlot {
    /// `[slot->-id]`: moving from the answering node to `to`.
    Migrating {
        /// The slot.
        slot: u16,
        /// Where to.
        to: NodeId,
    },
    /// `[slot-<-id]`: moving from `from` to the answering node.
    Importing {
        /// The slot.
        slot: u16,
        /// Where from.
        from: NodeId,
    },
}

/// One line of CLUSTER NODES: what the answering node believes of one member (Valkey 8.1 and 9.1).
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NodeLine {
    /// The member's id; random while `flags.handshake`.
    pub id: NodeId,
    /// Where it is; `None` when unknown (`:0@0`).
    pub address: Option<NodeAddress>,
    /// Announced hostname.
    pub hostname: Option<String>,
    /// Flags.
    pub flags: NodeFlags,
    /// The primary it replicates; `None` for a primary.
    pub primary: Option<NodeId>,
    /// When the currently pending ping was sent, Unix milliseconds of the answering node; 0 when none is pending.
    pub ping_sent: u64,
    /// When the last pong arrived, Unix milliseconds of the answering node; 0 when never (always 0 on its own line). A
    /// [`View`](super::view::View) keeps both times apart from its lines.
    pub pong_recv: u64,
    /// Configuration epoch; a replica shows its primary's.
    pub epoch: Epoch,
    /// Whether the bus link is up.
    pub link_connected: bool,
    /// Slots it serves in this view; empty for a replica.
    pub slots: SlotSet,
    /// Classic migrations, on the answering node's own line only. Atomic jobs leave no mark here.
    pub open_slots: Vec<OpenSlot>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_has_exactly_one_text() {
        let text = "07c37dfeb235213a872192d90877d0cd55635b91";
        assert_eq!(text.parse::<NodeId>().unwrap().to_string(), text);
        for wrong in [
            "",
            "07C37DFEB235213A872192D90877D0CD55635B91",
            &text[1..],
            &format!("{text}0"),
            &text.replace('0', "g"),
        ] {
            assert!(wrong.parse::<NodeId>().is_err(), "{wrong}");
        }
        let json = serde_json::to_string(&text.parse::<NodeId>().unwrap()).unwrap();
        assert_eq!(serde_json::from_str::<NodeId>(&json).unwrap().to_string(), text);
        assert!(serde_json::from_str::<NodeId>("\"x\"").is_err());
    }

    #[test]
    fn versions_are_read_and_ordered_by_number() {
        let version = |text: &str| text.parse::<EngineVersion>();
        assert_eq!(version("9.1.2"), Ok(EngineVersion::new(9, 1, 2)));
        assert_eq!(version("v9.1"), Ok(EngineVersion::new(9, 1, 0)));
        assert_eq!(version("8.1.1+dfsg1-3"), Ok(EngineVersion::new(8, 1, 1)));
        assert!(version("10.0.0").unwrap() > version("9.9.9").unwrap());
        assert!(version("9.0.0").unwrap().migrates_slots() && !version("8.9.9").unwrap().migrates_slots());
        for wrong in ["", "9", "latest", "9.x", "9.1.2.3", "9..1", "+9.1", "99999.1", "9.1.²"] {
            assert!(version(wrong).is_err(), "{wrong}");
        }
    }
}
