//! The kvatlas.v1 wire contract: messages, clients, servers and the descriptor set.
//!
//! The `.proto` files beside this crate are the documentation of record for every field.

#[expect(
    clippy::large_enum_variant,
    reason = "prost decides the shape of generated types"
)]
/// Generated from `kvatlas/v1/*.proto`.
pub mod v1 {
    tonic::include_proto!("kvatlas.v1");
}

/// The encoded `FileDescriptorSet` of every file, for server reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] =
    include_bytes!(concat!(env!("OUT_DIR"), "/kvatlas_descriptor.bin"));
