//! Numbered values of every data type: how a number is written, and which numbers a key shows.
//!
//! Every write may be sent twice (a client library repeats what it had no answer for) and must mean the same then. A
//! value carries its number and a padding that follows from it, so that a damaged or a foreign value is recognised.

use std::time::Duration;

use redis::{Cmd, RedisError, Value, cmd};

use crate::keys::{Entry, Kind};

/// Life of a value of [`Kind::Fleeting`].
pub const FLEETING: Duration = Duration::from_secs(2);
/// Life of a value of [`Kind::Lasting`], in milliseconds.
const DAY: i64 = 24 * 60 * 60 * 1000;
/// After each so many writes a key with several numbers is trimmed to the latest so many.
const TRIM: u64 = 32;

/// What a key shows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Seen {
    /// The numbers in it; none when there is no key.
    pub numbers: Vec<u64>,
    /// What is wrong with it.
    pub broken: Option<String>,
}

/// The command that writes `number`.
pub fn write(entry: &Entry, number: u64) -> Cmd {
    let key = entry.key.as_str();
    let named = |name: &str| {
        let mut command = cmd(name);
        command.arg(key);
        command
    };
    let value = || value(number, entry.size);
    let mut command;
    match entry.kind {
        Kind::Text => {
            command = named("SET");
            command.arg(value());
        }
        Kind::Lasting => {
            command = named("SET");
            command.arg(value()).arg("PX").arg(DAY);
        }
        Kind::Fleeting => {
            command = named("SET");
            command.arg(value()).arg("PX").arg(FLEETING.as_millis().to_string());
        }
        Kind::Hash => {
            command = named("HSET");
            command.arg("number").arg(number).arg("value").arg(value());
        }
        Kind::List => {
            command = named("RPUSH");
            command.arg(number);
        }
        Kind::Set => {
            command = named("SADD");
            command.arg(number);
        }
        Kind::Sorted => {
            command = named("ZADD");
            command.arg(number).arg(number);
        }
        Kind::Stream => {
            command = named("XADD");
            command.arg("MAXLEN").arg(2 * TRIM).arg("*").arg("number").arg(number);
        }
    }
    command
}

/// The command that takes old numbers away after the write of `number`, when it is time.
pub fn trim(entry: &Entry, number: u64) -> Option<Cmd> {
    if number <= TRIM || !number.is_multiple_of(TRIM) {
        return None;
    }
    let key = entry.key.as_str();
    let mut command;
    match entry.kind {
        Kind::List => {
            command = cmd("LTRIM");
            command.arg(key).arg(-i64::try_from(TRIM).unwrap_or(0)).arg(-1);
        }
        Kind::Set => {
            command = cmd("SREM");
            command.arg(key);
            for old in (number - TRIM).saturating_sub(TRIM)..=(number - TRIM) {
                command.arg(old);
            }
        }
        Kind::Sorted => {
            command = cmd("ZREMRANGEBYSCORE");
            command.arg(key).arg("-inf").arg(number - TRIM);
        }
        _ => return None,
    }
    Some(command)
}

/// The command that reads the key.
pub fn read(entry: &Entry) -> Cmd {
    let mut command;
    match entry.kind {
        Kind::Text | Kind::Lasting | Kind::Fleeting => {
            command = cmd("GET");
            command.arg(&entry.key);
        }
        Kind::Hash => {
            command = cmd("HMGET");
            command.arg(&entry.key).arg("number").arg("value");
        }
        Kind::List => {
            command = cmd("LRANGE");
            command.arg(&entry.key).arg(0).arg(-1);
        }
        Kind::Set => {
            command = cmd("SMEMBERS");
            command.arg(&entry.key);
        }
        Kind::Sorted => {
            command = cmd("ZRANGE");
            command.arg(&entry.key).arg(0).arg(-1);
        }
        Kind::Stream => {
            command = cmd("XRANGE");
            command.arg(&entry.key).arg("-").arg("+");
        }
    }
    command
}

/// The command that tells how long a [`Kind::Lasting`] value has to live; others are not asked.
pub fn read_life(entry: &Entry) -> Option<Cmd> {
    (entry.kind == Kind::Lasting).then(|| {
        let mut command = cmd("PTTL");
        command.arg(&entry.key);
        command
    })
}

/// Whether a reply to [`read_life`] is that of a value that will expire, or of no value.
pub fn life_is_right(millis: i64) -> bool {
    (1..=DAY).contains(&millis) || millis == -2
}

