//! Which donors' blocks lie in the owners' device memory, by what the engines publish.

use std::sync::Arc;

use kvatlas_events::view::{self, Change, SourceId, View};

use super::{namespace::Namespace, owners::Owner};

/// Ties donors in device memory to the view of their owner's cache.
#[derive(Debug, Default)]
pub struct Residents {
    /// What every followed engine holds.
    pub view: Arc<View>,
}

impl Residents {
    /// The name under which blocks of a namespace are in the view; None: of sources without one.
    /// Tenant, adapter and multimodal hashes are no part of it.
    #[must_use]
    pub fn engine_namespace(&self, _namespace: Option<&Namespace>) -> view::Namespace {
        view::Namespace(0)
    }

    /// The owner's cache is in the view under this name from now on.
    pub fn follow(&self, _owner: &Arc<Owner>, _source: SourceId, _namespace: view::Namespace) {}

    /// What became of blocks of a source's device, after the view has it.
    pub fn changed(&self, _source: SourceId, _changes: &[Change]) {}

    /// Whether what the view says of the source is all that the engine published. Told before it
    /// ceases to be, and after it has become so.
    pub fn set_exact(&self, _source: SourceId, _is_exact: bool) {}

    /// The source is no longer in the view.
    pub fn forget(&self, _source: SourceId) {}
}
