//! Namespaces from and to the wire.

use kvatlas_proto::v1;
use tonic::Status;

use super::invalid;
use crate::donors::{
    namespace::{Namespace, NamespaceFault, NamespaceId},
    writes::NamespaceName,
};

/// What a look-up makes of its namespace.
#[derive(Debug)]
pub enum LookupNamespace {
    /// With all that it says, where it was given in full.
    Known(NamespaceId, Option<Box<Namespace>>),
    /// A miss: the field that is blank, or "namespace" when none was given.
    Incomplete(&'static str),
}

/// For look-ups: an incomplete namespace is a miss, a malformed one an error.
pub fn for_lookup(selector: Option<v1::NamespaceSelector>) -> Result<LookupNamespace, Status> {
    match checked(selector) {
        Ok(NamespaceName::Id(id)) => Ok(LookupNamespace::Known(id, None)),
        Ok(NamespaceName::Full(namespace)) => {
            Ok(LookupNamespace::Known(namespace.id(), Some(namespace)))
        }
        Err(NamespaceFault::Incomplete { field }) => Ok(LookupNamespace::Incomplete(field)),
        Err(NamespaceFault::Malformed { field, problem }) => Err(invalid(field, problem)),
    }
}

/// For everything else: a namespace that is not whole is an error.
pub fn required(selector: Option<v1::NamespaceSelector>) -> Result<NamespaceName, Status> {
    checked(selector).map_err(|fault| match fault {
        NamespaceFault::Incomplete { field } => invalid(
            field,
            "is required: numbers begin at 1; of texts \"none\" is a value, empty is not",
        ),
        NamespaceFault::Malformed { field, problem } => invalid(field, problem),
    })
}

fn checked(selector: Option<v1::NamespaceSelector>) -> Result<NamespaceName, NamespaceFault> {
    match selector.and_then(|selector| selector.selector) {
        None => Err(NamespaceFault::Incomplete { field: "namespace" }),
        Some(v1::namespace_selector::Selector::NamespaceId(text)) => {
            let id = NamespaceId::parse(&text).ok_or_else(|| NamespaceFault::Malformed {
                field: "namespace_id",
                problem: format!(
                    "{} bytes, must be 64 lower-case hexadecimal digits",
                    text.len()
                ),
            })?;
            Ok(NamespaceName::Id(id))
        }
        Some(v1::namespace_selector::Selector::Namespace(namespace)) => {
            let namespace = from_wire(namespace);
            namespace.check()?;
            Ok(NamespaceName::Full(Box::new(namespace)))
        }
    }
}

fn from_wire(namespace: v1::Namespace) -> Namespace {
    let v1::Namespace {
        model,
        model_revision,
        tokenizer,
        tokenizer_revision,
        tokenization,
        chat_template,
        dtype,
        kv_cache_dtype,
        block_size,
        kv_layout,
        attention_backend,
        tensor_parallel_size,
        pipeline_parallel_size,
        adapter,
        rope_scaling,
        multimodal_hashes,
        tenant_key,
    } = namespace;
    Namespace {
        model,
        model_revision,
        tokenizer,
        tokenizer_revision,
        tokenization,
        chat_template,
        dtype,
        kv_cache_dtype,
        block_size,
        kv_layout,
        attention_backend,
        tensor_parallel_size,
        pipeline_parallel_size,
        adapter,
        rope_scaling,
        multimodal_hashes,
        tenant_key,
    }
}

#[must_use]
pub fn to_wire(namespace: &Namespace) -> v1::Namespace {
    let Namespace {
        model,
        model_revision,
        tokenizer,
        tokenizer_revision,
        tokenization,
        chat_template,
        dtype,
        kv_cache_dtype,
        block_size,
        kv_layout,
        attention_backend,
        tensor_parallel_size,
        pipeline_parallel_size,
        adapter,
        rope_scaling,
        multimodal_hashes,
        tenant_key,
    } = namespace.clone();
    v1::Namespace {
        model,
        model_revision,
        tokenizer,
        tokenizer_revision,
        tokenization,
        chat_template,
        dtype,
        kv_cache_dtype,
        block_size,
        kv_layout,
        attention_backend,
        tensor_parallel_size,
        pipeline_parallel_size,
        adapter,
        rope_scaling,
        multimodal_hashes,
        tenant_key,
    }
}
