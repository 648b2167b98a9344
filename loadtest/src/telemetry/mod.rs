//! `telemetry`: what counting, recording and tracing calls costs, against a server that does not.

pub mod collector;
mod world;

use std::{ffi::OsString, sync::Arc, time::Duration};

use serde::Serialize;
use tempfile::TempDir;
use tonic::transport::Channel;

use crate::{
    args::TelemetryArgs,
    child::ServerProcess,
    error::LoadtestError,
    manifest::{Asked, ManifestCaller},
    measure::{Caller, Load, Slice, median},
    server::Server,
    table::Table,
    wire::connect,
};
use world::World;

/// The most that all telemetry may take of a rate, or add to a latency.
const COST_MAX: f64 = 0.05;
const WARM_UP: Duration = Duration::from_millis(500);
/// How long records may be on their way into the log after the last call.
const SETTLE_MAX: Duration = Duration::from_secs(10);

/// Counters of the server that has all of it: that it was on, and that nothing was lost.
const RECORDS: &str = "kvatlas_records_total";
const DROPPED: &str = "kvatlas_records_dropped_total";
const LINES: &str = "kvatlas_audit_lines_total";
const SPANS: &str = "kvatlas_spans_sent_total";

/// What `telemetry --json` prints. Each is a median over the rounds: of rates, and of the ratio of
/// neighbouring turns, so that what slows the machine for a while slows both.
#[derive(Debug, Serialize)]
pub struct TelemetryReport {
    pub manifest: Cost,
    pub find_one: Cost,
    pub find_many: Cost,
    pub records: u64,
    pub records_dropped: u64,
    pub audit_lines: u64,
    pub spans_sent: u64,
    pub failed: u64,
    #[serde(skip)]
    first_failure: Option<String>,
}

/// One kind of call without telemetry, as it is by default, and with all of it.
#[derive(Debug, Serialize)]
pub struct Cost {
    pub in_flight: usize,
    pub rps: [f64; 3],
    pub p50_us: [f64; 3],
    /// Of the rate: with default telemetry, and with all.
    pub rps_cost: [f64; 2],
    pub p50_cost: [f64; 2],
}

/// Off, as by default, all.
const SETTINGS: usize = 3;

/// Rate and p50 of each.
type Round = [(f64, f64); SETTINGS];

struct Servers {
    servers: Vec<Server>,
    channels: Vec<Vec<Channel>>,
    // Behind the servers, so that they end first.
    _collector: ServerProcess,
    _audit: TempDir,
}

/// Measures.
///
/// # Errors
/// When a server cannot be started or reached, or a call fails.
pub async fn measure(args: &TelemetryArgs) -> Result<TelemetryReport, LoadtestError> {
    if args.common.address.is_some() {
        return Err(LoadtestError::Argument {
            argument: "--address",
            reason: "servers with and without telemetry are started for the run".to_owned(),
        });
    }
    let servers = Servers::start(args).await?;
    let world = World::new(args)?;
    let mut manifests = Vec::new();
    let mut finds = Vec::new();
    for channels in &servers.channels {
        let asked: Arc<[Asked]> = world.put_priors(&channels[0]).await?;
        manifests.push(ManifestCaller::new(channels, asked));
        world.register(&channels[0]).await?;
        finds.push(world.finds(channels));
    }
    for server in &servers.servers {
        server.settled(SETTLE_MAX).await?;
    }
    let mut failures = Slice::default();
    let manifest = compare(args, &manifests, args.concurrency, &mut failures).await;
    let find_one = compare(args, &finds, 1, &mut failures).await;
    let find_many = compare(args, &finds, args.finds_in_flight, &mut failures).await;
    let all = &servers.servers[SETTINGS - 1];
    all.settled(SETTLE_MAX).await?;
    Ok(TelemetryReport {
        manifest,
        find_one,
        find_many,
        records: all.metric(RECORDS).await?,
        records_dropped: all.metric(DROPPED).await?,
        audit_lines: all.metric(LINES).await?,
        spans_sent: all.metric(SPANS).await?,
        failed: failures.failed,
        first_failure: failures.first_failure,
    })
}

impl Servers {
    async fn start(args: &TelemetryArgs) -> Result<Servers, LoadtestError> {
        let collector = ServerProcess::start("collector", ["collector-child".into()])?;
        let audit = TempDir::with_prefix("kvatlas-loadtest-audit-")?;
        let endpoint = format!("http://{}", collector.address);
        let off = vec!["--telemetry".into(), "false".into()];
        let all: Vec<OsString> = vec![
            "--audit".into(),
            audit.path().into(),
            "--otlp-endpoint".into(),
            endpoint.into(),
            "--trace-ratio".into(),
            args.trace_ratio.to_string().into(),
        ];
        let (mut servers, mut channels) = (Vec::new(), Vec::new());
        for flags in [off, Vec::new(), all] {
            let mut common = args.common.clone();
            common.server.extend(flags);
            let server = Server::of(&common)?;
            channels.push(connect(&server.address, common.connections).await?);
            servers.push(server);
        }
        Ok(Servers {
            servers,
            channels,
            _collector: collector,
            _audit: audit,
        })
    }
}

