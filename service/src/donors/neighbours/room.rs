//! Room for what grows to hundreds of megabytes: an eighth more at a time, and given back.

/// Elements that there is room for at least.
const LEAST: usize = 64;

/// Makes room for so many more elements. Large allocations are moved by the system without being
/// copied, so that growing in small steps costs little, and doubling them would waste as much as
/// they hold.
pub(super) fn make<T>(list: &mut Vec<T>, more: usize) {
    if list.capacity() - list.len() < more {
        list.reserve_exact(more.max(list.len() / 8).max(LEAST));
    }
}

/// Gives back what a list that was shortened no longer needs.
pub(super) fn give_back<T>(list: &mut Vec<T>) {
    if list.is_empty() {
        *list = Vec::new();
    } else if list.len() < list.capacity() / 2 {
        list.shrink_to((list.len() + list.len() / 8).max(LEAST));
    }
}
