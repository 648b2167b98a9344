//! What the service tells of itself: its build, its records, its spans, and what is read from it.

use std::{fmt::Write, sync::Arc};

use prometheus_client::{metrics::gauge::ConstGauge, registry::Registry};

use super::{NamespaceSeries, counter};
use crate::telemetry::{audit::AuditCounters, recorder::RecorderCounters, traces::TraceCounters};

/// A metric with one label whose values are read when somebody asks.
#[derive(Debug)]
pub struct Reading {
    pub name: &'static str,
    pub help: &'static str,
    /// The values only grow.
    pub is_counter: bool,
    pub label: &'static str,
    pub values: Vec<(&'static str, u64)>,
}

impl Reading {
    pub(super) fn render(&self, text: &mut String) {
        let Reading {
            name,
            help,
            is_counter,
            label,
            values,
        } = self;
        let (kind, suffix) = if *is_counter {
            ("counter", "_total")
        } else {
            ("gauge", "")
        };
        // Writing to a String cannot fail.
        let _written = writeln!(text, "# HELP {name} {help}.\n# TYPE {name} {kind}");
        for (word, value) in values {
            let _written = writeln!(text, "{name}{suffix}{{{label}=\"{word}\"}} {value}");
        }
    }
}

/// Version and, where whoever built it said so in KVATLAS_REVISION, the revision.
pub(super) fn build(registry: &mut Registry) {
    let label = |name: &'static str, value: &'static str| (name.into(), value.into());
    let labels = [
        label("version", env!("CARGO_PKG_VERSION")),
        label(
            "revision",
            option_env!("KVATLAS_REVISION").unwrap_or("unknown"),
        ),
        label("rust", env!("CARGO_PKG_RUST_VERSION")),
    ];
    registry
        .sub_registry_with_labels(labels.into_iter())
        .register(
            "kvatlas_build",
            "Version of the running service",
            ConstGauge::new(1_i64),
        );
}

pub(super) fn namespaces(registry: &mut Registry) -> Arc<NamespaceSeries> {
    let series = Arc::new(NamespaceSeries::default());
    registry.register_collector(Box::new(Arc::clone(&series)));
    series
}

pub(super) fn recorder(r: &mut Registry) -> RecorderCounters {
    RecorderCounters {
        records: counter(r, "kvatlas_records", "Records of calls that were taken"),
        dropped: counter(
            r,
            "kvatlas_records_dropped",
            "Records of calls that found the recorder's buffer full",
        ),
        audit: AuditCounters {
            lines: counter(r, "kvatlas_audit_lines", "Lines of the audit log written"),
            lost: counter(
                r,
                "kvatlas_audit_lines_lost",
                "Lines of the audit log that could not be written",
            ),
            files: counter(r, "kvatlas_audit_files", "Files of the audit log begun"),
        },
    }
}

pub(super) fn traces(r: &mut Registry) -> TraceCounters {
    TraceCounters {
        sent: counter(r, "kvatlas_spans_sent", "Spans that a collector took"),
        dropped: counter(
            r,
            "kvatlas_spans_dropped",
            "Spans that found the queue full",
        ),
        lost: counter(
            r,
            "kvatlas_spans_lost",
            "Spans that the collector did not take",
        ),
    }
}
