//! Who may call, and over what: TLS, tokens, roles, and how much each token may ask for.
//!
//! Without a token file everything is open, as for a server that only its own machine reaches.
//! With one everything is closed, but for what [`Exposure`] leaves open.

pub mod files;
pub mod gate;
pub mod grant;
pub mod handshakes;
pub mod http;
pub mod limits;
pub mod tls;
pub mod tokens;

use std::sync::Arc;

pub use self::gate::{Bearer, Gate};
use self::{
    grant::{Call, Callers, Role},
    tokens::TOKENS_MAX,
};
use crate::{
    config::Exposure,
    donors::scope::{EVERYTHING, Scope},
};

/// Why a caller was turned away. No variant has anything of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("a token is needed: authorization: Bearer TOKEN")]
    NoToken,
    #[error("authorization must be Bearer and a token")]
    NotBearer,
    #[error("the token is not known here")]
    UnknownToken,
    #[error("the token does not count any more, or not for the same: open the stream again")]
    Ended,
    #[error("the token's role, {0}, may not make this call")]
    Role(Role),
    #[error("this call is for operators whose token names all tenants")]
    Scope,
    #[error("namespace: the token may not name it")]
    Namespace,
    #[error("worker_id: the token may not name it")]
    Worker,
    #[error("the token's limit of {calls_per_second_max} calls a second is reached")]
    Rate {
        calls_per_second_max: u32,
        wait_ns: u64,
    },
}

impl Refusal {
    /// Whole seconds until there is room again, at least one; for a refusal that is of its time.
    #[must_use]
    pub fn retry_after_s(&self) -> u64 {
        self.retry_after_ms().div_ceil(1000)
    }

    /// Milliseconds until there is room again, at least one.
    #[must_use]
    pub fn retry_after_ms(&self) -> u64 {
        match self {
            Refusal::Rate { wait_ns, .. } => wait_ns.div_ceil(1_000_000).max(1),
            Refusal::NoToken
            | Refusal::NotBearer
            | Refusal::UnknownToken
            | Refusal::Ended
            | Refusal::Role(_)
            | Refusal::Scope
            | Refusal::Namespace
            | Refusal::Worker => 1,
        }
    }
}

/// How callers are let in. Clones share it.
#[derive(Debug, Clone)]
pub struct Access {
    gate: Option<Arc<Gate>>,
    pub reflection: Exposure,
    pub health: Exposure,
}

/// Under whose token a call is made; nobody's where no tokens are asked for.
#[derive(Debug, Clone, Default)]
pub struct Pass(pub Option<Arc<Bearer>>);

impl Pass {
    /// What the call may name.
    #[must_use]
    pub fn scope(&self) -> &Scope {
        match &self.0 {
            None => &EVERYTHING,
            Some(bearer) => &bearer.grant.scope,
        }
    }

    /// The same, to be taken along.
    #[must_use]
    pub fn scope_shared(&self) -> Arc<Scope> {
        match &self.0 {
            None => Arc::new(EVERYTHING.clone()),
            Some(bearer) => Arc::clone(&bearer.grant.scope),
        }
    }
}

impl Access {
    /// `gate` is there where tokens are asked for.
    #[must_use]
    pub fn new(gate: Option<Arc<Gate>>, reflection: Exposure, health: Exposure) -> Access {
        Access {
            gate,
            reflection,
            health,
        }
    }

    /// The gate, where tokens are asked for.
    #[must_use]
    pub fn gate(&self) -> Option<&Arc<Gate>> {
        self.gate.as_ref()
    }

    /// Whether a call needs no token.
    #[must_use]
    pub fn is_open(&self, call: &Call) -> bool {
        let exposure = match call.callers {
            Callers::Health => self.health,
            Callers::Reflection => self.reflection,
            Callers::Everybody
            | Callers::Engines
            | Callers::Bakers
            | Callers::EnginesAndBakers
            | Callers::Operators
            | Callers::WholeServer => return false,
        };
        exposure == Exposure::Open
    }

    /// Takes one message of a stream from what the caller has left.
    ///
    /// # Errors
    /// When nothing is left.
    pub fn charge(&self, pass: &Pass) -> Result<(), Refusal> {
        match (&self.gate, &pass.0) {
            (Some(gate), Some(bearer)) => gate.charge(bearer),
            (None, _) | (_, None) => Ok(()),
        }
    }
}

const _: () = assert!(
    TOKENS_MAX <= 1 << 16,
    "each unknown token is compared with all"
);
