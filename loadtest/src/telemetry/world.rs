//! What the measured servers hold, and what they are asked.

use std::sync::Arc;

use kvatlas_proto::v1::NamespaceSelector;
use tonic::transport::Channel;

use crate::{
    args::TelemetryArgs,
    donors::{
        ask::{FindCaller, Question},
        register::{self, Registrar},
    },
    error::LoadtestError,
    judge::PieceIndex,
    manifest::Asked,
    passages,
    prior::{PriorShape, TestPrior},
    prompts::{Class, DonorSet, Library, Target},
    random::Random,
    wire::Shown,
};

const SAMPLE: &[u8] = include_bytes!("../../../examples/passages.jsonl.gz");
const DONOR_TOKENS: usize = 2048;
const QUESTIONS_OF_EACH: usize = 100;
/// Hits of several kinds, and a miss.
const CLASSES: [Class; 4] = [
    Class::Wrapper,
    Class::Reorder,
    Class::Identical,
    Class::Negative,
];
const PRIORS: usize = 32;
const SHAPE: PriorShape = PriorShape {
    layers: 28,
    kv_heads: 8,
    blocks: 512,
};

pub(super) struct World {
    priors: Vec<TestPrior>,
    set: Arc<DonorSet>,
    namespace: NamespaceSelector,
    questions: Arc<[Question]>,
}

impl World {
    pub(super) fn new(args: &TelemetryArgs) -> Result<World, LoadtestError> {
        let mut random = Random::new(args.common.seed);
        let priors = (0..PRIORS).map(|index| TestPrior::new(index, SHAPE, &mut random));
        let priors = priors.collect();
        let library = Library::new(passages::parse(SAMPLE)?, args.donors, &mut random);
        let set = Arc::new(DonorSet::new(
            library,
            args.donors,
            DONOR_TOKENS,
            &mut random,
        ));
        let namespace = register::selector(register::namespace("telemetry"));
        let mut index = PieceIndex::new(&set);
        let mut questions = Vec::new();
        for class in CLASSES {
            let sources = set.members(class.group());
            for _ in 0..QUESTIONS_OF_EACH {
                let source = sources.start + random.below(sources.len());
                let target = Target::new(class, source, &set, &mut random);
                let best = index.best_coverage(&target, &set);
                questions.push(Question::new(target, best, &namespace));
            }
        }
        random.shuffle(&mut questions);
        Ok(World {
            priors,
            set,
            namespace,
            questions: questions.into(),
        })
    }

    pub(super) async fn put_priors(
        &self,
        channel: &Channel,
    ) -> Result<Arc<[Asked]>, LoadtestError> {
        let mut asked = Vec::with_capacity(PRIORS * 2);
        for prior in &self.priors {
            prior.put(channel.clone(), &Shown::default()).await?;
            asked.extend(Asked::about(prior));
        }
        Ok(asked.into())
    }

    pub(super) async fn register(&self, channel: &Channel) -> Result<(), LoadtestError> {
        let registrar = Registrar::new(Arc::clone(&self.set), self.namespace.clone());
        registrar.announce(channel.clone()).await?;
        registrar
            .bulk(channel.clone(), 0..self.set.count)
            .await
            .map(drop)
    }

    pub(super) fn finds(&self, channels: &[Channel]) -> FindCaller {
        let (questions, set) = (Arc::clone(&self.questions), Arc::clone(&self.set));
        FindCaller::new(channels, questions, set, self.set.count)
    }
}
