//! Everything that a run registers and asks.

use std::{
    fs::File,
    io::{BufReader, Read},
};

use flate2::read::MultiGzDecoder;
use serde::Deserialize;

use super::{
    ask::Question,
    class::QualityClass,
    donors::{Planted, neighbouring_namespaces},
    facts::{Benign, Flip, names, record},
    verses::{self, Pair},
    words::Prompt,
};
use crate::{
    args::QualityArgs,
    donors::register::{namespace, selector},
    error::LoadtestError,
    judge::{PieceIndex, TargetWindows},
    passages,
    prompts::{Class, DonorSet, Library, Target, passages_of},
    random::Random,
};

/// Passages used when no file is given.
const SAMPLE: &[u8] = include_bytes!("../../../examples/passages.jsonl.gz");
/// Bytes of a file of passages at most, unpacked.
const PASSAGES_MAX_BYTES: u64 = 4 << 30;
/// Passages of a prompt that carries text.
const TEXT_PASSAGES: usize = 6;
/// Verses registered at most: each pair is some 540 tokens.
const VERSE_PAIRS: usize = 1000;
/// What the prompts with text begin and end with: no fact in it.
const OPENING: &str =
    "Read the passages below with care and answer the question that follows them.";
const CLOSING: &str = "Question: what does the speaker ask of the listeners, and why?";

/// Everything that is registered and asked, and what is true of it.
#[derive(Debug)]
pub struct World {
    pub donors: Vec<Planted>,
    pub questions: Vec<Question>,
    /// The donors of verses, by index; none where no verses are given.
    pub verses: Vec<usize>,
    random: Random,
}

impl World {
    /// Plants the donors and makes the look-ups; the same seed makes the same.
    ///
    /// # Errors
    /// When a file cannot be read or has too little for the prompts asked for.
    pub fn new(args: &QualityArgs) -> Result<Self, LoadtestError> {
        let gzipped = match &args.passages {
            Some(path) => {
                let mut bytes = Vec::new();
                File::open(path)?.read_to_end(&mut bytes)?;
                bytes
            }
            None => SAMPLE.to_vec(),
        };
        let mut world = Self {
            donors: Vec::new(),
            questions: Vec::new(),
            verses: Vec::new(),
            random: Random::new(args.common.seed),
        };
        world.plant_tokens(args, &gzipped)?;
        world.plant_texts(args, &texts(&gzipped)?);
        if let Some(path) = &args.verses {
            let mut random = world.random.branch(3);
            let lines = BufReader::new(File::open(path)?);
            let pairs = verses::read(lines, VERSE_PAIRS, &mut random)?;
            world.plant_verses(args, pairs);
        }
        Ok(world)
    }

    fn plant_tokens(&mut self, args: &QualityArgs, gzipped: &[u8]) -> Result<(), LoadtestError> {
        let mut random = self.random.branch(1);
        let library = Library::new(passages::parse(gzipped)?, 0, &mut random);
        let needed = passages_of(args.tokens);
        if library.draw_max() < needed {
            return Err(LoadtestError::Argument {
                argument: "--tokens",
                reason: format!("needs {needed} unseen passages, has {}", library.draw_max()),
            });
        }
        let set = DonorSet::new(library, args.donors, args.tokens, &mut random);
        let home = namespace("tokens");
        let at_home = selector(home.clone());
        for index in 0..set.count {
            let tokens = set.donor(index).tokens;
            Planted::plant(&mut self.donors, &at_home, tokens, String::new());
        }
        let mut index = PieceIndex::new(&set);
        for class in Class::ALL {
            let sources = set.members(class.group());
            for _ in 0..args.queries {
                let source = sources.start + random.below(sources.len());
                let target = Target::new(class, source, &set, &mut random);
                self.questions.push(Question {
                    class: QualityClass::Tokens(class),
                    best: index.best_coverage(&target, &set),
                    tokens: target.tokens,
                    text: String::new(),
                    namespace: at_home.clone(),
                    source: target.source,
                    change: None,
                });
            }
        }
        let elsewhere = neighbouring_namespaces(&home);
        for at in 0..args.queries {
            // Passages that nobody has in the namespace that is asked.
            let hidden = Target::new(Class::Negative, 0, &set, &mut random).tokens;
            let foreign = selector(elsewhere[at % elsewhere.len()].clone());
            let source = Planted::plant(&mut self.donors, &foreign, hidden.clone(), String::new());
            self.questions.push(Question {
                class: QualityClass::CrossNamespace,
                best: hidden.len(),
                tokens: hidden,
                text: String::new(),
                namespace: at_home.clone(),
                source: Some(source),
                change: None,
            });
        }
        Ok(())
    }

