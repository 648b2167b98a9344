//! How two pictures become one: field by field, so that a new field does not compile until somebody
//! says how it adds up.

use super::{
    picture::{
        ByClass, Lines, Lookups, Manifests, Namespace, Picture, Reuses, SourceHealth, StageTimes,
        Yield, newest,
    },
    tally::Merge,
};

impl Merge for Picture {
    fn merge(&mut self, other: &Self) {
        let Self {
            lines,
            lookups,
            namespaces,
            donors,
            templates,
            relaxing,
            series,
            reuse,
            manifests,
            sources,
            times,
        } = other;
        self.lines.merge(lines);
        self.lookups.merge(lookups);
        self.namespaces.merge(namespaces);
        self.donors.merge(donors);
        self.templates.merge(templates);
        self.relaxing.merge(relaxing);
        self.series.merge(series);
        self.reuse.merge(reuse);
        self.manifests.merge(manifests);
        self.sources.merge(sources);
        self.times.merge(times);
    }
}

impl Merge for Lines {
    fn merge(&mut self, other: &Self) {
        let Self {
            read,
            damaged,
            of_connectors,
            starts,
            modes,
            version,
            period_ms,
        } = other;
        self.read += read;
        self.damaged += damaged;
        self.of_connectors += of_connectors;
        self.starts += starts;
        self.modes.merge(modes);
        self.version = newest(self.version.take(), version.clone());
        if let Some((from, to)) = period_ms {
            self.saw(*from);
            self.saw(*to);
        }
    }
}

impl Merge for Lookups {
    fn merge(&mut self, other: &Self) {
        let Self {
            by_class,
            reasons,
            gates,
            modes,
            prompt_tokens,
            exact_prefix_tokens,
            tokens,
            leased,
            lease_refusals,
            facts_compared,
            facts_differ,
            similarity_found,
            similarity_refused,
            reuse_ratio_found,
            reuse_ratio_refused,
            limits,
        } = other;
        self.by_class.merge(by_class);
        self.reasons.merge(reasons);
        self.gates.merge(gates);
        self.modes.merge(modes);
        self.prompt_tokens += prompt_tokens;
        self.exact_prefix_tokens += exact_prefix_tokens;
        self.tokens.merge(tokens);
        self.leased += leased;
        self.lease_refusals.merge(lease_refusals);
        self.facts_compared += facts_compared;
        self.facts_differ += facts_differ;
        self.similarity_found.merge(similarity_found);
        self.similarity_refused.merge(similarity_refused);
        self.reuse_ratio_found.merge(reuse_ratio_found);
        self.reuse_ratio_refused.merge(reuse_ratio_refused);
        self.limits = newest(self.limits, *limits);
    }
}

impl Merge for ByClass {
    fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine += theirs;
        }
    }
}

impl Merge for Namespace {
    fn merge(&mut self, other: &Self) {
        self.by_class.merge(&other.by_class);
        self.prompt_tokens += other.prompt_tokens;
        self.reusable_tokens += other.reusable_tokens;
    }
}

impl Merge for Yield {
    fn merge(&mut self, other: &Self) {
        self.lookups += other.lookups;
        self.found += other.found;
        self.reusable_tokens += other.reusable_tokens;
    }
}

impl Merge for Reuses {
    fn merge(&mut self, other: &Self) {
        let Self {
            reports,
            tokens,
            reasons,
            loaded,
            failed,
            invalid_blocks,
            released,
        } = other;
        self.reports.merge(reports);
        self.tokens.merge(tokens);
        self.reasons.merge(reasons);
        self.loaded += loaded;
        self.failed += failed;
        self.invalid_blocks += invalid_blocks;
        self.released += released;
    }
}

impl Merge for Manifests {
    fn merge(&mut self, other: &Self) {
        let Self {
            outcomes,
            reasons,
            algorithms,
            policies,
            provenances,
            blocks,
            blocks_of,
        } = other;
        self.outcomes.merge(outcomes);
        self.reasons.merge(reasons);
        self.algorithms.merge(algorithms);
        self.policies.merge(policies);
        self.provenances.merge(provenances);
        self.blocks += blocks;
        self.blocks_of += blocks_of;
    }
}

impl Merge for SourceHealth {
    fn merge(&mut self, other: &Self) {
        self.seen.merge(&other.seen);
        self.newest = newest(self.newest.take(), other.newest.clone());
    }
}

impl Merge for StageTimes {
    fn merge(&mut self, other: &Self) {
        let Self {
            lookup,
            seeds,
            align,
            gate,
            neighbours,
            facts,
            manifest,
        } = other;
        self.lookup.merge(lookup);
        self.seeds.merge(seeds);
        self.align.merge(align);
        self.gate.merge(gate);
        self.neighbours.merge(neighbours);
        self.facts.merge(facts);
        self.manifest.merge(manifest);
    }
}
