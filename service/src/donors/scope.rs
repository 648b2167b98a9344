//! What a caller may name: namespaces, by tenant or by id, and engine workers.

use std::collections::HashSet;

use super::namespace::{NamespaceId, tenant_key};

/// The namespaces and workers that calls under one token may name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scope {
    pub namespaces: Namespaces,
    pub workers: Workers,
}

/// No limit, for where no tokens are asked for.
pub static EVERYTHING: Scope = Scope {
    namespaces: Namespaces::All,
    workers: Workers::All,
};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Namespaces {
    All,
    Of {
        tenants: HashSet<Box<str>>,
        ids: HashSet<NamespaceId>,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Workers {
    All,
    /// By id; one that ends in `*` stands for all that begin so.
    Named(Vec<Box<str>>),
}

impl Scope {
    #[must_use]
    pub fn is_everything(&self) -> bool {
        *self == EVERYTHING
    }
}

impl Namespaces {
    /// Whether a namespace of this tenant may be named.
    #[must_use]
    pub fn cover(&self, id: NamespaceId, tenant_key: &str) -> bool {
        match self {
            Namespaces::All => true,
            Namespaces::Of { tenants, ids } => tenants.contains(tenant_key) || ids.contains(&id),
        }
    }

    /// Whether every namespace of this tenant may be named.
    #[must_use]
    pub fn cover_tenant(&self, tenant_key: &str) -> bool {
        match self {
            Namespaces::All => true,
            Namespaces::Of { tenants, .. } => tenants.contains(tenant_key),
        }
    }

    /// Whether what belongs to no tenant may be named.
    #[must_use]
    pub fn cover_tenantless(&self) -> bool {
        match self {
            Namespaces::All => true,
            Namespaces::Of { .. } => self.cover_tenant(&tenant_key(None)),
        }
    }
}

impl Workers {
    #[must_use]
    pub fn cover(&self, worker_id: &str) -> bool {
        match self {
            Workers::All => true,
            Workers::Named(names) => names.iter().any(|name| match name.strip_suffix('*') {
                Some(begin) => worker_id.starts_with(begin),
                None => worker_id == &**name,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TENANT: &str = "semblend:tenant:v1:9332cc3fc0ec09d0f04fa8e1e08637b5";

    #[test]
    fn a_namespace_is_covered_by_its_tenant_or_by_its_id() {
        let (listed, other) = (NamespaceId([1; 32]), NamespaceId([2; 32]));
        let some = Namespaces::Of {
            tenants: HashSet::from([TENANT.into()]),
            ids: HashSet::from([listed]),
        };
        let check = |id, tenant, is_covered| assert_eq!(some.cover(id, tenant), is_covered);
        check(other, TENANT, true);
        check(listed, "semblend:tenant:v1:none", true);
        check(other, "semblend:tenant:v1:none", false);
        check(other, "", false);
        assert!(!some.cover_tenantless());
        assert!(Namespaces::All.cover(other, "") && Namespaces::All.cover_tenantless());
    }

    #[test]
    fn a_worker_is_covered_by_its_name_or_by_how_it_begins() {
        let named = Workers::Named(vec!["w-1".into(), "pool-a-*".into()]);
        for (worker, is_covered) in [
            ("w-1", true),
            ("w-11", false),
            ("pool-a-7", true),
            ("pool-b-7", false),
            ("*", false),
            ("", false),
        ] {
            assert_eq!(named.cover(worker), is_covered, "{worker}");
        }
        assert!(!Workers::Named(Vec::new()).cover(""));
        assert!(Workers::All.cover("anybody"));
    }
}
