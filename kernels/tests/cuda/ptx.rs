//! Whether the checked-in PTX is that of the source, and the host's constants are the kernels'.

use std::fs;
use std::process::Command;

use kvatlas_kernels::cuda::{
    BEST_MAX, BEST_TILE, CHUNK, HEAD_BATCHES, Kernel, ROW_TILE, SLICE_CHUNKS,
};
use sha2::{Digest, Sha256};

use crate::{shim, tools};

#[test]
fn the_ptx_is_of_this_source() {
    let digest = Sha256::digest(fs::read(shim::source()).unwrap());
    let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    for name in ["score_sm80.ptx", "score_sm90.ptx"] {
        let ptx = fs::read_to_string(shim::folder().join(name)).unwrap();
        let header = format!("// score.cu sha256 {digest}\n");
        assert!(
            ptx.starts_with(&header),
            "{name} is of another source: run kernels/cuda/make_ptx.py"
        );
        for kernel in Kernel::ALL {
            let entry = format!(".visible .entry {}(", kernel.name());
            let after = ptx
                .split_once(&entry)
                .unwrap_or_else(|| panic!("{entry} in {name}"))
                .1;
            let bound = format!(".maxntid {}", kernel.threads());
            let head = &after[..after.find('{').unwrap()];
            assert!(
                head.contains(&bound),
                "{name}: {} has {bound}",
                kernel.name()
            );
        }
    }
}

#[test]
fn the_compiler_makes_the_same_ptx() {
    let Some(python) = tools::find("KVATLAS_CUDA_PYTHON", "KVATLAS_REQUIRE_TOOLS") else {
        return;
    };
    let script = shim::folder().join("make_ptx.py");
    let output = Command::new(python)
        .arg(script)
        .arg("--check")
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
}

#[test]
fn the_host_counts_as_the_kernels_do() {
    let source = fs::read_to_string(shim::source()).unwrap();
    let number = |name: &str| -> usize {
        let text = source
            .split_once(&format!("constexpr u32 {name} = "))
            .unwrap()
            .1;
        text[..text.find(';').unwrap()].parse().unwrap()
    };
    assert_eq!(CHUNK, number("CHUNK"));
    assert_eq!(SLICE_CHUNKS, number("SLICE_CHUNKS"));
    assert_eq!(
        ROW_TILE,
        number("ROW_THREADS") / number("LANES") * number("ROWS_A_WARP")
    );
    assert_eq!(HEAD_BATCHES, number("HEAD_BATCHES"));
    assert_eq!(BEST_MAX, number("BEST_MAX"));
    assert_eq!(
        BEST_TILE,
        number("BEST_THREADS") * number("BEST_KEYS_A_THREAD")
    );
}