/// What the reply to [`read`] shows.
///
/// # Errors
///
/// The reply is of another type.
pub fn parse(entry: &Entry, reply: Value) -> Result<Seen, RedisError> {
    match entry.kind {
        Kind::Text | Kind::Lasting | Kind::Fleeting => {
            let text: Option<Vec<u8>> = redis::from_redis_value(reply)?;
            Ok(text.map_or_else(Seen::default, |text| single(&text, None, entry.size)))
        }
        Kind::Hash => {
            let (number, text): (Option<u64>, Option<Vec<u8>>) = redis::from_redis_value(reply)?;
            Ok(match (number, text) {
                (None, None) => Seen::default(),
                (Some(number), Some(text)) => single(&text, Some(number), entry.size),
                half => Seen { numbers: vec![], broken: Some(format!("half a hash: {:?}", half.0)) },
            })
        }
        Kind::List | Kind::Set | Kind::Sorted => {
            Ok(Seen { numbers: redis::from_redis_value(reply)?, broken: None })
        }
        Kind::Stream => {
            let items: Vec<(String, (String, u64))> = redis::from_redis_value(reply)?;
            Ok(Seen {
                numbers: items.into_iter().map(|(_id, (_field, number))| number).collect(),
                broken: None,
            })
        }
    }
}

/// `number:aaaa…`, the letter by the number.
fn value(number: u64, size: usize) -> Vec<u8> {
    let mut text = format!("{number}:").into_bytes();
    let letter = b'a' + u8::try_from(number % 26).unwrap_or(0);
    text.resize(text.len() + size, letter);
    text
}

fn single(text: &[u8], stated: Option<u64>, size: usize) -> Seen {
    let head = text.split(|byte| *byte == b':').next().unwrap_or_default();
    let number = std::str::from_utf8(head).ok().and_then(|head| head.parse::<u64>().ok());
    let broken = match number {
        None => Some(format!("{} bytes without a number", text.len())),
        Some(number) if stated.is_some_and(|stated| stated != number) => {
            Some(format!("fields of the writes {stated:?} and {number}"))
        }
        Some(number) if text != value(number, size) => {
            Some(format!("the value of {number} is damaged: {} bytes", text.len()))
        }
        Some(_) => None,
    };
    Seen { numbers: number.into_iter().collect(), broken }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys;

    fn entry(kind: Kind) -> Entry {
        keys::entries(100).into_iter().find(|it| it.kind == kind && it.size < 1000).unwrap()
    }

    #[test]
    fn a_value_is_recognised_and_a_damaged_one_too() {
        let text = entry(Kind::Text);
        let whole = value(7, text.size);
        let seen = parse(&text, Value::BulkString(whole.clone())).unwrap();
        assert_eq!(seen, Seen { numbers: vec![7], broken: None });
        let cut = whole[..whole.len() - 1].to_vec();
        assert!(parse(&text, Value::BulkString(cut)).unwrap().broken.is_some());
        let mut other = whole;
        *other.last_mut().unwrap() = b'?';
        assert!(parse(&text, Value::BulkString(other)).unwrap().broken.is_some());
        assert_eq!(parse(&text, Value::Nil).unwrap(), Seen::default());
    }

    #[test]
    fn a_hash_of_two_writes_is_broken() {
        let hash = entry(Kind::Hash);
        let reply = |number: &str| {
            Value::Array(vec![Value::BulkString(number.into()), Value::BulkString(value(7, 100))])
        };
        assert_eq!(parse(&hash, reply("7")).unwrap().broken, None);
        assert!(parse(&hash, reply("6")).unwrap().broken.is_some());
        assert_eq!(parse(&hash, Value::Array(vec![Value::Nil, Value::Nil])).unwrap(), Seen::default());
    }

    #[test]
    fn a_stream_shows_its_numbers() {
        let item = |id: &str, number: &str| {
            Value::Array(vec![
                Value::BulkString(id.into()),
                Value::Array(vec![Value::BulkString("number".into()), Value::BulkString(number.into())]),
            ])
        };
        let reply = Value::Array(vec![item("1-0", "3"), item("2-0", "4")]);
        assert_eq!(parse(&entry(Kind::Stream), reply).unwrap().numbers, [3, 4]);
    }

    #[test]
    fn trimming_leaves_the_latest() {
        let set = entry(Kind::Set);
        assert!(trim(&set, TRIM).is_none() && trim(&set, 2 * TRIM + 1).is_none());
        let packed = String::from_utf8(trim(&set, 2 * TRIM).unwrap().get_packed_command()).unwrap();
        assert!(packed.contains("\r\n32\r\n") && !packed.contains("\r\n33\r\n"), "{packed}");
        assert!(trim(&entry(Kind::Text), 2 * TRIM).is_none());
    }

    #[test]
    fn a_value_that_lost_its_life_time_is_seen() {
        assert!(life_is_right(1000) && life_is_right(-2));
        assert!(!life_is_right(-1));
    }
}
