//! No bytes make the readers of files panic, and what they read keeps its word.

#![no_main]

use kvatlas::routing::import::{BLOCKS_MAX, Format, TensorFile, import};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    for format in [None, Some(Format::Torch), Some(Format::Safetensors)] {
        read_by_name(bytes, format);
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

fn read_by_name(bytes: &[u8], format: Option<Format>) {
    let Ok(mut file) = TensorFile::open(bytes, format) else { return };
    let names: Vec<_> = file.names().map(str::to_owned).collect();
    for name in names {
        let Ok(Some(tensor)) = file.tensor(&name) else { continue };
        if let Ok(values) = tensor.to_f32(1 << 20) {
            assert_eq!(values.len(), tensor.elements());
        }
    }
}
