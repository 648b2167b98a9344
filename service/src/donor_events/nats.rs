//! Events from a NATS server: subscribes, and again whenever the connection was lost.
//!
//! What is published while there is no connection is lost (NATS core keeps nothing); the numbers of
//! the events tell, once there is a connection again.

use std::{
    fmt,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_nats::{Client, ConnectOptions, Event as ConnectionEvent, ServerAddr};
use thiserror::Error;
use tokio_stream::StreamExt;

use super::intake::Intake;

/// Where providers publish.
pub const SUBJECT: &str = "semantic-kv-events";
/// Most sources, and longest address or subject of one, in bytes.
pub const SOURCES_MAX: usize = 64;
pub const SOURCE_BYTES_MAX: usize = 1024;

/// Pauses between two tries to connect double from the first to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LAST_PAUSE: Duration = Duration::from_secs(5);
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// A connection on which nothing is heard for some of these is given up.
const PING_EVERY: Duration = Duration::from_secs(20);
/// Messages that may wait between the connection and the queue; they are moved on at once.
const MESSAGES_MAX: usize = 4096;

/// A server and a subject, as an operator gives them. What can be a secret is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct NatsSource {
    /// Without credentials.
    address: ServerAddr,
    credentials: Option<Credentials>,
    subject: String,
}

#[derive(Clone, PartialEq, Eq)]
enum Credentials {
    Token(String),
    User(String, String),
}

/// Why a source is not understood. It says nothing of what was given: that may be a secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum BadSource {
    #[error(
        "--donor-events: must be nats://HOST:PORT or tls://HOST:PORT, then perhaps ,subject=SUBJECT"
    )]
    Form,
    #[error("--donor-events: the address cannot be read")]
    Address,
    #[error("--donor-events: the subject has a blank or nothing between two dots")]
    Subject,
    #[error("--donor-events: a user, password or token is not percent-encoded UTF-8")]
    Credentials,
    #[error("--donor-events: more than {SOURCE_BYTES_MAX} bytes")]
    Long,
    #[error("--donor-events: more than {SOURCES_MAX} sources")]
    TooMany,
}

impl NatsSource {
    /// Reads `nats://[user:password@|token@]host[:port][,subject=name]`; `tls://` encrypts.
    ///
    /// # Errors
    /// When it is not of that form.
    pub fn parse(text: &str) -> Result<NatsSource, BadSource> {
        if text.len() > SOURCE_BYTES_MAX {
            return Err(BadSource::Long);
        }
        // A password may have commas.
        let (url, subject) = text.rsplit_once(",subject=").unwrap_or((text, SUBJECT));
        if !(url.starts_with("nats://") || url.starts_with("tls://")) {
            return Err(BadSource::Form);
        }
        let is_whole = |part: &str| !part.is_empty() && !part.contains(char::is_whitespace);
        if !subject.split('.').all(is_whole) {
            return Err(BadSource::Subject);
        }
        let address: ServerAddr = url.parse().map_err(|_| BadSource::Address)?;
        let mut url = address.into_inner();
        let has_path = !matches!(url.path(), "" | "/");
        if !url.host_str().is_some_and(is_host) || has_path || url.query().is_some() {
            return Err(BadSource::Form);
        }
        let user = percent_decoded(url.username()).ok_or(BadSource::Credentials)?;
        let password = url.password().map(percent_decoded);
        let credentials = match (user, password) {
            (user, None) if user.is_empty() => None,
            (token, None) => Some(Credentials::Token(token)),
            (user, Some(password)) => {
                let password = password.ok_or(BadSource::Credentials)?;
                Some(Credentials::User(user, password))
            }
        };
        let cleared = url.set_username("").and_then(|()| url.set_password(None));
        cleared.map_err(|()| BadSource::Address)?;
        Ok(NatsSource {
            address: ServerAddr::from_url(url).map_err(|_| BadSource::Address)?,
            credentials,
            subject: subject.to_owned(),
        })
    }

