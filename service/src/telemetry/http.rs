//! The HTTP port: /healthz for probes, /metrics for Prometheus, and the console.

use std::sync::Arc;

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use tokio::sync::watch;

use super::console::{self, Console};

/// Where the server is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    Starting,
    Ready,
    Draining,
}

/// Returns once the server drains.
pub async fn draining(mut stage: watch::Receiver<Stage>) {
    // An error means that the server is gone, which is as good as draining.
    let _gone = stage.wait_for(|stage| *stage == Stage::Draining).await;
}

/// What the pages are made from.
#[derive(Clone)]
pub struct Pages {
    pub stage: watch::Receiver<Stage>,
    /// The text exposition; empty while starting.
    pub metrics: Arc<dyn Fn() -> String + Send + Sync>,
    pub console: Console,
}

impl std::fmt::Debug for Pages {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Pages")
            .field("stage", &*self.stage.borrow())
            .finish_non_exhaustive()
    }
}

pub fn router(pages: Pages) -> Router {
    let console = console::router(pages.console.clone());
    Router::new()
        .route("/healthz", get(healthz))
        .route("/metrics", get(metrics))
        .with_state(pages)
        .merge(console)
}

async fn healthz(State(pages): State<Pages>) -> Response {
    let stage = *pages.stage.borrow();
    let (status, text) = match stage {
        Stage::Starting => (StatusCode::SERVICE_UNAVAILABLE, "starting\n"),
        Stage::Ready => (StatusCode::OK, "ok\n"),
        Stage::Draining => (StatusCode::SERVICE_UNAVAILABLE, "draining\n"),
    };
    (status, text).into_response()
}

async fn metrics(State(pages): State<Pages>) -> Response {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], (pages.metrics)()).into_response()
}