    /// A donor for each look-up, one flip and one benign edit of it.
    fn plant_texts(&mut self, args: &QualityArgs, texts: &[String]) {
        let mut random = self.random.branch(2);
        let pool: Vec<&str> = texts.iter().flat_map(|text| names(text)).collect();
        let home = selector(namespace("text"));
        for at in 0..args.queries {
            let mut passages = distinct(texts, &mut random);
            let with_record = random.below(passages.len());
            passages[with_record] += &format!(" {}", record(&mut random));
            let donor = prompt_of(&passages);
            let source = Planted::plant(
                &mut self.donors,
                &home,
                donor.tokens.clone(),
                donor.text.clone(),
            );
            let flip = first_possible(
                &Flip::ALL,
                at,
                &passages,
                &mut random,
                |flip, text, random| flip.apply(text, &pool, random),
            );
            let edit = first_possible(
                &Benign::ALL,
                at,
                &passages,
                &mut random,
                |edit, text, random| edit.apply(text, random),
            );
            let changed = [
                flip.map(|(flip, prompt)| (QualityClass::FactFlip, flip.name(), prompt)),
                edit.map(|(edit, prompt)| (QualityClass::Benign, edit.name(), prompt)),
            ];
            for (class, change, prompt) in changed.into_iter().flatten() {
                self.ask_with_text((class, Some(change)), prompt, source);
            }
        }
    }

    fn plant_verses(&mut self, args: &QualityArgs, pairs: Vec<Pair>) {
        let home = selector(namespace("verses"));
        for (at, Pair { donor, target }) in pairs.into_iter().enumerate() {
            let source = Planted::plant(&mut self.donors, &home, donor.tokens, donor.text);
            self.verses.push(source);
            if at < args.queries {
                self.ask_with_text((QualityClass::Paraphrase, None), target, source);
            }
        }
    }

    /// Asks with the text of a prompt made from the donor with the index `source`.
    fn ask_with_text(
        &mut self,
        what: (QualityClass, Option<&'static str>),
        prompt: Prompt,
        source: usize,
    ) {
        let (class, change) = what;
        let donor = &self.donors[source];
        let best = TargetWindows::new(&prompt.tokens).covered_by(&donor.tokens);
        self.questions.push(Question {
            class,
            tokens: prompt.tokens,
            text: prompt.text,
            namespace: donor.namespace.clone(),
            best,
            source: Some(source),
            change,
        });
    }
}

/// Passages for a prompt: one that stands there twice would still say what the other was changed
/// from.
fn distinct(texts: &[String], random: &mut Random) -> Vec<String> {
    let mut drawn: Vec<usize> = Vec::with_capacity(TEXT_PASSAGES);
    while drawn.len() < TEXT_PASSAGES.min(texts.len()) {
        let next = random.below(texts.len());
        if !drawn.contains(&next) {
            drawn.push(next);
        }
    }
    drawn.into_iter().map(|at| texts[at].clone()).collect()
}

/// The first change, from the one with the number `at` on, that some passage has a place for, and
/// the prompt with that one passage changed.
fn first_possible<Change: Copy>(
    changes: &[Change],
    at: usize,
    passages: &[String],
    random: &mut Random,
    apply: impl Fn(Change, &str, &mut Random) -> Option<String>,
) -> Option<(Change, Prompt)> {
    let mut order: Vec<usize> = (0..passages.len()).collect();
    random.shuffle(&mut order);
    let turns = (0..changes.len()).map(|turn| changes[(at + turn) % changes.len()]);
    for change in turns {
        for &passage in &order {
            if let Some(changed) = apply(change, &passages[passage], random) {
                let mut all = passages.to_vec();
                all[passage] = changed;
                return Some((change, prompt_of(&all)));
            }
        }
    }
    None
}

fn prompt_of(passages: &[String]) -> Prompt {
    Prompt::new(format!(
        "{OPENING}\n\n{}\n\n{CLOSING}",
        passages.join("\n\n")
    ))
}

/// The texts of the passages; every line was parsed before.
fn texts(gzipped: &[u8]) -> Result<Vec<String>, LoadtestError> {
    #[derive(Deserialize)]
    struct Line {
        text: String,
    }
    let lines = BufReader::new(MultiGzDecoder::new(gzipped).take(PASSAGES_MAX_BYTES));
    serde_json::Deserializer::from_reader(lines)
        .into_iter::<Line>()
        .map(|line| Ok(line?.text))
        .collect()
}