    fn options(&self) -> ConnectOptions {
        let options = ConnectOptions::new()
            .name("kvatlas")
            .retry_on_initial_connect()
            .max_reconnects(None)
            .ignore_discovered_servers()
            .connection_timeout(CONNECT_MAX)
            .ping_interval(PING_EVERY)
            .subscription_capacity(MESSAGES_MAX)
            .reconnect_delay_callback(pause);
        match &self.credentials {
            None => options,
            Some(Credentials::Token(token)) => options.token(token.clone()),
            Some(Credentials::User(user, password)) => {
                options.user_and_password(user.clone(), password.clone())
            }
        }
    }
}

impl fmt::Display for NatsSource {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}", self.address.host(), self.address.port())
    }
}

impl fmt::Debug for NatsSource {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

/// Hands everything that is published to the intake, until `end`.
pub async fn follow(source: NatsSource, intake: Arc<Intake>, end: impl Future<Output = ()>) {
    let mut end = pin!(end);
    let mut tries = 0;
    intake.metrics.sources.inc();
    loop {
        let ended = tokio::select! {
            () = &mut end => true,
            () = subscribed(&source, &intake) => false,
        };
        if ended {
            break;
        }
        // The connection's own task has ended, which it does only where it cannot go on.
        tracing::warn!(server = %source, "the subscription to donor events has ended");
        tries += 1;
        tokio::select! {
            () = &mut end => break,
            () = tokio::time::sleep(pause(tries)) => {}
        }
    }
    intake.metrics.sources.dec();
}

// Until the subscription ends.
async fn subscribed(source: &NatsSource, intake: &Arc<Intake>) {
    let link = Arc::new(Link {
        server: source.to_string(),
        intake: Arc::clone(intake),
        is_connected: AtomicBool::new(false),
        has_told: AtomicBool::new(false),
    });
    let _down = DownAtEnd(Arc::clone(&link));
    let told = Arc::clone(&link);
    let options = source.options().event_callback(move |event| {
        told.tell(&event);
        std::future::ready(())
    });
    let Ok(client) = options.connect(source.address.clone()).await else {
        return;
    };
    receive(&client, source, intake).await;
}

async fn receive(client: &Client, source: &NatsSource, intake: &Intake) {
    let Ok(mut messages) = client.subscribe(source.subject.clone()).await else {
        return;
    };
    while let Some(message) = messages.next().await {
        if intake.try_take(message.payload).is_err() {
            intake.metrics.overrun.inc();
        }
    }
}

/// What is known of a connection.
struct Link {
    server: String,
    intake: Arc<Intake>,
    is_connected: AtomicBool,
    /// That there is no connection.
    has_told: AtomicBool,
}

impl Link {
    fn tell(&self, event: &ConnectionEvent) {
        let server = &self.server;
        match event {
            ConnectionEvent::Connected => {
                self.set(true);
                self.has_told.store(false, Ordering::Release);
                tracing::info!(%server, "connected for donor events");
            }
            ConnectionEvent::Disconnected | ConnectionEvent::Closed => {
                self.set(false);
                self.tell_once();
            }
            // A try to connect has failed.
            ConnectionEvent::ClientError(_) => self.tell_once(),
            // What overran the queue in front of ours.
            ConnectionEvent::SlowConsumer(_) => {
                self.intake.metrics.overrun.inc();
            }
            // The server's own words, which may quote what it was told.
            ConnectionEvent::ServerError(_) => {
                tracing::warn!(%server, "the server of donor events refuses something");
            }
            ConnectionEvent::LameDuckMode | ConnectionEvent::Draining => {}
        }
    }

    fn tell_once(&self) {
        if !self.has_told.swap(true, Ordering::AcqRel) {
            tracing::warn!(server = %self.server, "no connection for donor events");
        }
    }

