//! Names that many donors share, held once.

use std::{collections::HashSet, sync::Arc};

use parking_lot::Mutex;

/// Names held before the unused ones are looked for.
const SWEEP_AT_MIN: usize = 1024;

/// Holds each name that somebody uses, and others until the next sweep.
#[derive(Debug, Default)]
pub(super) struct Names {
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    names: HashSet<Arc<str>>,
    /// How many names make a sweep worth its while.
    sweep_at: usize,
}

impl Names {
    /// The one copy of a name.
    pub(super) fn share(&self, name: &str) -> Arc<str> {
        let mut held = self.held.lock();
        if let Some(shared) = held.names.get(name) {
            return Arc::clone(shared);
        }
        if held.names.len() >= held.sweep_at.max(SWEEP_AT_MIN) {
            held.names.retain(|name| Arc::strong_count(name) > 1);
            held.sweep_at = held.names.len() * 2;
        }
        let shared: Arc<str> = name.into();
        held.names.insert(Arc::clone(&shared));
        shared
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_names_are_one_and_unused_ones_go() {
        let names = Names::default();
        let kept = names.share("store");
        assert!(Arc::ptr_eq(&kept, &names.share("store")));
        for number in 0..10 * SWEEP_AT_MIN {
            names.share(&format!("store-{number}"));
        }
        assert!(names.held.lock().names.len() <= SWEEP_AT_MIN);
        assert!(Arc::ptr_eq(&kept, &names.share("store")));
    }
}
