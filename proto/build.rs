//! Compiles kvatlas/v1/*.proto with protox, so that no protoc is needed on any machine.

use std::{env, error::Error, fs, path::PathBuf};

use prost::Message;

const PROTOS: [&str; 6] = [
    "kvatlas/v1/common.proto",
    "kvatlas/v1/routing.proto",
    "kvatlas/v1/donors.proto",
    "kvatlas/v1/leases.proto",
    "kvatlas/v1/events.proto",
    "kvatlas/v1/admin.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    // tonic-prost-build prints no rerun lines when it is handed a descriptor set.
    println!("cargo:rerun-if-changed=build.rs");
    for proto in PROTOS {
        println!("cargo:rerun-if-changed={proto}");
    }
    let descriptors = protox::compile(PROTOS, ["."])?;
    #[expect(
        clippy::disallowed_methods,
        reason = "how cargo tells a build script where to write"
    )]
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(
        out.join("kvatlas_descriptor.bin"),
        descriptors.encode_to_vec(),
    )?;
    tonic_prost_build::configure()
        // Zero-copy: the field keeps a reference into the receive buffer.
        .bytes(".kvatlas.v1")
        // Rare and large: inline they would make every manifest call's future larger than a
        // kilobyte, and allocations of that size are the slow ones.
        .boxed(".kvatlas.v1.GetManifestRequest.query")
        .boxed(".kvatlas.v1.GetManifestRequest.query_tokens")
        .boxed(".kvatlas.v1.GetManifestResponse.per_head")
        .compile_fds(descriptors)?;
    Ok(())
}
