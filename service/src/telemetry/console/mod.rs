//! The live console on the HTTP port: `/`, what it looks like, its events, and block maps.

pub mod hub;
pub mod live;
pub mod pulse;
pub mod state;

use std::{convert::Infallible, future::Future, pin::Pin, sync::Arc};

use axum::{
    Router,
    body::Body,
    extract::{RawQuery, State},
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use serde::Serialize;
use tokio_stream::{StreamExt, wrappers::ReceiverStream};

use self::hub::Hub;
use crate::report::html::{SECTIONS, STYLE};

const PAGE: &str = include_str!("assets/console.html");
const SCRIPT: &str = include_str!("assets/console.js");
const CONSOLE_STYLE: &str = include_str!("assets/console.css");
/// Where the page takes the report's sections.
const SECTIONS_MARK: &str = "<!-- sections -->";

/// Nothing but what this server sends, and nothing inline.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
                      connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; \
                      frame-ancestors 'none'";

/// What the console's pages are made from.
#[derive(Clone)]
pub struct Console {
    pub hub: Arc<Hub>,
    pub blocks: Arc<AskBlocks>,
}

impl std::fmt::Debug for Console {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Console")
            .field("hub", &self.hub)
            .finish_non_exhaustive()
    }
}

/// Answers one request for blocks.
pub type AskBlocks = dyn Fn(BlockQuery) -> Asked + Send + Sync;
pub type Asked = Pin<Box<dyn Future<Output = Result<BlockMap, NoBlocks>> + Send>>;

/// Which blocks does a manifest pick?
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BlockQuery {
    pub prefix: String,
    pub k: u32,
    pub policy: String,
    pub algorithm: String,
    /// 0: as many as the prior has.
    pub total_blocks: u32,
}

impl BlockQuery {
    // Of a URL: prefix=c1&k=16&policy=top-k
    fn parse(text: &str) -> Result<BlockQuery, NoBlocks> {
        let number = |name: &str, value: &str| {
            let why = format!("{name}: expected a number from 0 to {}", u32::MAX);
            value.parse().map_err(|_| NoBlocks::Wrong(why))
        };
        let mut query = BlockQuery::default();
        for (name, value) in form_urlencoded::parse(text.as_bytes()) {
            match &*name {
                "prefix" => query.prefix = value.into_owned(),
                "k" => query.k = number("k", &value)?,
                "policy" => query.policy = value.into_owned(),
                "algorithm" => query.algorithm = value.into_owned(),
                "total_blocks" => query.total_blocks = number("total_blocks", &value)?,
                other => {
                    let known = "prefix, k, policy, algorithm, total_blocks";
                    let why = format!(
                        "no parameter has this name of {} bytes: {known}",
                        other.len()
                    );
                    return Err(NoBlocks::Wrong(why));
                }
            }
        }
        Ok(query)
    }
}

/// The blocks that it picks, ascending.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BlockMap {
    pub total_blocks: u32,
    pub blocks: Vec<u32>,
    /// How many heads pick each of them; empty where all heads pick the same.
    pub heads_of: Vec<u32>,
    /// Heads that pick for themselves; 0 where all pick the same.
    pub heads: u32,
    pub policy: String,
    pub provenance: &'static str,
    /// Empty where no prior took part.
    pub algorithm: String,
    pub generation: u64,
    /// Why it is not exactly what was asked for; empty where it is.
    pub reason: &'static str,
}

/// Why there are none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoBlocks {
    /// Nothing is stored under the prefix.
    Unknown(String),
    /// The request does not make sense.
    Wrong(String),
    /// The server starts, ends or has too much to do.
    Busy,
}

/// Serves `/` and what it fetches.
pub fn router(console: Console) -> Router {
    Router::new()
        .route("/", get(async || asset("text/html; charset=utf-8", page())))
        .route(
            "/console.js",
            get(async || asset("text/javascript; charset=utf-8", SCRIPT)),
        )
        .route(
            "/console.css",
            get(async || asset("text/css; charset=utf-8", style())),
        )
        .route("/events", get(events))
        .route("/manifest", get(manifest))
        .with_state(console)
}

fn page() -> String {
    let mut sections = String::new();
    for section in SECTIONS {
        let (id, class) = (section.id, section.class);
        sections += &format!("<section id=\"{id}\" class=\"{class}\"></section>\n");
    }
    PAGE.replace(SECTIONS_MARK, &sections)
}

fn style() -> String {
    [STYLE, CONSOLE_STYLE].concat()
}

fn asset(kind: &'static str, body: impl Into<Body>) -> Response {
    guarded(kind, body.into())
}

fn guarded(kind: &'static str, body: Body) -> Response {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_TYPE, kind),
        (header::CACHE_CONTROL, "no-store"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

async fn events(State(console): State<Console>) -> Response {
    let Some(events) = console.hub.join() else {
        let why = "too many consoles watch already, or the server ends\n";
        return (StatusCode::SERVICE_UNAVAILABLE, why).into_response();
    };
    let events = ReceiverStream::new(events).map(Ok::<_, Infallible>);
    guarded("text/event-stream", Body::from_stream(events))
}

async fn manifest(State(console): State<Console>, RawQuery(query): RawQuery) -> Response {
    let answer = match BlockQuery::parse(&query.unwrap_or_default()) {
        Ok(query) => (console.blocks)(query).await,
        Err(refused) => Err(refused),
    };
    match answer {
        Ok(map) => json(StatusCode::OK, &map),
        Err(refused) => {
            let (status, error) = refused.told();
            json(status, &serde_json::json!({ "error": error }))
        }
    }
}

impl NoBlocks {
    fn told(self) -> (StatusCode, String) {
        match self {
            NoBlocks::Unknown(why) => (StatusCode::NOT_FOUND, why),
            NoBlocks::Wrong(why) => (StatusCode::BAD_REQUEST, why),
            NoBlocks::Busy => {
                let why = "the server starts, ends or has too much to do".to_owned();
                (StatusCode::SERVICE_UNAVAILABLE, why)
            }
        }
    }
}

fn json(status: StatusCode, of: &impl Serialize) -> Response {
    // Only what cannot be a key of a map or a number could fail, and there is none.
    let text = serde_json::to_string(of).unwrap_or_default();
    let mut response = guarded("application/json", text.into());
    *response.status_mut() = status;
    response
}
