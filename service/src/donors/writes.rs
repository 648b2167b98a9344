//! The way to the writer thread: what can be asked of it, within bounds of number and of tokens.

use std::sync::Arc;

use kvatlas_events::event::EngineHash;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use super::{
    catalog::NAMESPACES_MAX,
    namespace::{Namespace, NamespaceId},
    owners::{OwnerKey, OwnerRefusal},
    record::Settings,
    scope::Namespaces,
    vocabulary::Medium,
};
use crate::store::StoreError;

/// Writes that may wait at a time.
pub const QUEUE_DEPTH_MAX: usize = 4096;
/// Tokens of all writes that may wait at a time.
pub const QUEUED_TOKENS_MAX: u32 = 32 << 20;

/// Longest text of a donor, in bytes.
pub const TEXT_BYTES_MAX: usize = 16 << 20;

/// How many donors and tokens may be kept.
#[derive(Debug, Clone, Copy)]
pub struct Capacity {
    pub donors_max: u64,
    pub tokens_max: u64,
}

/// A validated registration.
#[derive(Debug)]
pub struct NewDonor {
    pub donor_id: Box<str>,
    pub namespace: NamespaceName,
    pub owner: OwnerKey,
    pub owner_generation: u64,
    /// The captured tokens alone.
    pub captured: Vec<u32>,
    pub exact_tokens: u32,
    pub medium: Medium,
    pub store_id: Box<str>,
    pub source_request_id: Box<str>,
    /// The engine's names of the captured full blocks, of a donor in device memory; empty where it
    /// gave none.
    pub block_names: Vec<EngineHash>,
    /// The prompt, where the operator has it kept. At most [`TEXT_BYTES_MAX`] bytes.
    pub text: Option<Box<str>>,
    pub now_ms: u64,
}

impl NewDonor {
    /// What it counts for where tokens are bounded: its tokens, and four bytes of anything else for
    /// one.
    pub(super) fn weight(&self) -> usize {
        let names = self.block_names.len() * (size_of::<EngineHash>() / size_of::<u32>());
        self.captured.len()
            + names
            + self.text.as_ref().map_or(0, |text| text.len()) / size_of::<u32>()
    }
}

/// A namespace in full, or by an id that an answer gave.
#[derive(Debug, Clone)]
pub enum NamespaceName {
    Full(Box<Namespace>),
    Id(NamespaceId),
}

/// What became of a registration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registered {
    pub admission: Admission,
    pub namespace: NamespaceId,
    pub evicted: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Admission {
    Added,
    Replaced,
    /// Its tokens are the beginning of this donor of the same owner.
    Covered(Box<str>),
    NothingCaptured,
}

/// Which donors are to go.
#[derive(Debug)]
pub enum Removal {
    Ids(NamespaceName, Vec<String>),
    Owner(OwnerKey),
    /// An owner's donors in these namespaces.
    OwnerIn(OwnerKey, Namespaces),
    /// An owner's donors in device memory.
    OnDevice(OwnerKey),
    /// An owner's donors of generations below this one.
    OlderThan(OwnerKey, u64),
    Namespace(NamespaceName),
}

/// Why a write was refused.
#[derive(Debug, Clone, thiserror::Error)]
pub enum WriteRefusal {
    #[error("namespace_id is not known here: send the whole namespace")]
    UnknownNamespace,
    #[error(transparent)]
    Owner(#[from] OwnerRefusal),
    #[error("tokens: {tokens} captured tokens, the server keeps at most {max} over all donors")]
    TooManyTokens { tokens: u64, max: u64 },
    #[error("block_hashes: {given} hashes, the captured tokens have {full} full blocks")]
    BlockHashes { given: usize, full: usize },
    #[error("every donor that could make room is leased")]
    AllLeased,
    #[error("{NAMESPACES_MAX} namespaces hold donors or settings, no more can be")]
    TooManyNamespaces,
    #[error("the write queue is full")]
    QueueFull,
    #[error("the store failed: {0}")]
    Store(Arc<StoreError>),
    #[error("the server is stopping")]
    Stopping,
}

impl From<StoreError> for WriteRefusal {
    fn from(error: StoreError) -> WriteRefusal {
        WriteRefusal::Store(Arc::new(error))
    }
}

pub(super) type Reply<T> = oneshot::Sender<Result<T, WriteRefusal>>;

/// A write on its way, and the place of its answer.
#[derive(Debug)]
pub(super) enum Command {
    Register(Box<NewDonor>, Reply<Registered>),
    Remove(Removal, Reply<u64>),
    Settings(
        Option<NamespaceName>,
        Box<dyn SettingsChange>,
        Reply<Settings>,
    ),
}

/// A change of settings, made by the writer on what holds then.
pub trait SettingsChange: FnOnce(Settings) -> Settings + Send {}
impl<F: FnOnce(Settings) -> Settings + Send> SettingsChange for F {}
impl std::fmt::Debug for dyn SettingsChange {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("SettingsChange")
    }
}

