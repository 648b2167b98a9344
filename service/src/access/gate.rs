//! The tokens that count now: who presented which, and what that lets them do.

use std::{
    collections::HashMap,
    fmt,
    hash::Hasher,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use parking_lot::{Mutex, RwLock};
use siphasher::sip128::{Hasher128, SipHasher24};
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};
use tokio::sync::watch;

use super::{
    Refusal,
    grant::{self, Call, Callers},
    limits::Rate,
    tokens::{Digest, Grant, Token, digest},
};

/// What every caller says before its token.
const SCHEME: &[u8] = b"bearer ";

/// A token that counts, with the calls that it has left.
#[derive(Debug)]
pub struct Bearer {
    pub grant: Grant,
    meter: Mutex<Meter>,
    /// True once the token counts no longer.
    ended: watch::Sender<bool>,
}

#[derive(Debug)]
struct Meter {
    rate: Option<Rate>,
    due_ns: u64,
}

impl Bearer {
    fn new(token: Token) -> Arc<Bearer> {
        let Token { grant, rate, .. } = token;
        Arc::new(Bearer {
            grant,
            meter: Mutex::new(Meter { rate, due_ns: 0 }),
            ended: watch::Sender::new(false),
        })
    }

    /// Whether the token is gone, or stands for something else now.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        *self.ended.borrow()
    }

    /// Resolves once the token is gone, or stands for something else.
    pub fn ends(self: &Arc<Bearer>) -> impl Future<Output = ()> + Send + 'static {
        let mut ended = self.ended.subscribe();
        async move {
            // An error means that nobody holds the token any more.
            let _gone = ended.wait_for(|ended| *ended).await;
        }
    }

    fn charge(&self, now_ns: impl FnOnce() -> u64) -> Result<(), Refusal> {
        let mut meter = self.meter.lock();
        let Some(rate) = meter.rate else {
            return Ok(());
        };
        match rate.take(meter.due_ns, now_ns()) {
            Ok(due_ns) => {
                meter.due_ns = due_ns;
                Ok(())
            }
            Err(wait_ns) => Err(Refusal::Rate {
                calls_per_second_max: rate.calls_per_second_max,
                wait_ns,
            }),
        }
    }
}

/// How often callers were turned away.
#[derive(Debug, Default)]
pub struct Counts {
    pub unauthenticated: AtomicU64,
    pub denied: AtomicU64,
    pub limited: AtomicU64,
}

/// Lets callers in by the tokens that count now.
pub struct Gate {
    live: RwLock<Arc<Live>>,
    clock_ns: Box<dyn Fn() -> u64 + Send + Sync>,
    /// Of the marks that known tokens are found again by.
    keyed: SipHasher24,
    pub counts: Counts,
}

impl fmt::Debug for Gate {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Gate")
            .field("tokens", &self.live.read().bearers.len())
            .finish_non_exhaustive()
    }
}

struct Live {
    bearers: Vec<(Digest, Arc<Bearer>)>,
    /// Those that have come, by a keyed hash of the token: who presents a good token again is not
    /// hashed with SHA-256 and compared with all again. As many entries as there are tokens.
    seen: RwLock<HashMap<u128, Arc<Bearer>>>,
}

impl Gate {
    /// `key` is random and new with every start.
    #[must_use]
    pub fn new(
        tokens: Vec<Token>,
        key: [u8; 16],
        clock_ns: Box<dyn Fn() -> u64 + Send + Sync>,
    ) -> Gate {
        Gate {
            live: RwLock::new(Arc::new(Live::new(tokens, &[]))),
            clock_ns,
            keyed: SipHasher24::new_with_key(&key),
            counts: Counts::default(),
        }
    }

    /// From now on these tokens count. One that stands for the same as before goes on with the
    /// calls that it has left; everything else that was held under the old ones ends.
    pub fn replace(&self, tokens: Vec<Token>) {
        let before = Arc::clone(&self.live.read());
        let live = Arc::new(Live::new(tokens, &before.bearers));
        let is_kept = |old: &Arc<Bearer>| live.bearers.iter().any(|(_, new)| Arc::ptr_eq(new, old));
        let gone = before.bearers.iter().filter(|(_, old)| !is_kept(old));
        let gone: Vec<_> = gone.map(|(_, old)| Arc::clone(old)).collect();
        *self.live.write() = Arc::clone(&live);
        for bearer in gone {
            bearer.ended.send_replace(true);
        }
    }

