//! Whose the chains of a source are: the tenant's key of each salt that its events name.

use std::collections::HashMap;

use super::hash::{Namespace, OwnHash, Shape, root, tenant_key};
use crate::event::Stored;

/// Salts whose keys are kept; with one more all are forgotten.
const SALTS_MAX: usize = 1024;
/// The key of a longer salt is worked out each time.
const SALT_BYTES_MAX: usize = 256;

/// Keys are digests that take longer than all else about a short event.
#[derive(Debug, Default)]
pub(super) struct Tenants(HashMap<Box<str>, Box<str>>);

impl Tenants {
    /// What the first block of a chain goes on from.
    pub(super) fn root_of(
        &mut self,
        namespace: Namespace,
        shape: Shape,
        stored: &Stored<'_>,
    ) -> OwnHash {
        let first = || stored.extra.first().and_then(|extra| extra.salt);
        let Some(salt) = stored.salt.or_else(first) else {
            return root(namespace, shape, stored.adapter, None);
        };
        if salt.len() > SALT_BYTES_MAX {
            return root(namespace, shape, stored.adapter, Some(&tenant_key(salt)));
        }
        if !self.0.contains_key(salt) {
            if self.0.len() == SALTS_MAX {
                self.0.clear();
            }
            self.0.insert(salt.into(), tenant_key(salt).into());
        }
        root(
            namespace,
            shape,
            stored.adapter,
            self.0.get(salt).map(AsRef::as_ref),
        )
    }
}
