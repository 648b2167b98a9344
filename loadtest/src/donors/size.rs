//! One number of donors: registers them, asks and judges, loads, restarts.

use std::{
    ffi::OsString,
    fs::File,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use kvatlas_proto::v1::{
    NamespaceSelector, RemoveDonorsRequest, donors_client::DonorsClient,
    remove_donors_request::What,
};
use tonic::transport::Channel;

use super::{
    ask::{FindCaller, Question},
    contention::{self, Callers},
    mixed::{Mixed, MixedCaller},
    register::{self, Registrar},
    report::{ClassTally, Parts, Restart, SizeReport},
};
use crate::{
    args::{CommonArgs, DonorsArgs},
    error::LoadtestError,
    judge::PieceIndex,
    measure::{Load, Slice},
    passages,
    prompts::{Class, DonorSet, Library, Target, passages_of},
    random::Random,
    server::Server,
    wire::connect,
};

/// Passages used when no file is given.
const SAMPLE: &[u8] = include_bytes!("../../../examples/passages.jsonl.gz");
/// Look-ups before latency is measured.
const WARM_UP: Duration = Duration::from_millis(500);
/// Look-ups of each class before any is judged: others than those.
const WARM_UP_OF_EACH: usize = 40;
/// Donors that the loads may add, for which the server's limits leave room.
const ADDED_MAX: usize = 1_000_000;
/// Look-ups that are asked again of the server that was started anew.
const ASKED_AGAIN: usize = 100;
/// The classes whose look-ups, in equal shares, latency under look-ups alone is measured with.
const LOAD_CLASSES: [Class; 8] = [
    Class::Wrapper,
    Class::Reorder,
    Class::Shift,
    Class::Partial,
    Class::Edit,
    Class::Contained,
    Class::Identical,
    Class::Negative,
];

/// Everything that is registered and asked, and what is true of it.
#[derive(Debug)]
struct World {
    set: Arc<DonorSet>,
    namespace: NamespaceSelector,
    random: Random,
    questions: Arc<[Question]>,
    warm_up: Arc<[Question]>,
}

/// Registers, asks, judges.
///
/// # Errors
/// When the server cannot be started or reached, or refuses a donor or a look-up.
pub async fn measure(args: &DonorsArgs, donors: usize) -> Result<SizeReport, LoadtestError> {
    let common = with_room(&args.common, donors, args.tokens);
    let mut server = Server::of(&common)?;
    let empty = server.memory()?;
    let mut channels = connect(&server.address, args.common.connections).await?;
    let mut world = World::new(args, donors)?;
    let registrar = Registrar::new(Arc::clone(&world.set), world.namespace.clone());
    registrar.announce(channels[0].clone()).await?;
    let registered = registrar.bulk(channels[0].clone(), 0..donors).await?;
    let settled = server.settled(milliseconds(args.settle_ms)).await?;
    let memory = server.memory()?;
    world.ask_of_each(args.queries);

    let tallies = world.judged(&channels).await?;
    let turn = milliseconds(args.load_ms);
    let load = world.finds_alone(args, &channels).await;
    let next_donor = Arc::new(AtomicUsize::new(donors));
    let mixed = world
        .mixed(args, &channels, &registrar, &next_donor)
        .await?;

    let contention = if args.contention_donors == donors {
        server.settled(milliseconds(args.settle_ms)).await?;
        let added = contention::donors_of(turn, args.tokens);
        let first = next_donor.fetch_add(added, Ordering::Relaxed);
        let callers = Callers {
            finds: world.finds(&channels, world.load_questions(&LOAD_CLASSES)),
            registrar: registrar.clone(),
            registrations: connect(&server.address, 1).await?.remove(0),
        };
        Some(contention::measure(callers, first..first + added).await?)
    } else {
        None
    };

    let mut restart = None;
    if args.restart_donors == donors && args.common.address.is_none() {
        let again;
        (server, again) = server.restarted(&common)?;
        channels = connect(&server.address, args.common.connections).await?;
        let held = registrar.announce(channels[0].clone()).await?;
        let expected = next_donor.load(Ordering::Relaxed) as u64;
        restart = Some(
            world
                .after_restart(&channels, again, [held, expected])
                .await?,
        );
    }
    if args.common.address.is_some() {
        remove(channels[0].clone(), world.namespace).await?;
    }
    Ok(SizeReport::new(Parts {
        tokens_each: args.tokens,
        registered,
        settled,
        empty,
        memory,
        tallies,
        load,
        mixed,
        contention,
        restart,
    }))
}

impl World {
    fn new(args: &DonorsArgs, donors: usize) -> Result<Self, LoadtestError> {
        let passages = match &args.passages {
            Some(path) => passages::parse(File::open(path)?)?,
            None => passages::parse(SAMPLE)?,
        };
        let mut random = Random::new(args.common.seed);
        let distinct = args.distinct_passages.unwrap_or(donors);
        let library = Library::new(passages, distinct, &mut random);
        let needed = passages_of(args.tokens);
        if library.draw_max() < needed {
            return Err(LoadtestError::Argument {
                argument: "--tokens",
                reason: format!(
                    "such prompts need {needed} unseen passages, the file has {}",
                    library.draw_max()
                ),
            });
        }
        Ok(Self {
            set: Arc::new(DonorSet::new(library, donors, args.tokens, &mut random)),
            namespace: register::selector(register::namespace("growth")),
            random,
            questions: Arc::new([]),
            warm_up: Arc::new([]),
        })
    }

    /// Makes so many look-ups of each class, with what the best donor covers.
    fn ask_of_each(&mut self, of_each: usize) {
        let mut index = PieceIndex::new(&self.set);
        let mut make = |of_each: usize| {
            let mut questions = Vec::with_capacity(Class::ALL.len() * of_each);
            for class in Class::ALL {
                let sources = self.set.members(class.group());
                for _ in 0..of_each {
                    let source = sources.start + self.random.below(sources.len());
                    let target = Target::new(class, source, &self.set, &mut self.random);
                    let best = index.best_coverage(&target, &self.set);
                    questions.push(Question::new(target, best, &self.namespace));
                }
            }
            questions.into()
        };
        self.questions = make(of_each);
        self.warm_up = make(of_each.min(WARM_UP_OF_EACH));
    }

    fn finds(&self, channels: &[Channel], questions: Arc<[Question]>) -> FindCaller {
        let registered = self.set.count + ADDED_MAX;
        FindCaller::new(channels, questions, Arc::clone(&self.set), registered)
    }

    /// The look-ups of some classes, shuffled.
    fn load_questions(&self, classes: &[Class]) -> Arc<[Question]> {
        let mut some: Vec<Question> = self
            .questions
            .iter()
            .filter(|question| classes.contains(&question.class))
            .cloned()
            .collect();
        self.random.clone().shuffle(&mut some);
        some.into()
    }

    /// Every look-up, one at a time. The classes take turns at random, so that a slow moment of the
    /// machine is no class's.
    async fn judged(&self, channels: &[Channel]) -> Result<Vec<ClassTally>, LoadtestError> {
        let caller = |questions: &Arc<[Question]>| {
            let set = Arc::clone(&self.set);
            FindCaller::new(channels, Arc::clone(questions), set, self.set.count)
        };
        let mut warm_up = caller(&self.warm_up);
        for at in 0..self.warm_up.len() {
            warm_up.ask(at).await?;
        }
        let mut caller = caller(&self.questions);
        let mut order: Vec<usize> = (0..self.questions.len()).collect();
        self.random.clone().shuffle(&mut order);
        let mut tallies: Vec<ClassTally> = Class::ALL.map(ClassTally::new).into();
        for at in order {
            let judged = caller.ask(at).await?;
            for tally in &mut tallies {
                if tally.class == self.questions[at].class {
                    tally.add(&judged);
                }
            }
        }
        Ok(tallies)
    }

    async fn finds_alone(&self, args: &DonorsArgs, channels: &[Channel]) -> Slice {
        let caller = self.finds(channels, self.load_questions(&LOAD_CLASSES));
        let load = Load {
            concurrency: args.concurrency,
            rate: args.rate,
            turn: milliseconds(args.load_ms),
        };
        let warm_up = Load {
            turn: WARM_UP.min(load.turn),
            ..load
        };
        warm_up.on(&caller).await;
        load.on(&caller).await
    }

    async fn mixed(
        &self,
        args: &DonorsArgs,
        channels: &[Channel],
        registrar: &Registrar,
        next_donor: &Arc<AtomicUsize>,
    ) -> Result<Mixed, LoadtestError> {
        let finds = self.finds(channels, self.load_questions(&Class::ALL));
        let channel = channels[channels.len() - 1].clone();
        let caller = MixedCaller::new(finds, registrar.clone(), channel, Arc::clone(next_donor));
        caller
            .measure(args.concurrency, milliseconds(args.load_ms))
            .await
    }

    /// Whether a server that was started anew has all donors and answers.
    async fn after_restart(
        &self,
        channels: &[Channel],
        took: Duration,
        [held, expected]: [u64; 2],
    ) -> Result<Restart, LoadtestError> {
        if held != expected {
            return Err(LoadtestError::WrongAnswer {
                call: "AnnounceOwner",
                reason: format!("{held} donors after a restart, {expected} before"),
            });
        }
        // Donors that the loads have added may be as good.
        let questions = self.load_questions(&LOAD_CLASSES);
        let asked = ASKED_AGAIN.min(questions.len());
        let mut caller = self.finds(channels, questions);
        let mut right = 0;
        for at in 0..asked {
            let judged = caller.ask(at).await?;
            right += usize::from(judged.right);
        }
        Ok(Restart {
            start_s: took.as_secs_f64(),
            held_donors: held,
            asked,
            right,
        })
    }
}

/// Limits that leave room for the donors, unless the caller has set them.
fn with_room(common: &CommonArgs, donors: usize, tokens_each: usize) -> CommonArgs {
    let mut common = common.clone();
    let room = donors + ADDED_MAX;
    for (flag, value) in [
        ("--donors-max", room),
        ("--donor-tokens-max", room * tokens_each),
    ] {
        let given = |argument: &OsString| {
            let text = argument.to_string_lossy();
            text == flag || text.starts_with(&format!("{flag}="))
        };
        if !common.server.iter().any(given) {
            let own = format!("{flag}={value}");
            common.server.push(own.into());
        }
    }
    common
}

fn milliseconds(count: usize) -> Duration {
    Duration::from_millis(count as u64)
}

async fn remove(channel: Channel, namespace: NamespaceSelector) -> Result<(), LoadtestError> {
    DonorsClient::new(channel)
        .remove_donors(RemoveDonorsRequest {
            what: Some(What::Namespace(namespace)),
        })
        .await
        .map_err(|status| LoadtestError::call("RemoveDonors", status))?;
    Ok(())
}
