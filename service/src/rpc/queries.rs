//! Queries that are kept under a query_hash for a while.

use std::sync::Arc;

use kvatlas_proto::v1;
use tonic::{Request, Status};

use super::{
    Core,
    convert::queries::{PutQuery, put_query},
    status,
};

#[expect(clippy::unused_async, reason = "as every other handler")]
pub async fn put(
    core: &Arc<Core>,
    request: Request<v1::PutQueryRequest>,
) -> Result<v1::PutQueryResponse, Status> {
    let deadline = core.deadline(request.metadata());
    deadline.check()?;
    let PutQuery {
        query_hash,
        query,
        ttl_ms,
    } = put_query(request.into_inner(), core.limits.query_ttl_ms)?;
    let now_ms = deadline.began_ms;
    let expires_unix_ms = now_ms.saturating_add(ttl_ms.into());
    core.queries
        .put(&query_hash, Arc::new(query), now_ms, expires_unix_ms)
        .map_err(|full| status::queries_full(&full))?;
    Ok(v1::PutQueryResponse { expires_unix_ms })
}
