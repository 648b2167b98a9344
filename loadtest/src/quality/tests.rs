//! The judge of `quality` catches planted wrong answers; what is asked depends on the seed alone.

use clap::Parser;
use kvatlas_proto::v1::{
    Discovery, DonorMatch, FindDonorResponse, FindOutcome, Neighbour, QualitySignals,
    RejectedCandidate, Span,
};

use super::{
    ask::{FoundBy, Judged, Question},
    class::QualityClass,
    donors::Planted,
    report::{ClassTally, QualityReport},
    world::World,
};
use crate::{
    args::{Cli, Command, QualityArgs},
    donors::register::{namespace, selector},
    prompts::Class,
};

fn args(extra: &[&str]) -> QualityArgs {
    let sizes = [
        "kvatlas-loadtest",
        "quality",
        "--donors",
        "60",
        "--tokens",
        "1024",
    ];
    let cli = Cli::parse_from(sizes.iter().chain(extra));
    let Command::Quality(args) = cli.command else {
        panic!("{:?}", cli.command);
    };
    args
}

/// Donor 0 has all of the target, donor 1 has 70 of its 100 tokens, donor 2 nothing.
fn donors() -> Vec<Planted> {
    let mut donors = Vec::new();
    let all: [Vec<u32>; 3] = [
        (0..100).collect(),
        (0..70).chain(900..930).collect(),
        (800..900).collect(),
    ];
    for tokens in all {
        Planted::plant(
            &mut donors,
            &selector(namespace("test")),
            tokens,
            String::new(),
        );
    }
    donors
}

fn question(class: QualityClass, source: Option<usize>) -> Question {
    Question {
        class,
        tokens: (0..100).collect(),
        text: String::new(),
        namespace: selector(namespace("test")),
        best: 100,
        source,
        change: None,
    }
}

fn hit(donor_id: &str, length: u32) -> FindDonorResponse {
    FindDonorResponse {
        outcome: FindOutcome::Prefix.into(),
        r#match: Some(DonorMatch {
            donor_id: donor_id.to_owned(),
            spans: vec![Span {
                length,
                ..Span::default()
            }],
            ..DonorMatch::default()
        }),
        ..FindDonorResponse::default()
    }
}

fn miss() -> FindDonorResponse {
    FindDonorResponse {
        outcome: FindOutcome::Miss.into(),
        ..FindDonorResponse::default()
    }
}

fn near(donor_ids: &[&str], discovery: Discovery) -> FindDonorResponse {
    let neighbour = |id: &&str| Neighbour {
        donor_id: (*id).to_owned(),
        discovery: discovery.into(),
        ..Neighbour::default()
    };
    FindDonorResponse {
        neighbours: donor_ids.iter().map(neighbour).collect(),
        ..miss()
    }
}

fn check(class: QualityClass, source: Option<usize>, answer: &FindDonorResponse) -> Judged {
    question(class, source).judge(answer, &donors()).unwrap()
}

const WRAPPER: QualityClass = QualityClass::Tokens(Class::Wrapper);
const NEGATIVE: QualityClass = QualityClass::Tokens(Class::Negative);

#[test]
fn a_worse_donor_a_miss_and_a_false_span_are_told() {
    let told = |id: &str, length| {
        let judged = check(WRAPPER, Some(0), &hit(id, length));
        (judged.right, judged.reported, judged.false_spans)
    };
    assert_eq!(told("loadtest-0", 100), (true, 100, 0));
    assert_eq!(told("loadtest-0", 101), (true, 101, 1));
    assert_eq!(told("loadtest-1", 70), (false, 70, 0));
    assert_eq!(told("loadtest-1", 71), (false, 71, 1));
    let missed = check(WRAPPER, Some(0), &miss());
    assert!(!missed.found && !missed.right);
}

#[test]
fn a_donor_found_for_unseen_passages_fails_the_run() {
    assert!(check(NEGATIVE, None, &miss()).right);
    let wrong = check(NEGATIVE, None, &hit("loadtest-0", 100));
    assert!(wrong.found && !wrong.right);
    for (judged, fails) in [(wrong, true), (check(NEGATIVE, None, &miss()), false)] {
        let mut tally = ClassTally::default();
        tally.add(&question(NEGATIVE, None), &judged);
        let classes = [(NEGATIVE.name(), tally.report())].into();
        let report = QualityReport {
            classes,
            ..QualityReport::default()
        };
        assert_eq!(report.verdict().is_err(), fails);
    }
}

