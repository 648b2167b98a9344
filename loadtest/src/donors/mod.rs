//! `donors`: latency and memory of FindDonor over many donors, and how often it is right.

pub mod ask;
pub mod register;
pub mod report;

use std::{fs::File, sync::Arc, time::Duration};

use kvatlas_proto::v1::{
    Namespace, NamespaceSelector, RemoveDonorsRequest, donors_client::DonorsClient,
    namespace_selector::Selector, remove_donors_request::What,
};
use tonic::transport::Channel;

use crate::{
    args::DonorsArgs,
    error::LoadtestError,
    judge::PieceIndex,
    measure::{Load, Slice},
    passages,
    prompts::{Class, DonorSet, Library, Target, passages_of},
    random::Random,
    server::Server,
    wire::connect,
};
use ask::{FindCaller, Question};
use register::Registered;
use report::ClassTally;
pub use report::DonorsReport;

/// Passages used when no file is given.
const SAMPLE: &[u8] = include_bytes!("../../../examples/passages.jsonl.gz");
/// Look-ups before latency is measured.
const WARM_UP: Duration = Duration::from_millis(500);
/// The classes whose look-ups, in equal shares, latency is measured with.
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
    library: Library,
    set: Arc<DonorSet>,
    namespace: NamespaceSelector,
    random: Random,
}

/// Registers, asks, judges.
///
/// # Errors
/// When the server cannot be started or reached, or refuses a donor or a look-up.
pub async fn measure(args: &DonorsArgs) -> Result<DonorsReport, LoadtestError> {
    let mut world = World::new(args)?;
    let server = Server::of(&args.common)?;
    let channels = connect(&server.address, args.common.connections).await?;
    let registered = register::all(channels[0].clone(), &world.set, &world.namespace).await?;
    let questions: Arc<[Question]> = world.questions(args.queries).into();

    let mut tallies: Vec<ClassTally> = Class::ALL.map(ClassTally::new).into();
    let mut caller = FindCaller::new(&channels, Arc::clone(&questions), Arc::clone(&world.set));
    for (at, question) in questions.iter().enumerate() {
        let answer = caller.ask(at).await?;
        if let Some(tally) = tallies
            .iter_mut()
            .find(|tally| tally.class == question.class)
        {
            tally.add(&answer);
        }
    }
    let loaded = load(args, &world, &questions, &channels).await;
    let memory = server.memory()?;
    if args.common.address.is_some() {
        remove(channels[0].clone(), world.namespace).await?;
    }
    Ok(DonorsReport::new(&tallies, registered, loaded, memory))
}

impl World {
    fn new(args: &DonorsArgs) -> Result<Self, LoadtestError> {
        let passages = match &args.passages {
            Some(path) => passages::parse(File::open(path)?)?,
            None => passages::parse(SAMPLE)?,
        };
        let mut random = Random::new(args.common.seed);
        let library = Library::new(passages, args.distinct_passages, &mut random);
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
        let set = DonorSet::new(&library, args.donors, args.tokens, &mut random);
        Ok(Self {
            library,
            set: Arc::new(set),
            namespace: own_namespace(),
            random,
        })
    }

    /// So many of each class, with what the best donor covers.
    fn questions(&mut self, of_each: usize) -> Vec<Question> {
        let index = PieceIndex::new(&self.set, &self.library);
        let mut questions = Vec::with_capacity(Class::ALL.len() * of_each);
        for class in Class::ALL {
            let sources: Vec<usize> = (0..self.set.donors.len())
                .filter(|&donor| self.set.donors[donor].group == class.group())
                .collect();
            for _ in 0..of_each {
                let source = sources[self.random.below(sources.len())];
                let target = Target::new(class, source, &self.set, &self.library, &mut self.random);
                let best = index.best_coverage(&target, &self.set, &self.library);
                questions.push(Question::new(target, best, &self.namespace));
            }
        }
        questions
    }
}

async fn load(
    args: &DonorsArgs,
    world: &World,
    questions: &Arc<[Question]>,
    channels: &[Channel],
) -> Slice {
    let mut mixed: Vec<Question> = questions
        .iter()
        .filter(|question| LOAD_CLASSES.contains(&question.class))
        .cloned()
        .collect();
    world.random.clone().shuffle(&mut mixed);
    let caller = FindCaller::new(channels, mixed.into(), Arc::clone(&world.set));
    let load = Load {
        concurrency: args.concurrency,
        rate: args.rate,
        turn: Duration::from_millis(args.load_ms as u64),
    };
    let warm_up = Load {
        turn: WARM_UP.min(load.turn),
        ..load
    };
    warm_up.on(&caller).await;
    load.on(&caller).await
}

/// A namespace that no other run uses, also on a server that runs elsewhere.
fn own_namespace() -> NamespaceSelector {
    let text = str::to_owned;
    let namespace = Namespace {
        model: format!("loadtest-{}", std::process::id()),
        model_revision: text("main"),
        tokenizer: text("loadtest"),
        tokenizer_revision: text("main"),
        tokenization: text("none"),
        chat_template: text("none"),
        dtype: text("bfloat16"),
        kv_cache_dtype: text("auto"),
        block_size: register::BLOCK_TOKENS,
        kv_layout: text("NHD"),
        attention_backend: text("flash_attn"),
        tensor_parallel_size: 1,
        pipeline_parallel_size: 1,
        adapter: text("none"),
        rope_scaling: text("none"),
        multimodal_hashes: Vec::new(),
        tenant_key: text("semblend:tenant:v1:none"),
    };
    NamespaceSelector {
        selector: Some(Selector::Namespace(namespace)),
    }
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
