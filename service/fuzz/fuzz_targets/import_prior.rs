//! No bytes make the prior reader panic, and what it reads keeps its word.

#![no_main]

use kvatlas::routing::import::{BLOCKS_MAX, Format, import};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    for format in [None, Some(Format::Torch), Some(Format::Safetensors)] {
        let Ok(prior) = import(bytes, format) else { continue };
        let total = prior.total_blocks.unwrap_or(BLOCKS_MAX);
        let lists = prior.lists_by_k.values().chain(prior.legacy_list.iter());
        assert!(lists.flatten().all(|&block| block < total));
        if let Some(tensor) = prior.affinities {
            let elements = [tensor.layers, tensor.kv_heads, tensor.blocks];
            let elements: usize = elements.iter().map(|&length| length as usize).product();
            assert_eq!(tensor.scores.len(), elements);
        }
    }
});
