//! Manifests that wait for the scorer.

use std::sync::Arc;

use kvatlas_proto::v1;
use tonic::Status;

use super::{Core, clock::Deadline, convert, status};
use crate::routing::{
    manifest::{Manifest, ManifestError, ManifestQuery, Reason},
    online::{Choice, Prepared, Sources, prepare, stored_instead},
    scorer::Task,
};

/// Scores and answers.
pub async fn manifest(
    core: &Arc<Core>,
    request: &v1::GetManifestRequest,
    deadline: Deadline,
) -> Result<v1::GetManifestResponse, Status> {
    deadline.check()?;
    let (query, ttl_ms) = convert::routing::query(request, core.limits.lease_ttl_ms)?;
    let manifest = scored(core, request, &query, deadline).await?;
    Ok(super::routing::leased(core, manifest, &deadline, ttl_ms))
}

async fn scored(
    core: &Arc<Core>,
    request: &v1::GetManifestRequest,
    query: &ManifestQuery<'_>,
    deadline: Deadline,
) -> Result<Manifest, Status> {
    let ask = convert::online::ask(request)?;
    let sources = Sources {
        priors: &core.priors,
        summaries: &core.summaries,
        queries: &core.queries,
        encoders: &core.encoders,
    };
    let refused = match prepare(&sources, query, ask, deadline.began_ms) {
        Ok(Prepared::Answered(manifest)) => return Ok(manifest),
        Ok(Prepared::Stored(reason)) => return stored(core, query, reason, deadline).await,
        Ok(Prepared::Score(task, choice)) => match score(core, task, choice, deadline).await {
            Ok(manifest) => return Ok(manifest),
            Err(refused) => refused,
        },
        Err(error) => Refused {
            allows_fallback: error.allows_fallback(),
            status: status::manifest(&error),
        },
    };
    // A fallback policy is for a prefix of which nothing is stored.
    let by_policy = || {
        let unknown = core
            .priors
            .find(query.prefix_hash, query.query_hash, "")
            .is_none();
        unknown && !query.fallback_policy.is_empty()
    };
    if refused.allows_fallback && (request.allow_fallback || by_policy()) {
        return stored(core, query, Reason::OnlineUnavailable, deadline).await;
    }
    Err(refused.status)
}

// The stored prior answers, once its rankings are there.
async fn stored(
    core: &Arc<Core>,
    query: &ManifestQuery<'_>,
    reason: Reason,
    deadline: Deadline,
) -> Result<Manifest, Status> {
    core.metrics.scorer.fallbacks.inc();
    let manifest = match stored_instead(&core.priors, query, reason) {
        Err(ManifestError::LoadPerHead(prior)) => {
            super::routing::load_per_head(core, prior, deadline).await?;
            stored_instead(&core.priors, query, reason)
        }
        answered => answered,
    };
    manifest.map_err(|error| status::manifest(&error))
}

/// No scored answer.
struct Refused {
    /// What was asked for is sound: the stored prior may answer instead.
    allows_fallback: bool,
    status: Status,
}

impl From<Status> for Refused {
    fn from(status: Status) -> Refused {
        Refused {
            allows_fallback: false,
            status,
        }
    }
}

async fn score(
    core: &Core,
    task: Task,
    choice: Choice,
    deadline: Deadline,
) -> Result<Manifest, Refused> {
    let metrics = &core.metrics.scorer;
    let Ok(scored) = core.scorer.submit(task) else {
        metrics.refused.inc();
        return Err(Refused {
            allows_fallback: true,
            status: Status::resource_exhausted("the scorer's queue is full"),
        });
    };
    // Past the deadline the receiver is dropped, and the task with it.
    let scored = deadline.bound(scored).await.inspect_err(|_late| {
        metrics.late.inc();
    })?;
    let scored = scored.map_err(|_| Status::unavailable("the server is stopping"))?;
    let scored = scored.map_err(|error| Refused {
        allows_fallback: error.allows_fallback(),
        status: status::score(&error),
    })?;
    let took_ns = core.clock.now_ns().saturating_sub(deadline.began_ns);
    metrics.observe(took_ns, scored.score_ns, scored.batch);
    if scored.survivors.is_some() {
        metrics.screened.inc();
    }
    choice.manifest(scored).map_err(|error| Refused {
        allows_fallback: false,
        status: status::manifest(&error),
    })
}
