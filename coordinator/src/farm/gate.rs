//! How much one agent's token may ask of the coordinator. One token is one agent (`binding`), so these are an agent's
//! limits; they lie far above what a host with 64 devices says. Administrators and the owner have none.

use super::Farm;
use crate::{auth::Proof, rate::Rate};
use planforge_proto::{ApiError, ErrorCode};
use planforge_types::Digest;
use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

/// Streams of one token at once: an agent has one, and may open the next before the last is seen to be dead.
pub const STREAMS_MAX: u32 = 8;
/// Hellos and inventories of one token at once, and how many more each second: both are written down and have waiting
/// jobs placed anew.
pub const DESCRIPTIONS_BURST: u32 = 60;
const DESCRIPTIONS_PER_S: u32 = 1;
/// Messages of one stream at once, and how many more each second; a faster one waits.
const MESSAGES_BURST: u32 = 4_096;
const MESSAGES_PER_S: u32 = 1_024;
/// Refusals that the audit log takes at once, and how many more each second.
const REFUSALS_BURST: u32 = 256;
const REFUSALS_PER_S: u32 = 4;
/// A stream that has not said who it is by then ends.
pub const HELLO_WITHIN_MS: u64 = 10_000;

/// Of the messages of one stream.
pub fn messages() -> Rate {
    Rate::new(MESSAGES_BURST, MESSAGES_PER_S)
}

/// Of the refusals that the audit log takes.
pub fn refusals() -> Rate {
    Rate::new(REFUSALS_BURST, REFUSALS_PER_S)
}

#[derive(Debug)]
struct Counted {
    streams: u32,
    descriptions: Rate,
}

/// By the hash of the token's secret; only tokens that are there get an entry, so there are at most as many.
#[derive(Debug, Default)]
pub(super) struct Gate(Mutex<BTreeMap<Digest, Counted>>);

impl Gate {
    fn with<T>(&self, token: Digest, work: impl FnOnce(&mut Counted) -> T) -> T {
        let fresh = || Counted { streams: 0, descriptions: Rate::new(DESCRIPTIONS_BURST, DESCRIPTIONS_PER_S) };
        work(self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(token).or_insert_with(fresh))
    }
}

/// Counts a stream as long as it lives.
#[derive(Debug)]
pub(super) struct Pass {
    farm: Farm,
    /// `None`: nothing is counted.
    token: Option<Digest>,
}

impl Drop for Pass {
    fn drop(&mut self) {
        if let Some(token) = self.token {
            self.farm.gate().with(token, |counted| counted.streams -= 1);
        }
    }
}

impl Pass {
    /// Lets another stream in.
    pub fn enter(farm: &Farm, proof: Proof) -> Result<Self, ApiError> {
        let token = farm.is_agents_token(proof);
        if let Some(token) = token {
            let fits = farm.gate().with(token, |counted| {
                let fits = counted.streams < STREAMS_MAX;
                counted.streams += u32::from(fits);
                fits
            });
            if !fits {
                let message = format!("the token has {STREAMS_MAX} sessions already, the limit of one agent's token");
                return Err(ApiError::new(ErrorCode::ResourceExhausted, message)
                    .with_hint("every agent has a token of its own: planforge token create NAME --role agent"));
            }
        }
        Ok(Self { farm: farm.clone(), token })
    }

    pub fn is_counted(&self) -> bool {
        self.token.is_some()
    }

    /// Takes a hello or an inventory.
    pub fn describe(&self) -> Result<(), ApiError> {
        let Some(token) = self.token else { return Ok(()) };
        let now_ms = self.farm.clock().mono_ms();
        self.farm.gate().with(token, |counted| counted.descriptions.take(now_ms)).map_err(|wait_ms| {
            let message = format!(
                "the agent said hello or told of its devices too often; the limit is {DESCRIPTIONS_BURST} at once and \
                 {DESCRIPTIONS_PER_S} more each second"
            );
            ApiError::new(ErrorCode::ResourceExhausted, message)
                .with_hint(format!("look why it joins anew again and again; it may in {wait_ms} ms"))
        })
    }
}
