//! What can go wrong with a call, and how often.

use crate::clock::Ms;

/// How often calls go wrong, in per mille.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rates {
    /// An API call is answered with 500 or a spurious conflict, and not done.
    pub api_refused: u32,
    /// An API call gets no answer; it is done or not.
    pub api_lost: u32,
    /// The reply of a Valkey node is lost; the command is carried out or not.
    pub reply_lost: u32,
    /// A reply takes up to nearly the limit.
    pub slow: u32,
}

/// What happens to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is carried out and answered.
    Fine,
    /// It is not carried out, and says so.
    Refused,
    /// It never arrives.
    RequestLost,
    /// It is carried out, but nobody hears of it.
    ReplyLost,
}

impl Rates {
    /// The fate of an API call.
    pub fn api(self, rng: &mut fastrand::Rng) -> Fate {
        let draw = rng.u32(0..1000);
        if draw < self.api_refused {
            Fate::Refused
        } else if draw < self.api_refused + self.api_lost {
            lost(rng)
        } else {
            Fate::Fine
        }
    }

    /// The fate of a call to a Valkey node.
    pub fn valkey(self, rng: &mut fastrand::Rng) -> Fate {
        if rng.u32(0..1000) < self.reply_lost { lost(rng) } else { Fate::Fine }
    }

    /// How long one way takes, at most `limit`.
    pub fn latency(self, rng: &mut fastrand::Rng, limit: Ms) -> Ms {
        if rng.u32(0..1000) < self.slow { rng.i64(0..limit.max(1)) } else { rng.i64(0..4) }
    }
}

fn lost(rng: &mut fastrand::Rng) -> Fate {
    if rng.bool() { Fate::RequestLost } else { Fate::ReplyLost }
}
