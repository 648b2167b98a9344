//! A typed kvatlas client: deadlines, reconnects, and look-ups that never fail the engine.
//!
//! [`Client::find_donor`] always returns an answer: whatever goes wrong on the way is a
//! [`Lookup::Miss`] with its reason, so that an engine falls back to normal prefill. Everything
//! else returns a [`ClientError`].
//!
//! ```no_run
//! use kvatlas_client::{Client, Endpoint, FindDonor, Lookup, Namespace, Tokens};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::connect(&"unix:/run/kvatlas.sock".parse::<Endpoint>()?);
//! let namespace = Namespace::builder()
//!     .model("llama-3.1-8b", "2024-07-23")
//!     .tokenizer("llama-3", "2024-07-23")
//!     .tokenization("default")
//!     .chat_template("llama-3")
//!     .dtypes("bfloat16", "auto")
//!     .kv_layout(16, "NHD", "flash_attn")
//!     .parallel_sizes(1, 1)
//!     .adapter("none")
//!     .rope_scaling("none")
//!     .tenant_key(Some("tenant-acme"))
//!     .build()?;
//! let prompt = Tokens::new(&[1, 2, 3]);
//! match client.find_donor(&FindDonor::new(prompt, namespace.into())).await {
//!     Lookup::Hit(nomination) => drop(nomination.reusable_prefix_tokens),
//!     Lookup::Miss { reason, .. } => drop(reason.as_str()),
//! }
//! # Ok(())
//! # }
//! ```

mod admin;
mod channel;
mod client;
mod credentials;
mod donors;
mod encoders;
mod error;
mod events;
mod leases;
mod lookup;
mod manifest;
mod namespace;
mod priors;
mod queries;
mod stream;
mod summaries;
mod tokens;
mod upload;

pub use channel::{Endpoint, EndpointError};
pub use client::{Client, Deadlines};
pub use credentials::{CredentialsError, Tls, Token};
pub use donors::{DonorRecord, RemoveDonors};
pub use error::ClientError;
pub use events::FindWorkers;
pub use kvatlas_proto::v1;
pub use leases::{Lease, Renewal};
pub use lookup::{
    Answered, CachePolicy, FindDonor, Lookup, MissReason, Nomination, Outcome, Span, Tier,
};
pub use manifest::{BlockSet, Manifest, ManifestQuery};
pub use namespace::{Namespace, NamespaceBuilder, NamespaceError, NamespaceRef, tenant_key};
pub use priors::{PriorPage, PriorUpload, StoredPrior};
pub use queries::{Calibration, OnlineQuery, QueryVectors};
pub use stream::{DonorStream, ManifestStream};
pub use summaries::{SummaryPage, SummaryUpload};
pub use tokens::{TOKENS_MAX, Tokens, TokensError};
