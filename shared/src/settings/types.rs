//! How each kind of setting is read and shown. A message says only what is allowed; key, value and source are added by
//! the caller. Everything is accepted as text (files and the environment have nothing else), numbers as numbers too.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::api::ZoneSpread;

/// Longest duration that makes sense for any setting.
const MAX_DURATION: Duration = Duration::from_hours(24);

/// A number of bytes, written as `8MiB`, `100kB` or a plain number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

impl ByteSize {
    /// Reads a size: digits and one of B, kB, MB, GB, KiB, MiB, GiB, or no unit for bytes.
    fn parse(text: &str) -> Option<Self> {
        let digits = text.find(|character: char| !character.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let factor: u64 = match unit.trim() {
            "" | "B" => 1,
            "kB" | "KB" => 1000,
            "MB" => 1_000_000,
            "GB" => 1_000_000_000,
            "KiB" => 1 << 10,
            "MiB" => 1 << 20,
            "GiB" => 1 << 30,
            _ => return None,
        };
        number.parse::<u64>().ok()?.checked_mul(factor).map(Self)
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, factor) = [("GiB", 1_u64 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)]
            .into_iter()
            .find(|(_, factor)| self.0 > 0 && self.0.is_multiple_of(*factor))
            .unwrap_or(("", 1));
        write!(f, "{}{unit}", self.0 / factor)
    }
}

impl Serialize for ByteSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A scalar as any layer may write it.
#[derive(Deserialize)]
#[serde(untagged)]
enum Scalar {
    Text(String),
    Number(u64),
    Other(de::IgnoredAny),
}

/// Reads a scalar as text and turns it into a value, or says what is allowed.
fn scalar<'de, D, T>(deserializer: D, allowed: &str, parse: impl Fn(&str) -> Option<T>) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
{
    let text = match Scalar::deserialize(deserializer)? {
        Scalar::Text(text) => text,
        Scalar::Number(number) => number.to_string(),
        Scalar::Other(_) => String::new(),
    };
    parse(&text).ok_or_else(|| de::Error::custom(format!("allowed is {allowed}")))
}

pub(super) fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    scalar(deserializer, "a duration above zero and up to a day, such as 500ms, 30s or 2m", |text| {
        let duration = humantime::parse_duration(text).ok()?;
        (duration > Duration::ZERO && duration <= MAX_DURATION).then_some(duration)
    })
}

pub(super) fn show_duration<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&humantime::format_duration(*duration))
}

pub(super) fn byte_size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ByteSize, D::Error> {
    scalar(deserializer, "a number of bytes above zero, such as 8MiB or 8388608", |text| {
        ByteSize::parse(text).filter(|size| size.0 > 0)
    })
}

pub(super) fn slot_batch<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u16, D::Error> {
    scalar(deserializer, "a number from 1 to 16384", |text| bounded(text, 16_384))
}

pub(super) fn fan_out<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u16, D::Error> {
    scalar(deserializer, "a number from 1 to 1024", |text| bounded(text, 1024))
}

fn bounded(text: &str, most: u16) -> Option<u16> {
    text.parse().ok().filter(|number| (1..=most).contains(number))
}

pub(super) fn address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SocketAddr, D::Error> {
    scalar(deserializer, "an IP address with a port, such as 0.0.0.0:8081 or [::]:8081", |text| {
        text.parse().ok()
    })
}

pub(super) fn zone_spread<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ZoneSpread, D::Error> {
    scalar(deserializer, "bestEffort or required", |text| match text {
        "bestEffort" => Some(ZoneSpread::BestEffort),
        "required" => Some(ZoneSpread::Required),
        _ => None,
    })
}
