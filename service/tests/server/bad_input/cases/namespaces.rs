//! What can be wrong with a namespace, in a look-up and in a registration.

use kvatlas_proto::v1;

use super::{
    Case, case,
    donors::{find, register},
};
use crate::{
    bad_input::secret,
    common::{self, selector},
};

/// Every required field empty, one at a time, and the namespace itself.
pub(crate) fn incomplete_namespaces() -> Vec<(&'static str, Option<v1::NamespaceSelector>)> {
    let mut incomplete = vec![
        ("namespace", None),
        ("namespace", Some(v1::NamespaceSelector::default())),
    ];
    for (name, field) in NAMESPACE_STRINGS {
        for blank in ["", " \t"] {
            let mut namespace = secret_namespace();
            *field(&mut namespace) = blank.into();
            incomplete.push((name, selector(namespace)));
        }
    }
    for (name, field, ..) in NAMESPACE_NUMBERS {
        let mut namespace = secret_namespace();
        *field(&mut namespace) = 0;
        incomplete.push((name, selector(namespace)));
    }
    incomplete
}

pub(crate) fn namespaces() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut both = |name, namespace: v1::Namespace, limit| {
        let looked_up = selector(namespace.clone());
        cases.push(case(
            name,
            find(|it| it.namespace = looked_up),
            [name, limit],
        ));
        let registered = selector(namespace);
        cases.push(case(
            name,
            register(|it| it.namespace = registered),
            [name, limit],
        ));
    };
    for (name, field) in NAMESPACE_STRINGS {
        let mut namespace = secret_namespace();
        *field(&mut namespace) = secret(513);
        both(name, namespace, "512");
    }
    for (name, field, value, limit) in NAMESPACE_NUMBERS {
        let mut namespace = secret_namespace();
        *field(&mut namespace) = value;
        both(name, namespace, limit);
    }
    for (hashes, limit) in [
        (vec![secret(9); 65], "64"),
        (vec![secret(129)], "128"),
        (vec![String::new()], "128"),
    ] {
        let mut namespace = secret_namespace();
        namespace.multimodal_hashes = hashes;
        both("namespace.multimodal_hashes", namespace, limit);
    }
    for key in [secret(40), format!("semblend:tenant:v1:{}", secret(32))] {
        let mut namespace = secret_namespace();
        namespace.tenant_key = key;
        both("namespace.tenant_key", namespace, "32");
    }
    for (name, namespace) in incomplete_namespaces() {
        let call = register(|it| it.namespace = namespace);
        cases.push(case(name, call, [name, "required"]));
    }
    cases
}

/// Whole, with a secret in every string that may hold one.
pub(crate) fn secret_namespace() -> v1::Namespace {
    let mut namespace = common::namespace();
    for (name, field) in NAMESPACE_STRINGS {
        if name != "namespace.tenant_key" {
            *field(&mut namespace) = secret(30);
        }
    }
    namespace.multimodal_hashes = vec![secret(30)];
    namespace
}

type StringOf = fn(&mut v1::Namespace) -> &mut String;

pub(crate) const NAMESPACE_STRINGS: [(&str, StringOf); 13] = [
    ("namespace.model", |it| &mut it.model),
    ("namespace.model_revision", |it| &mut it.model_revision),
    ("namespace.tokenizer", |it| &mut it.tokenizer),
    ("namespace.tokenizer_revision", |it| {
        &mut it.tokenizer_revision
    }),
    ("namespace.tokenization", |it| &mut it.tokenization),
    ("namespace.chat_template", |it| &mut it.chat_template),
    ("namespace.dtype", |it| &mut it.dtype),
    ("namespace.kv_cache_dtype", |it| &mut it.kv_cache_dtype),
    ("namespace.kv_layout", |it| &mut it.kv_layout),
    ("namespace.attention_backend", |it| {
        &mut it.attention_backend
    }),
    ("namespace.adapter", |it| &mut it.adapter),
    ("namespace.rope_scaling", |it| &mut it.rope_scaling),
    ("namespace.tenant_key", |it| &mut it.tenant_key),
];

type NumberOf = fn(&mut v1::Namespace) -> &mut u32;

const NAMESPACE_NUMBERS: [(&str, NumberOf, u32, &str); 3] = [
    (
        "namespace.block_size",
        |it| &mut it.block_size,
        4097,
        "4096",
    ),
    (
        "namespace.tensor_parallel_size",
        |it| &mut it.tensor_parallel_size,
        65_537,
        "65536",
    ),
    (
        "namespace.pipeline_parallel_size",
        |it| &mut it.pipeline_parallel_size,
        65_537,
        "65536",
    ),
];
