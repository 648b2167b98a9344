//! Opens the doors: reads who may call and the certificates, and has both read again.

use std::{
    net::IpAddr,
    sync::{Arc, atomic::AtomicU64, atomic::Ordering::Relaxed, mpsc::sync_channel},
};

use tokio::{signal::unix::SignalKind, sync::watch};

use super::AppError;
use crate::{
    access::{
        Access, Gate,
        files::{Watched, read_tokens},
        handshakes,
        tls::{Material, Tls},
    },
    config::{HttpTls, ListenAddress, ServeArgs},
    rpc::clock::Clock,
    supervise::Supervisor,
    telemetry::http::{Stage, draining},
};

/// How callers come in.
#[derive(Debug, Clone)]
pub(super) struct Doors {
    pub(super) access: Access,
    /// Where TCP is encrypted.
    pub(super) tls: Option<Arc<Tls>>,
    /// Where HTTP is.
    pub(super) http_tls: Option<Arc<Tls>>,
    pub(super) handshakes: Arc<handshakes::Counts>,
    files_taken: Arc<AtomicU64>,
    files_refused: Arc<AtomicU64>,
}

/// Reads the files for the first time; the server does not start without what it was given.
pub(super) fn open(args: &ServeArgs, clock: Clock) -> Result<(Doors, Watched), AppError> {
    let flags = &args.access;
    let tokens = match &flags.token_file {
        None => None,
        Some(path) => {
            let (tokens, digest) = read_tokens(path)?;
            let mut key = [0_u8; 16];
            getrandom::fill(&mut key).map_err(|_| AppError::NoRandomness)?;
            let gate = Gate::new(tokens, key, Box::new(move || clock.now_ns()));
            Some((path.clone(), Arc::new(gate), digest))
        }
    };
    let tls = match flags.tls()? {
        None => None,
        Some(files) => {
            let material = Material::read(&files)?;
            let tls = Arc::new(Tls::new(material.configs(flags.http_tls)?));
            Some((files, flags.http_tls, tls, material.digest()))
        }
    };
    let gate = tokens.as_ref().map(|(_, gate, _)| Arc::clone(gate));
    let encrypted = tls.as_ref().map(|(_, _, tls, _)| Arc::clone(tls));
    let doors = Doors {
        access: Access::new(gate, flags.reflection, flags.health),
        http_tls: encrypted.clone().filter(|_| flags.http_tls != HttpTls::Off),
        tls: encrypted,
        handshakes: Arc::default(),
        files_taken: Arc::default(),
        files_refused: Arc::default(),
    };
    warn_of_open_doors(args, &doors);
    let watched = Watched {
        tokens,
        tls,
        taken: Arc::clone(&doors.files_taken),
        refused: Arc::clone(&doors.files_refused),
    };
    Ok((doors, watched))
}

/// Has the files read again when they change, and at once on SIGHUP, until the drain.
pub(super) fn watch_files(
    watched: Watched,
    supervisor: &Supervisor,
    stage: &watch::Receiver<Stage>,
) -> Result<(), AppError> {
    if watched.tokens.is_none() && watched.tls.is_none() {
        return Ok(());
    }
    let (wake, woken) = sync_channel(1);
    // Ends when the task below does.
    let _detached = supervisor
        .thread("access-files", move || watched.run(&woken))
        .map_err(AppError::Thread)?;
    // Here and not in the task: a signal that comes before anybody listens ends the process.
    let hangups = tokio::signal::unix::signal(SignalKind::hangup());
    let stage = stage.clone();
    supervisor.task("access-hangup", async move {
        let mut draining = std::pin::pin!(draining(stage));
        let Ok(mut hangups) = hangups else {
            tracing::error!("SIGHUP cannot be listened to: files are read once a second alone");
            return draining.await;
        };
        loop {
            tokio::select! {
                Some(()) = hangups.recv() => {}
                () = &mut draining => return,
            }
            // Full: it is about to look already.
            let _full = wake.try_send(());
        }
    });
    Ok(())
}

// An address that other machines reach and that asks nobody who he is must not go unnoticed.
fn warn_of_open_doors(args: &ServeArgs, doors: &Doors) {
    let grpc = args.listen.iter().filter_map(|address| match address {
        ListenAddress::Tcp(socket) => Some((*socket, "gRPC", doors.tls.is_some())),
        ListenAddress::Unix(_) => None,
    });
    let http = (args.http_listen, "HTTP", doors.http_tls.is_some());
    for (address, port, is_encrypted) in grpc.chain([http]) {
        if is_loopback(address.ip()) {
            continue;
        }
        if doors.access.gate().is_none() {
            tracing::warn!(
                %address,
                port,
                "ANYBODY WHO REACHES THIS ADDRESS MAY READ AND CHANGE EVERYTHING: set \
                 --token-file, or listen on 127.0.0.1 or a Unix socket"
            );
        } else if !is_encrypted {
            tracing::warn!(
                %address,
                port,
                "tokens and prompts cross the network unencrypted: set --tls-cert and --tls-key"
            );
        }
    }
}

fn is_loopback(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

type Gauge = (&'static str, &'static str, u64);

/// Who was let in, and who was not, since the start.
pub(super) fn gauges(doors: &Doors) -> Vec<Gauge> {
    let handshakes = &doors.handshakes;
    let mut gauges = vec![
        (
            "kvatlas_tls_handshakes_done",
            "TLS handshakes that succeeded",
            handshakes.done.load(Relaxed),
        ),
        (
            "kvatlas_tls_handshakes_failed",
            "TLS handshakes that failed",
            handshakes.failed.load(Relaxed),
        ),
        (
            "kvatlas_tls_handshakes_dropped",
            "TLS handshakes that took too long, or whose place others needed",
            handshakes.dropped.load(Relaxed),
        ),
        (
            "kvatlas_access_files_taken",
            "Times that changed tokens or certificates were taken",
            doors.files_taken.load(Relaxed),
        ),
        (
            "kvatlas_access_files_refused",
            "Times that changed tokens or certificates were not as they should be",
            doors.files_refused.load(Relaxed),
        ),
    ];
    if let Some(gate) = doors.access.gate() {
        let counts = &gate.counts;
        gauges.extend([
            (
                "kvatlas_access_unauthenticated",
                "Calls without a token that counts",
                counts.unauthenticated.load(Relaxed),
            ),
            (
                "kvatlas_access_denied",
                "Calls that their token may not make, or that named what it may not",
                counts.denied.load(Relaxed),
            ),
            (
                "kvatlas_access_limited",
                "Calls and messages beyond their token's limit",
                counts.limited.load(Relaxed),
            ),
        ]);
    }
    gauges
}
