//! Generates the echo that the service is measured against, as any tonic service is generated.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=proto/echo.proto");
    let descriptors = protox::compile(["echo.proto"], ["proto"])?;
    tonic_prost_build::configure()
        .build_client(false)
        // As the service's own.
        .bytes(".kvatlas.loadtest")
        .compile_fds(descriptors)?;
    Ok(())
}