#[derive(Debug)]
pub(super) struct Queued {
    pub(super) command: Command,
    pub(super) tokens: Option<OwnedSemaphorePermit>,
}

/// The way to the writer thread.
#[derive(Debug, Clone)]
pub struct Writes {
    queue: mpsc::Sender<Queued>,
    tokens: Arc<Semaphore>,
}

/// What is still to come of a registration that was queued.
pub type PendingRegistration = oneshot::Receiver<Result<Registered, WriteRefusal>>;

impl Writes {
    /// The way in, and the end that the writer works from.
    pub(super) fn channel() -> (Writes, mpsc::Receiver<Queued>) {
        let (queue, receiver) = mpsc::channel(QUEUE_DEPTH_MAX);
        let tokens = Arc::new(Semaphore::new(QUEUED_TOKENS_MAX as usize));
        (Writes { queue, tokens }, receiver)
    }

    /// Queues a registration, or refuses at once.
    pub fn try_register(&self, donor: NewDonor) -> Result<PendingRegistration, WriteRefusal> {
        let permits = permits(&donor);
        let tokens = Arc::clone(&self.tokens)
            .try_acquire_many_owned(permits)
            .map_err(|_| WriteRefusal::QueueFull)?;
        let (reply, pending) = oneshot::channel();
        self.try_send(Command::Register(Box::new(donor), reply), Some(tokens))?;
        Ok(pending)
    }

    /// Queues a registration, waiting for room: a stream is slowed down rather than refused.
    pub async fn register_when_free(
        &self,
        donor: NewDonor,
    ) -> Result<PendingRegistration, WriteRefusal> {
        let tokens = Arc::clone(&self.tokens)
            .acquire_many_owned(permits(&donor))
            .await
            .map_err(|_| WriteRefusal::Stopping)?;
        let (reply, pending) = oneshot::channel();
        let command = Command::Register(Box::new(donor), reply);
        self.queue
            .send(Queued {
                command,
                tokens: Some(tokens),
            })
            .await
            .map_err(|_| WriteRefusal::Stopping)?;
        Ok(pending)
    }

    /// Removes donors; returns how many went.
    pub async fn remove(&self, removal: Removal) -> Result<u64, WriteRefusal> {
        let (reply, pending) = oneshot::channel();
        self.try_send(Command::Remove(removal, reply), None)?;
        pending.await.map_err(|_| WriteRefusal::Stopping)?
    }

    /// Changes the settings of a namespace, or of the server; returns what holds then.
    pub async fn set(
        &self,
        namespace: Option<NamespaceName>,
        change: impl SettingsChange + 'static,
    ) -> Result<Settings, WriteRefusal> {
        let (reply, pending) = oneshot::channel();
        self.try_send(Command::Settings(namespace, Box::new(change), reply), None)?;
        pending.await.map_err(|_| WriteRefusal::Stopping)?
    }

    /// Writes that wait now.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.queue.max_capacity() - self.queue.capacity()
    }

    fn try_send(
        &self,
        command: Command,
        tokens: Option<OwnedSemaphorePermit>,
    ) -> Result<(), WriteRefusal> {
        self.queue
            .try_send(Queued { command, tokens })
            .map_err(|error| match error {
                mpsc::error::TrySendError::Full(_) => WriteRefusal::QueueFull,
                mpsc::error::TrySendError::Closed(_) => WriteRefusal::Stopping,
            })
    }
}

fn permits(donor: &NewDonor) -> u32 {
    u32::try_from(donor.weight())
        .unwrap_or(u32::MAX)
        .clamp(1, QUEUED_TOKENS_MAX)
}
