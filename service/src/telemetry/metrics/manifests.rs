//! Manifests by algorithm, policy and provenance: one number for each combination, found by place.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, counter::ConstCounter},
    registry::Registry,
};

use super::Latency;
use crate::telemetry::{
    record::Manifest,
    words::{Algorithm, ManifestOutcome, ManifestProvenance, ManifestReason, Policy},
};

const ALGORITHMS: usize = Algorithm::ALL.len() + 1;
const POLICIES: usize = Policy::ALL.len();
const PROVENANCES: usize = ManifestProvenance::ALL.len();
/// What a manifest that no scores took part in is told under.
const NO_ALGORITHM: &str = "none";

/// What calls for manifests came to. Clones share the counts.
#[derive(Debug, Clone)]
pub struct Manifests {
    counts: Arc<Counts>,
    pub seconds: Latency,
}

#[derive(Debug)]
struct Counts {
    given: [[[AtomicU64; PROVENANCES]; POLICIES]; ALGORITHMS],
    misses: AtomicU64,
    errors: AtomicU64,
    /// By place in the vocabulary, of those that were given.
    reasons: [AtomicU64; ManifestReason::ALL.len()],
}

impl Manifests {
    pub(super) fn new(registry: &mut Registry) -> Manifests {
        let zero = || AtomicU64::new(0);
        let counts = Arc::new(Counts {
            given: std::array::from_fn(|_| {
                std::array::from_fn(|_| std::array::from_fn(|_| zero()))
            }),
            misses: zero(),
            errors: zero(),
            reasons: std::array::from_fn(|_| zero()),
        });
        registry.register_collector(Box::new(Exposed(Arc::clone(&counts))));
        Manifests {
            counts,
            seconds: super::latency(
                registry,
                "kvatlas_manifest_latency",
                "Time to answer a call for a manifest",
            ),
        }
    }

    pub fn count(&self, manifest: &Manifest) {
        let counts = &*self.counts;
        self.seconds.observe_ns(manifest.took_us.0);
        match manifest.outcome {
            ManifestOutcome::Ok => {}
            ManifestOutcome::Miss => return add_one(&counts.misses),
            ManifestOutcome::Refused => return add_one(&counts.errors),
        }
        let algorithm = manifest.algorithm.map_or(0, |it| it as usize + 1);
        if let (Some(policy), Some(provenance)) = (manifest.policy, manifest.provenance) {
            add_one(&counts.given[algorithm][policy as usize][provenance as usize]);
        }
        if let Some(reason) = manifest.reason {
            add_one(&counts.reasons[reason as usize]);
        }
    }
}

fn add_one(count: &AtomicU64) {
    count.fetch_add(1, Ordering::Relaxed);
}

#[derive(Debug)]
struct Exposed(Arc<Counts>);

impl Collector for Exposed {
    // A combination that was never given has no series: most cannot be.
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let counts = &*self.0;
        let kind = MetricType::Counter;
        let mut given =
            encoder.encode_descriptor("kvatlas_manifests", "Manifests given", None, kind)?;
        let algorithms = [NO_ALGORITHM]
            .into_iter()
            .chain(Algorithm::ALL.iter().map(|it| it.as_str()));
        for (algorithm, by_policy) in algorithms.zip(&counts.given) {
            for (policy, by_provenance) in Policy::ALL.iter().zip(by_policy) {
                for (provenance, count) in ManifestProvenance::ALL.iter().zip(by_provenance) {
                    let count = count.load(Ordering::Relaxed);
                    if count > 0 {
                        let labels = [
                            ("algorithm", algorithm),
                            ("policy", policy.as_str()),
                            ("provenance", provenance.as_str()),
                        ];
                        ConstCounter::new(count).encode(given.encode_family(&labels)?)?;
                    }
                }
            }
        }
        let mut reasons = encoder.encode_descriptor(
            "kvatlas_manifest_reasons",
            "Manifests that are not what was asked for, by why",
            None,
            kind,
        )?;
        for (reason, count) in ManifestReason::ALL.iter().zip(&counts.reasons) {
            let count = count.load(Ordering::Relaxed);
            if count > 0 {
                let labels = [("reason", reason.as_str())];
                ConstCounter::new(count).encode(reasons.encode_family(&labels)?)?;
            }
        }
        for (name, help, count) in [
            (
                "kvatlas_manifest_misses",
                "Prefixes without a prior",
                &counts.misses,
            ),
            (
                "kvatlas_manifest_errors",
                "Manifest calls refused",
                &counts.errors,
            ),
        ] {
            let metric = encoder.encode_descriptor(name, help, None, kind)?;
            ConstCounter::new(count.load(Ordering::Relaxed)).encode(metric)?;
        }
        Ok(())
    }
}
