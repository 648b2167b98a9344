//! `quality`: every class of target against a server, each answer judged by what is true by
//! construction.

pub mod ask;
pub mod class;
pub mod donors;
pub mod dump;
pub mod facts;
pub mod report;
#[cfg(test)]
mod tests;
pub mod verses;
pub mod words;
pub mod world;

use std::{collections::HashMap, time::Duration};

use kvatlas_proto::v1::{
    Discovery, FindDonorResponse, NamespaceSelector, RemoveDonorsRequest,
    donors_client::DonorsClient, remove_donors_request::What,
};
use tokio::time::{Instant, MissedTickBehavior, interval};
use tonic::transport::Channel;

use crate::{
    args::{CommonArgs, QualityArgs},
    error::LoadtestError,
    prompts::VOCABULARY,
    random::Random,
    server::Server,
    wire::{Method, connect},
};
use ask::Question;
use class::QualityClass;
pub use report::QualityReport;
use report::{ClassReport, ClassTally};
use world::World;

const CALL: &str = "FindDonor";
const PATH: &str = "/kvatlas.v1.Donors/FindDonor";
/// Vectors of texts come behind the acknowledgement, those of a thousand donors minutes behind;
/// they are waited for so long, and asked for so seldom that the questions do not take the model.
const INDEXED_TIMEOUT: Duration = Duration::from_secs(900);
const INDEXED_EVERY: Duration = Duration::from_secs(2);
/// Donors whose text must be found before paraphrases are asked.
const INDEXED_PROBES: usize = 16;

/// Registers, asks, judges.
///
/// # Errors
/// When the server cannot be started or reached, refuses a donor or a look-up, or contradicts
/// itself.
pub async fn measure(args: &QualityArgs) -> Result<QualityReport, LoadtestError> {
    let world = World::new(args)?;
    if let Some(folder) = &args.dump {
        dump::write(folder, &world)?;
    }
    let server = Server::of(&with_text(args))?;
    let channel = connect(&server.address, 1).await?.remove(0);
    donors::register(channel.clone(), &world.donors).await?;
    let mut asker = Asker {
        method: Method::new(channel.clone(), PATH),
        world: &world,
    };
    asker.check_hidden_donors().await?;
    if args.embedding_model.is_some() {
        asker.await_indexed().await?;
    }
    let mut tallies: HashMap<QualityClass, ClassTally> = HashMap::new();
    for question in &world.questions {
        if not_asked(question.class, args).is_none() {
            let answer = asker.ask(question).await?;
            let judged = question.judge(&answer, &world.donors).map_err(wrong)?;
            tallies
                .entry(question.class)
                .or_default()
                .add(question, &judged);
        }
    }
    if args.common.address.is_some() {
        remove(channel, &world).await?;
    }
    let report = |class: QualityClass| match tallies.remove(&class) {
        Some(tally) => (class.name(), tally.report()),
        None => (class.name(), ClassReport::not_asked(not_asked(class, args))),
    };
    Ok(QualityReport {
        seed: args.common.seed,
        donors: world.donors.len(),
        tokens: args.tokens,
        classes: QualityClass::all().map(report).collect(),
    })
}

/// Why a class is not asked.
const fn not_asked(class: QualityClass, args: &QualityArgs) -> Option<&'static str> {
    match class {
        QualityClass::Paraphrase if args.verses.is_none() => Some("no --verses"),
        QualityClass::Paraphrase if args.embedding_model.is_none() => Some("no --embedding-model"),
        QualityClass::Tokens(_)
        | QualityClass::Paraphrase
        | QualityClass::FactFlip
        | QualityClass::Benign
        | QualityClass::CrossNamespace => None,
    }
}

/// The flags of the server, with those that let it keep and embed texts.
fn with_text(args: &QualityArgs) -> CommonArgs {
    let mut common = args.common.clone();
    let server = &mut common.server;
    server.push("--text".into());
    if let Some(folder) = &args.embedding_model {
        server.extend(["--embedding-model".into(), folder.into()]);
    }
    if let Some(library) = &args.onnxruntime {
        server.extend(["--onnxruntime".into(), library.into()]);
    }
    common
}

/// Asks one look-up at a time.
#[derive(Debug)]
struct Asker<'a> {
    method: Method<FindDonorResponse>,
    world: &'a World,
}

impl Asker<'_> {
    async fn ask(&mut self, question: &Question) -> Result<FindDonorResponse, LoadtestError> {
        self.method
            .call(question.request())
            .await
            .map_err(|status| LoadtestError::call(CALL, status))
    }

    /// Each donor of another namespace is found where it is, so that it could be found elsewhere.
    async fn check_hidden_donors(&mut self) -> Result<(), LoadtestError> {
        let world = self.world;
        for question in &world.questions {
            let (QualityClass::CrossNamespace, Some(source)) = (question.class, question.source)
            else {
                continue;
            };
            let hidden = &world.donors[source];
            let control = Question {
                namespace: hidden.namespace.clone(),
                ..question.clone()
            };
            let answer = self.ask(&control).await?;
            if answer
                .r#match
                .is_none_or(|found| found.donor_id != hidden.id)
            {
                return Err(wrong(
                    "a donor is not found in its own namespace".to_owned(),
                ));
            }
        }
        Ok(())
    }

    /// Waits until the texts of the verses have vectors: until each of some donors is found by its
    /// own text, beside tokens that say nothing.
    async fn await_indexed(&mut self) -> Result<(), LoadtestError> {
        let until = Instant::now() + INDEXED_TIMEOUT;
        let mut pause = interval(INDEXED_EVERY);
        pause.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let world = self.world;
        let apart = world.verses.len().div_ceil(INDEXED_PROBES).max(1);
        let last = world.verses.last().into_iter();
        for &source in world.verses.iter().step_by(apart).chain(last) {
            let probe = probe(source, world);
            loop {
                let answer = self.ask(&probe).await?;
                let found = answer.neighbours.iter().any(|near| {
                    near.donor_id == world.donors[source].id && near.discovery() == Discovery::Text
                });
                if found {
                    break;
                }
                if Instant::now() >= until {
                    return Err(wrong("texts have no vectors yet".to_owned()));
                }
                pause.tick().await;
            }
        }
        Ok(())
    }
}

/// A look-up that only the donor's text can answer.
fn probe(source: usize, world: &World) -> Question {
    let donor = &world.donors[source];
    let mut random = Random::new(source as u64);
    Question {
        class: QualityClass::Paraphrase,
        tokens: donor
            .tokens
            .iter()
            .map(|_| random.below_u32(VOCABULARY))
            .collect(),
        text: donor.text.clone(),
        namespace: donor.namespace.clone(),
        best: donor.tokens.len(),
        source: Some(source),
        change: None,
    }
}

/// Leaves nothing behind on a server that runs elsewhere.
async fn remove(channel: Channel, world: &World) -> Result<(), LoadtestError> {
    let mut client = DonorsClient::new(channel);
    let mut removed: Vec<&NamespaceSelector> = Vec::new();
    for donor in &world.donors {
        if removed.contains(&&donor.namespace) {
            continue;
        }
        removed.push(&donor.namespace);
        client
            .remove_donors(RemoveDonorsRequest {
                what: Some(What::Namespace(donor.namespace.clone())),
            })
            .await
            .map_err(|status| LoadtestError::call("RemoveDonors", status))?;
    }
    Ok(())
}

fn wrong(reason: String) -> LoadtestError {
    LoadtestError::WrongAnswer { call: CALL, reason }
}
