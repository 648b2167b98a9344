//! `priors`: how long a prior takes to import, and a server to start with many of them.

use std::{sync::Arc, time::Duration};

use serde::Serialize;

use crate::{
    args::PriorsArgs,
    error::LoadtestError,
    manifest::{Asked, ManifestCaller},
    measure::{Caller, median},
    prior::TestPrior,
    random::Random,
    server::{Server, no_restart},
    wire::{Shown, connect},
};

/// What `priors --json` prints.
#[derive(Debug, Serialize)]
pub struct PriorsReport {
    pub priors: usize,
    pub import_ms_p50: f64,
    pub import_ms_max: f64,
    /// From the start of the process until it answers.
    pub start_s: f64,
}

/// Puts the priors, starts the server anew, and asks for every one of them.
///
/// # Errors
/// When the server cannot be started or reached, or an answer is wrong.
pub async fn measure(args: &PriorsArgs) -> Result<PriorsReport, LoadtestError> {
    if args.common.address.is_some() {
        return Err(no_restart());
    }
    let server = Server::of(&args.common)?;
    let channel = connect(&server.address, 1).await?.remove(0);
    let mut random = Random::new(args.common.seed);
    let mut asked = Vec::with_capacity(args.count * 2);
    let mut import_ms = Vec::with_capacity(args.count);
    for index in 0..args.count {
        let prior = TestPrior::new(index, args.shape.into(), &mut random);
        import_ms.push(prior.put(channel.clone(), &Shown::default()).await?);
        asked.extend(Asked::about(&prior));
    }
    drop(channel);
    let (server, start) = server.restarted(&args.common)?;
    ask_all(&server, asked.into()).await?;
    Ok(PriorsReport::new(&import_ms, start))
}

impl PriorsReport {
    fn new(import_ms: &[f64], start: Duration) -> Self {
        Self {
            priors: import_ms.len(),
            import_ms_p50: median(import_ms),
            import_ms_max: import_ms.iter().copied().fold(0.0, f64::max),
            start_s: start.as_secs_f64(),
        }
    }

    /// For people.
    #[must_use]
    pub fn table(&self) -> String {
        format!(
            "priors imported          {}\n\
             import, median           {:.1} ms\n\
             import, longest          {:.1} ms\n\
             start with all of them   {:.2} s\n",
            self.priors, self.import_ms_p50, self.import_ms_max, self.start_s
        )
    }
}

async fn ask_all(server: &Server, asked: Arc<[Asked]>) -> Result<(), LoadtestError> {
    let channels = connect(&server.address, 1).await?;
    let count = asked.len() as u64;
    let mut caller = ManifestCaller::new(&channels, asked);
    for ordinal in 0..count {
        caller
            .call(ordinal)
            .await
            .map_err(|reason| LoadtestError::WrongAnswer {
                call: "GetManifest",
                reason,
            })?;
    }
    Ok(())
}