    fn set(&self, is_connected: bool) {
        let was_connected = self.is_connected.swap(is_connected, Ordering::AcqRel);
        let connected = &self.intake.metrics.sources_connected;
        connected.inc_by(i64::from(is_connected) - i64::from(was_connected));
    }
}

/// Also when the task is cut off.
struct DownAtEnd(Arc<Link>);

impl Drop for DownAtEnd {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

// A misspelt option would be a part of the host.
fn is_host(host: &str) -> bool {
    let is_good = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte);
    !host.is_empty() && host.bytes().all(is_good)
}

fn pause(tries: usize) -> Duration {
    let doublings = u32::try_from(tries.saturating_sub(1)).unwrap_or(u32::MAX);
    let factor = 2_u32.saturating_pow(doublings.min(16));
    FIRST_PAUSE.saturating_mul(factor).min(LAST_PAUSE)
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = text.bytes();
    let mut decoded = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            decoded.push(byte);
            continue;
        }
        let digit = |byte: u8| {
            char::from(byte)
                .to_digit(16)
                .and_then(|it| u8::try_from(it).ok())
        };
        decoded.push(digit(bytes.next()?)? << 4 | digit(bytes.next()?)?);
    }
    String::from_utf8(decoded).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "S3CRET";

    // Server, subject, and what goes along as token or user and password.
    fn check(text: &str, server: &str, subject: &str, credentials: Option<&Credentials>) {
        let source = NatsSource::parse(text).unwrap();
        assert_eq!(source.to_string(), server, "{text}");
        assert_eq!(source.subject, subject, "{text}");
        assert!(source.credentials.as_ref() == credentials, "{text}");
        let shown = format!("{source:?} {:?}", source.address);
        assert!(!shown.contains(SECRET), "{shown}");
    }

    #[test]
    fn a_source_is_a_server_a_subject_and_who_asks() {
        let token = Credentials::Token(SECRET.into());
        let user = |password: &str| Credentials::User("u".into(), password.into());
        check("nats://host", "host:4222", SUBJECT, None);
        check("tls://host:1/", "host:1", SUBJECT, None);
        check("nats://[::1]:2", "::1:2", SUBJECT, None);
        check("nats://host:3,subject=a.b", "host:3", "a.b", None);
        check("nats://S3CRET@host", "host:4222", SUBJECT, Some(&token));
        check(
            "nats://u:S3CRET@host",
            "host:4222",
            SUBJECT,
            Some(&user(SECRET)),
        );
        let spelled = "nats://u:%53%33CRET%2C%40@host,subject=*";
        check(spelled, "host:4222", "*", Some(&user("S3CRET,@")));
    }

    #[test]
    fn what_is_no_source_is_not_quoted() {
        let long = format!("nats://{}", "S3CRET".repeat(200));
        let cases = [
            ("S3CRET", BadSource::Form),
            ("ws://S3CRET", BadSource::Form),
            ("nats://", BadSource::Form),
            ("nats://S3CRET:99999", BadSource::Address),
            ("nats://host/S3CRET", BadSource::Form),
            ("nats://host?S3CRET", BadSource::Form),
            ("nats://host,S3CRET=1", BadSource::Form),
            ("nats://host,subject=", BadSource::Subject),
            ("nats://host,subject=S3CRET..", BadSource::Subject),
            ("nats://host,subject=S3CRET a", BadSource::Subject),
            ("nats://%FFS3CRET@host", BadSource::Credentials),
            ("nats://u:S3CRET%4@host", BadSource::Credentials),
            (&long, BadSource::Long),
        ];
        for (text, expected) in cases {
            let refused = NatsSource::parse(text).unwrap_err();
            assert_eq!(refused, expected, "{text}");
            assert!(!refused.to_string().contains(SECRET), "{refused}");
        }
    }

    #[test]
    fn pauses_grow_to_a_bound() {
        let pauses: Vec<u128> = (0..9).map(|tries| pause(tries).as_millis()).collect();
        assert_eq!(pauses, [100, 100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        assert_eq!(pause(usize::MAX), LAST_PAUSE);
    }
}
