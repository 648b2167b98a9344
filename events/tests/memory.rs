//! What decoding allocates is bounded by the payload, whatever the payload claims.

#[cfg(test)]
mod memory {
    use std::{
        alloc::{GlobalAlloc, Layout, System},
        cell::Cell,
    };

    use kvatlas_events::wire::decode;

    /// Bytes held at once for each byte of payload: what the costliest event that is well formed
    /// comes to, which is blocks of three bytes of hash and one item each.
    const BYTES_PER_BYTE_MAX: usize = 32;
    const BYTES_SPARE: usize = 4096;

    /// Counts what the calling thread holds.
    struct Counting;

    thread_local! {
        static HELD: Cell<usize> = const { Cell::new(0) };
        static MOST: Cell<usize> = const { Cell::new(0) };
    }

    #[expect(unsafe_code, reason = "an allocator is unsafe to write")]
    // SAFETY: all is left to the system's allocator.
    unsafe impl GlobalAlloc for Counting {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            HELD.set(HELD.get() + layout.size());
            MOST.set(MOST.get().max(HELD.get()));
            // SAFETY: as the caller's.
            unsafe { System.alloc(layout) }
        }

        unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
            HELD.set(HELD.get().saturating_sub(layout.size()));
            // SAFETY: as the caller's.
            unsafe { System.dealloc(pointer, layout) }
        }
    }

    #[global_allocator]
    static COUNTING: Counting = Counting;

    fn check(what: &str, payload: &[u8], understood: usize) {
        let before = HELD.get();
        MOST.set(before);
        let events = decode(payload).map_or(0, |batch| batch.events.len());
        let most = MOST.get() - before;
        let bound = BYTES_PER_BYTE_MAX * payload.len() + BYTES_SPARE;
        assert_eq!(events, understood, "{what}");
        assert!(most <= bound, "{what}: {most} bytes for {}", payload.len());
    }

    fn batch(count: u32, events: &[u8]) -> Vec<u8> {
        [b"\x92\x01\xdd", &count.to_be_bytes()[..], events].concat()
    }

    fn list(count: u32, elements: impl IntoIterator<Item = Vec<u8>>) -> Vec<u8> {
        let elements: Vec<_> = elements.into_iter().flatten().collect();
        [b"\xdd", &count.to_be_bytes()[..], &elements].concat()
    }

    fn stored(hashes: &[u8], tokens: &[u8], extra: &[u8]) -> Vec<u8> {
        let nil: &[u8] = b"\xc0";
        let head: &[u8] = b"\x99\xabBlockStored";
        [head, hashes, nil, tokens, b"\x10", nil, nil, nil, extra].concat()
    }

    #[test]
    fn claims_of_length_cost_nothing() {
        check("events", &batch(200_000, b"\xc0"), 0);
        check(
            "hashes",
            &batch(1, b"\x92\xacBlockRemoved\xdd\x00\x03\xff\xff\x01"),
            0,
        );
        let tokens = stored(b"\x91\x01", b"\xdd\x00\x3f\xff\xff\x01", b"\xc0");
        check("tokens", &batch(1, &tokens), 0);
        let nothing = vec![0xc0; 20_000];
        check("no events", &batch(20_000, &nothing), 0);
    }

    #[test]
    fn small_values_do_not_grow_beyond_the_bound() {
        let count = 60_000_u32;
        let cleared: Vec<_> = b"\x91\xb0AllBlocksCleared".repeat(10_000);
        check("cleared", &batch(10_000, &cleared), 10_000);
        let removed: Vec<_> = b"\x92\xacBlockRemoved\x91\x01".repeat(10_000);
        check("removed", &batch(10_000, &removed), 10_000);

        let hash = |hash: u32| [b"\xcd", &hash.to_be_bytes()[2..]].concat();
        let hashes = list(count, (0..count).map(hash));
        check("hashes", &batch(1, &stored(&hashes, b"\x90", b"\xc0")), 1);
        let item = |_| b"\x91\x92\xa0\x01".to_vec();
        let items = list(count, (0..count).map(item));
        check("items", &batch(1, &stored(&hashes, b"\x90", &items)), 1);
        let salt = (0..count).map(|block| {
            if block == 0 {
                b"\x91\xa0".to_vec()
            } else {
                vec![0xc0]
            }
        });
        check(
            "salt",
            &batch(1, &stored(&hashes, b"\x90", &list(count, salt))),
            1,
        );
        let tokens = list(count, (0..count).map(|_| vec![7]));
        check("tokens", &batch(1, &stored(b"\x90", &tokens, b"\xc0")), 1);
    }
}
