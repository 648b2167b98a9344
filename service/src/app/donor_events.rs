//! Starts what takes events about donors of other providers: the intake, and the subscriptions.

use std::sync::Arc;

use tokio::sync::watch;

use super::AppError;
use crate::{
    donor_events::{
        intake::Intake,
        nats::{self, NatsSource},
    },
    donors::announced::{Announced, Capacity},
    rpc::near::NearParts,
    supervise::Supervisor,
    telemetry::{
        http::{Stage, draining},
        metrics::Metrics,
    },
};

/// What is announced can be asked for by the vectors of the model here, and by no others.
pub(super) fn intake(
    supervisor: &Supervisor,
    near: &NearParts,
    metrics: &Metrics,
) -> Result<Arc<Intake>, AppError> {
    let dimensions = near.embedder.as_ref().map(|it| it.dimensions());
    let announced = Arc::new(Announced::new(dimensions, Capacity::default()));
    let intake = Intake::start(supervisor, announced, metrics.donor_events.clone());
    Ok(Arc::new(intake.map_err(AppError::Thread)?))
}

/// Follows every source until the drain.
pub(super) fn follow(
    sources: Vec<NatsSource>,
    supervisor: &Supervisor,
    intake: &Arc<Intake>,
    stage: &watch::Receiver<Stage>,
) {
    for source in sources {
        let following = nats::follow(source, Arc::clone(intake), draining(stage.clone()));
        supervisor.task("donor-event-source", following);
    }
}