// The callers of the three servers take turns.
async fn compare<C: Caller>(
    args: &TelemetryArgs,
    callers: &[C],
    in_flight: usize,
    failures: &mut Slice,
) -> Cost {
    let load = Load {
        concurrency: in_flight,
        rate: None,
        turn: Duration::from_millis(args.turn_ms as u64),
    };
    let warm_up = Load {
        turn: WARM_UP.min(load.turn),
        ..load
    };
    for caller in callers {
        warm_up.on(caller).await;
    }
    let mut rounds = Vec::with_capacity(args.rounds);
    for round in 0..args.rounds {
        let mut seen = [Slice::default(), Slice::default(), Slice::default()];
        // Each is first, second and last equally often: a drift of the machine favours none.
        for turn in 0..SETTINGS {
            let which = (round + turn) % SETTINGS;
            seen[which] = load.on(&callers[which]).await;
        }
        for slice in &seen {
            failures.failed += slice.failed;
            let first = failures.first_failure.take();
            failures.first_failure = first.or(slice.first_failure.clone());
        }
        rounds.push(seen.map(|slice| (slice.per_second(), slice.round_trip.quantile_us(0.5))));
    }
    Cost::new(in_flight, &rounds)
}

impl Cost {
    fn new(in_flight: usize, rounds: &[Round]) -> Cost {
        let over = |of: &dyn Fn(&Round) -> f64| median(&rounds.iter().map(of).collect::<Vec<_>>());
        Cost {
            in_flight,
            rps: [0, 1, 2].map(|which| over(&|round| round[which].0)),
            p50_us: [0, 1, 2].map(|which| over(&|round| round[which].1)),
            rps_cost: [1, 2].map(|which| over(&|round| 1.0 - round[which].0 / round[0].0)),
            p50_cost: [1, 2].map(|which| over(&|round| round[which].1 / round[0].1 - 1.0)),
        }
    }
}

impl TelemetryReport {
    /// Fails where a call failed, where telemetry was not on, and where it costs too much.
    ///
    /// # Errors
    /// With what was wrong first.
    pub fn verdict(&self) -> Result<(), LoadtestError> {
        if let Some(first) = &self.first_failure {
            return Err(LoadtestError::Failed {
                count: self.failed,
                first: first.clone(),
            });
        }
        let wrong = |reason: String| {
            Err(LoadtestError::WrongAnswer {
                call: "telemetry",
                reason,
            })
        };
        if self.audit_lines < self.records || self.spans_sent == 0 || self.records_dropped > 0 {
            return wrong(format!(
                "{} records, {} dropped, {} lines, {} spans",
                self.records, self.records_dropped, self.audit_lines, self.spans_sent
            ));
        }
        for (what, cost) in [
            ("GetManifest's rate", self.manifest.rps_cost[1]),
            ("FindDonor's p50, one in flight", self.find_one.p50_cost[1]),
            ("FindDonor's p50", self.find_many.p50_cost[1]),
        ] {
            if cost > COST_MAX {
                return wrong(format!("all of it costs {:.1} % of {what}", cost * 100.0));
            }
        }
        Ok(())
    }

    /// For people.
    #[must_use]
    pub fn table(&self) -> String {
        let mut table = Table::new(&[
            "call",
            "in flight",
            "telemetry",
            "calls/s",
            "p50 us",
            "cost of rate",
            "cost of p50",
        ]);
        for (call, cost) in [
            ("GetManifest", &self.manifest),
            ("FindDonor", &self.find_one),
            ("FindDonor", &self.find_many),
        ] {
            for (which, name) in ["off", "default", "all"].into_iter().enumerate() {
                let share = |costs: &[f64; 2]| match which.checked_sub(1) {
                    None => "-".to_owned(),
                    Some(at) => format!("{:.1} %", costs[at] * 100.0),
                };
                table.row([
                    call.to_owned(),
                    cost.in_flight.to_string(),
                    name.to_owned(),
                    format!("{:.0}", cost.rps[which]),
                    format!("{:.1}", cost.p50_us[which]),
                    share(&cost.rps_cost),
                    share(&cost.p50_cost),
                ]);
            }
        }
        format!(
            "{}all: {} records, {} dropped, {} lines of the audit log, {} spans taken\n",
            table.render(),
            self.records,
            self.records_dropped,
            self.audit_lines,
            self.spans_sent,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(manifest_rate: f64, find_p50: f64) -> TelemetryReport {
        let cost = |rate: f64, p50: f64| {
            Cost::new(
                1,
                &[[(100.0, 10.0); 2], [(rate, p50); 2]]
                    .map(|[one, other]| [(100.0, 10.0), one, other]),
            )
        };
        TelemetryReport {
            manifest: cost(manifest_rate, 10.0),
            find_one: cost(100.0, find_p50),
            find_many: cost(100.0, 10.0),
            records: 10,
            records_dropped: 0,
            audit_lines: 11,
            spans_sent: 1,
            failed: 0,
            first_failure: None,
        }
    }

    #[test]
    fn what_costs_more_than_the_bar_fails_and_so_does_telemetry_that_was_not_on() {
        assert!(report(96.0, 10.4).verdict().is_ok());
        // Medians of two rounds, of which one costs nothing.
        assert!(report(88.0, 10.0).verdict().is_err());
        assert!(report(100.0, 11.2).verdict().is_err());
        for change in [
            (|it| it.audit_lines = 9) as fn(&mut TelemetryReport),
            |it| it.spans_sent = 0,
            |it| it.records_dropped = 1,
        ] {
            let mut report = report(100.0, 10.0);
            change(&mut report);
            assert!(report.verdict().is_err());
        }
    }
}