#[test]
fn any_sign_of_another_namespace_is_told() {
    let class = QualityClass::CrossNamespace;
    assert!(check(class, Some(0), &miss()).right);
    let rejected = FindDonorResponse {
        rejected: vec![RejectedCandidate {
            donor_id: "loadtest-0".to_owned(),
            ..RejectedCandidate::default()
        }],
        ..miss()
    };
    let told_of = FindDonorResponse {
        detail: "loadtest-0 has it".to_owned(),
        ..miss()
    };
    let neighbour = near(&["loadtest-0"], Discovery::Sketch);
    for sign in [rejected, told_of, neighbour, hit("loadtest-0", 100)] {
        assert!(!check(class, Some(0), &sign).right, "{sign:?}");
    }
    // What the namespace holds itself may be named, also where its name begins alike.
    for own in ["loadtest-1", "loadtest-01", "loadtest-00"] {
        assert!(
            check(class, Some(0), &near(&[own], Discovery::Sketch)).right,
            "{own}"
        );
    }
}

#[test]
fn a_paraphrase_is_nominated_among_the_first_five_and_by_whom_is_told() {
    let class = QualityClass::Paraphrase;
    let by = |answer: &FindDonorResponse| check(class, Some(2), answer).nominated;
    let [one, two, wanted] = ["loadtest-0", "loadtest-1", "loadtest-2"];
    assert_eq!(
        by(&near(&[one, wanted], Discovery::Text)),
        Some(FoundBy::Text)
    );
    assert_eq!(
        by(&near(&[wanted], Discovery::Sketch)),
        Some(FoundBy::Sketch)
    );
    assert_eq!(by(&hit(wanted, 0)), Some(FoundBy::Seeds));
    assert_eq!(by(&near(&[one, two], Discovery::Text)), None);
    assert_eq!(
        by(&near(&[one, two, one, two, one, wanted], Discovery::Text)),
        None
    );
}

#[test]
fn flags_are_counted_by_what_was_changed() {
    let flagged = |differ| {
        let mut answer = hit("loadtest-0", 100);
        if let Some(found) = &mut answer.r#match {
            found.quality = Some(QualitySignals {
                facts_differ: differ,
                facts_compared: true,
                ..QualitySignals::default()
            });
        }
        check(QualityClass::FactFlip, Some(0), &answer)
    };
    let asked = Question {
        change: Some("digits"),
        ..question(QualityClass::FactFlip, Some(0))
    };
    let mut tally = ClassTally::default();
    for differ in [true, false, true] {
        tally.add(&asked, &flagged(differ));
    }
    let facts = tally.report().facts.unwrap();
    assert_eq!((facts.flagged, facts.compared), (2, 3));
    assert_eq!(facts.changes["digits"].asked, 3);
    assert_eq!(facts.changes["digits"].flagged, 2);
}

#[test]
fn an_answer_that_contradicts_itself_is_an_error() {
    let without_match = FindDonorResponse {
        r#match: None,
        ..hit("loadtest-0", 100)
    };
    let with_match = FindDonorResponse {
        outcome: FindOutcome::Miss.into(),
        ..hit("loadtest-0", 100)
    };
    let nobody = hit("loadtest-9", 16);
    for answer in [
        without_match,
        with_match,
        FindDonorResponse::default(),
        nobody,
    ] {
        let judged = question(WRAPPER, Some(0)).judge(&answer, &donors());
        assert!(judged.is_err(), "{answer:?}");
    }
}

#[test]
fn the_seed_alone_decides_what_is_asked() {
    let asked = |seed: &str| {
        let world = World::new(&args(&["--queries", "8", "--seed", seed])).unwrap();
        let tokens =
            |question: &Question| (question.class, question.tokens.clone(), question.change);
        world.questions.iter().map(tokens).collect::<Vec<_>>()
    };
    assert_eq!(asked("1"), asked("1"));
    assert_ne!(asked("1"), asked("2"));
}

#[test]
fn a_changed_fact_leaves_most_of_its_donor_and_every_kind_is_asked() {
    let world = World::new(&args(&["--queries", "14"])).unwrap();
    let mut kinds = Vec::new();
    for question in &world.questions {
        let (Some(change), Some(source)) = (question.change, question.source) else {
            continue;
        };
        let donor = &world.donors[source];
        assert_ne!(question.text, donor.text, "{change}");
        assert!(question.best + 32 >= donor.tokens.len(), "{change}");
        kinds.push(change);
    }
    kinds.sort_unstable();
    kinds.dedup();
    assert_eq!(kinds.len(), 13, "{kinds:?}");
}
