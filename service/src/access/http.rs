//! The HTTP port behind the gate: an operator's token, as a bearer's or as a password.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use axum::{
    Router,
    body::{Body, Bytes, HttpBody},
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, StatusCode, header},
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse, Response},
};
use base64::{Engine, prelude::BASE64_STANDARD};
use http_body::Frame;

use super::{
    Access, Bearer, Gate, Refusal,
    grant::{Call, Callers},
};
use crate::config::Exposure;

/// What probes ask for.
const HEALTH_PATH: &str = "/healthz";
/// Every other page shows what belongs to all tenants.
const PAGE: Call = Call {
    path: "/",
    callers: Callers::WholeServer,
    is_stream: false,
};
const PROBE: Call = Call {
    path: HEALTH_PATH,
    callers: Callers::Health,
    is_stream: false,
};

/// Puts the gate in front of every page.
pub fn guard(router: Router, access: Access) -> Router {
    if access.gate().is_none() && access.health != Exposure::Off {
        return router;
    }
    router.layer(from_fn_with_state(access, check))
}

async fn check(State(access): State<Access>, request: Request, next: Next) -> Response {
    let call = if request.uri().path() == HEALTH_PATH {
        &PROBE
    } else {
        &PAGE
    };
    if call.callers == Callers::Health && access.health == Exposure::Off {
        return StatusCode::NOT_FOUND.into_response();
    }
    let gate = match access.gate() {
        Some(gate) if !access.is_open(call) => gate,
        Some(_) | None => return next.run(request).await,
    };
    match enter(gate, call, request.headers()) {
        Ok(bearer) => {
            let response = next.run(request).await;
            response.map(|body| {
                Body::new(Ending {
                    body,
                    ends: Box::pin(bearer.ends()),
                })
            })
        }
        Err(refusal) => refused(&refusal),
    }
}

fn enter(gate: &Gate, call: &Call, headers: &HeaderMap) -> Result<Arc<Bearer>, Refusal> {
    let given = headers
        .get(header::AUTHORIZATION)
        .map(HeaderValue::as_bytes);
    match given.and_then(password) {
        Some(password) => {
            let credentials = [b"Bearer ", &password[..]].concat();
            gate.enter(Some(call), Some(&credentials))
        }
        None => gate.enter(Some(call), given),
    }
}

// Browsers ask people for a name and a password: the token is the password, whatever the name.
fn password(credentials: &[u8]) -> Option<Vec<u8>> {
    let scheme = b"basic ";
    let (begin, rest) = credentials.split_at_checked(scheme.len())?;
    if !begin.eq_ignore_ascii_case(scheme) {
        return None;
    }
    let mut both = BASE64_STANDARD.decode(rest).ok()?;
    let colon = both.iter().position(|byte| *byte == b':')?;
    Some(both.split_off(colon + 1))
}

fn refused(refusal: &Refusal) -> Response {
    let text = format!("{refusal}\n");
    match refusal {
        Refusal::NoToken | Refusal::NotBearer | Refusal::UnknownToken | Refusal::Ended => {
            let ask = [(header::WWW_AUTHENTICATE, "Basic realm=\"kvatlas\", Bearer")];
            (StatusCode::UNAUTHORIZED, ask, text).into_response()
        }
        Refusal::Role(_) | Refusal::Scope | Refusal::Namespace | Refusal::Worker => {
            (StatusCode::FORBIDDEN, text).into_response()
        }
        Refusal::Rate { .. } => {
            let again = [(header::RETRY_AFTER, refusal.retry_after_s().to_string())];
            (StatusCode::TOO_MANY_REQUESTS, again, text).into_response()
        }
    }
}

/// A page, until its token ends: pages that go on would outlive it.
struct Ending {
    body: Body,
    ends: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl HttpBody for Ending {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.ends.as_mut().poll(context).is_ready() {
            return Poll::Ready(Some(Err(axum::Error::new(Refusal::Ended))));
        }
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.body.size_hint()
    }
}