    /// Who calls, when the call is theirs to make; one call is taken from what they have left.
    ///
    /// # Errors
    /// When they may not.
    pub fn enter(
        &self,
        call: Option<&Call>,
        credentials: Option<&[u8]>,
    ) -> Result<Arc<Bearer>, Refusal> {
        let bearer = self.who(credentials)?;
        let grant = &bearer.grant;
        let callers = call.map(|call| call.callers);
        if !callers.is_some_and(|callers| grant::allows(grant.role, &grant.scope, callers)) {
            self.counts.denied.fetch_add(1, Relaxed);
            return Err(match callers {
                Some(Callers::WholeServer) => Refusal::Scope,
                Some(_) | None => Refusal::Role(grant.role),
            });
        }
        self.charge(&bearer)?;
        Ok(bearer)
    }

    /// Takes one call, or one message of a stream, from what the token has left.
    ///
    /// # Errors
    /// When it has none left, with how long it takes.
    pub fn charge(&self, bearer: &Bearer) -> Result<(), Refusal> {
        bearer.charge(&self.clock_ns).inspect_err(|_| {
            self.counts.limited.fetch_add(1, Relaxed);
        })
    }

    /// Notes a call that was turned away behind the gate.
    pub fn denied(&self) {
        self.counts.denied.fetch_add(1, Relaxed);
    }

    fn who(&self, credentials: Option<&[u8]>) -> Result<Arc<Bearer>, Refusal> {
        let found = match credentials.map(token_of) {
            None => Err(Refusal::NoToken),
            Some(None) => Err(Refusal::NotBearer),
            Some(Some(token)) => self.find(token).ok_or(Refusal::UnknownToken),
        };
        found.inspect_err(|_| {
            self.counts.unauthenticated.fetch_add(1, Relaxed);
        })
    }

    /// The holder of a token.
    fn find(&self, token: &[u8]) -> Option<Arc<Bearer>> {
        let live = Arc::clone(&self.live.read());
        let mark = self.mark(token);
        if let Some(bearer) = live.seen.read().get(&mark) {
            return Some(Arc::clone(bearer));
        }
        let bearer = live.compare(&digest(token))?;
        live.seen.write().insert(mark, Arc::clone(bearer));
        Some(Arc::clone(bearer))
    }

    // Without the key nobody can make two tokens of one mark, or learn from how long the table
    // takes what the mark of a token is.
    fn mark(&self, token: &[u8]) -> u128 {
        let mut hasher = self.keyed;
        hasher.write(token);
        hasher.finish128().as_u128()
    }
}

/// The token of an authorization header.
#[must_use]
pub fn token_of(credentials: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = credentials.split_at_checked(SCHEME.len())?;
    scheme.eq_ignore_ascii_case(SCHEME).then_some(token)
}

impl Live {
    fn new(tokens: Vec<Token>, before: &[(Digest, Arc<Bearer>)]) -> Live {
        let bearer = |token: Token| {
            let same = before
                .iter()
                .find(|(digest, old)| *digest == token.digest && old.grant == token.grant);
            match same {
                Some((_, old)) => {
                    old.meter.lock().rate = token.rate;
                    (token.digest, Arc::clone(old))
                }
                None => (token.digest, Bearer::new(token)),
            }
        };
        Live {
            bearers: tokens.into_iter().map(bearer).collect(),
            seen: RwLock::default(),
        }
    }

    // All are compared, each to its end: the time tells nothing.
    fn compare(&self, digest: &Digest) -> Option<&Arc<Bearer>> {
        let wanted = words(digest);
        let mut found = u64::MAX;
        for (at, (digest, _)) in (0_u64..).zip(&self.bearers) {
            found.conditional_assign(&at, is_same(&wanted, &words(digest)));
        }
        let at = usize::try_from(found).ok()?;
        self.bearers.get(at).map(|(_, bearer)| bearer)
    }
}

fn words(digest: &Digest) -> [u64; 4] {
    let (words, _none) = digest.as_chunks::<8>();
    std::array::from_fn(|at| u64::from_le_bytes(words[at]))
}

fn is_same(left: &[u64; 4], right: &[u64; 4]) -> Choice {
    let words = left.iter().zip(right);
    words.fold(Choice::from(1), |same, (left, right)| {
        same & left.ct_eq(right)
    })
}

#[cfg(test)]
mod tests;
