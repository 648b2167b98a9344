//! The rolling window of records, page by page.

use std::sync::Arc;

use kvatlas_proto::v1;
use tonic::Status;

use super::{Core, convert::invalid};
use crate::telemetry::window::WINDOW_RECORDS_MAX;

/// Records of one message: a tenth of a millisecond's work, and some 100 kB.
const PAGE_RECORDS: usize = 256;

/// The pages of one reading. What is pushed out of the window meanwhile is passed over.
pub(super) type Pages = Box<dyn Iterator<Item = Result<v1::ReadWindowResponse, Status>> + Send>;

pub(super) fn read(core: &Arc<Core>, request: v1::ReadWindowRequest) -> Result<Pages, Status> {
    let v1::ReadWindowRequest {
        since_ms,
        records_max,
    } = request;
    let records_max = records_max as usize;
    if records_max > WINDOW_RECORDS_MAX {
        let why = format!("expected at most {WINDOW_RECORDS_MAX}, got {records_max}");
        return Err(invalid("records_max", &why));
    }
    let records_max = if records_max == 0 {
        WINDOW_RECORDS_MAX
    } else {
        records_max
    };
    let recorder = core.recorder.as_ref().map(Arc::clone);
    let recorder = recorder.ok_or_else(|| Status::unavailable("nothing is recorded"))?;
    let since_ms = since_ms.unwrap_or(0);
    let mut left = records_max;
    let mut next = Some(recorder.window_from(since_ms, records_max));
    Ok(Box::new(std::iter::from_fn(move || {
        let from = next.filter(|_| left > 0)?;
        let (lines, more) = recorder.window_page(from, since_ms, PAGE_RECORDS.min(left));
        next = more;
        left -= lines.len();
        (!lines.is_empty()).then_some(Ok(v1::ReadWindowResponse { lines }))
    })))
}
