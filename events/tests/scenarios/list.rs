//! The scenarios: name, right answer, what happens, what is asked.

use std::ops::Range;

use serde_json::json;

use crate::payloads::{batch, changed, event, fixture, part, removed, stored};

pub(crate) struct Scenario {
    pub(crate) number: u32,
    pub(crate) name: &'static str,
    /// Tokens.
    pub(crate) right: u32,
    /// It holds with each of these.
    pub(crate) replays: &'static [Replay],
    /// Published before the feed begins.
    pub(crate) before: Vec<Vec<u8>>,
    pub(crate) acts: Vec<Act>,
    pub(crate) query: Query,
}

#[derive(Clone, Copy)]
pub(crate) enum Replay {
    None,
    /// As many batches are kept.
    Kept(usize),
}

pub(crate) enum Act {
    Heard(Vec<u8>),
    /// The message is lost, and kept for a replay.
    Unheard(Vec<u8>),
    Restart,
}

#[derive(Clone)]
pub(crate) struct Query {
    pub(crate) tokens: Range<u32>,
    pub(crate) block_size: u32,
    pub(crate) adapter: Option<&'static str>,
    pub(crate) salt: Option<&'static str>,
    /// Blocks on lower tiers count too.
    pub(crate) counts_lower: bool,
}

const BOTH: &[Replay] = &[Replay::None, Replay::Kept(100)];
const WITHOUT: &[Replay] = &[Replay::None];
const WITH: &[Replay] = &[Replay::Kept(100)];
const SHORT: &[Replay] = &[Replay::Kept(2)];

/// The names of the blocks of `vllm_map_stored_min` and of its child.
const FIRST: u64 = 3_753_563_854_825_738_204;
const SECOND: u64 = 2_378_715_151_359_315_973;
const THIRD: u64 = 4_593_614_550_377_271_087;
const TOKEN: u32 = 1000;
/// Where the tokens of a restarted engine's prompt begin.
const NEW_TOKEN: u32 = 5000;

const PROMPT: Query = Query {
    tokens: TOKEN..TOKEN + 48,
    block_size: 16,
    adapter: None,
    salt: None,
    counts_lower: false,
};
const NEW_PROMPT: Query = Query {
    tokens: NEW_TOKEN..NEW_TOKEN + 48,
    ..PROMPT
};
const LONG_PROMPT: Query = Query {
    tokens: 0..3840,
    block_size: 768,
    ..PROMPT
};

pub(crate) fn scenarios() -> Vec<Scenario> {
    let groups = [
        stores(),
        forms(),
        hybrids(),
        names(),
        refused(),
        copies(),
        restarts(),
        gaps(),
    ];
    let mut all: Vec<_> = groups.into_iter().flatten().collect();
    all.sort_by_key(|scenario| scenario.number);
    assert!(
        (1..)
            .zip(&all)
            .all(|(number, scenario)| number == scenario.number)
    );
    all
}

/// The engine publishes these batches, and everything is heard.
fn case(number: u32, name: &'static str, right: u32, batches: Vec<Vec<u8>>) -> Scenario {
    Scenario {
        number,
        name,
        right,
        replays: BOTH,
        before: Vec::new(),
        acts: batches.into_iter().map(Act::Heard).collect(),
        query: PROMPT,
    }
}

fn min() -> Vec<u8> {
    fixture("vllm_map_stored_min")
}

fn child() -> Vec<u8> {
    fixture("vllm_map_stored_child")
}

fn remove(hashes: &[u64]) -> Vec<u8> {
    batch(&[removed(hashes)])
}

fn nothing() -> Vec<u8> {
    batch(&[])
}

fn new_prefix() -> Vec<u8> {
    batch(&[stored(&[71, 72, 73], None, NEW_TOKEN)])
}

fn stores() -> Vec<Scenario> {
    let removed = || fixture("vllm_map_removed");
    let cleared = || fixture("vllm_map_cleared");
    vec![
        case(1, "min", 32, vec![min()]),
        case(2, "chain", 48, vec![min(), child()]),
        case(3, "removed", 32, vec![min(), child(), removed()]),
        case(4, "cleared", 0, vec![min(), child(), cleared()]),
        case(
            6,
            "dp3 rank in payload, subscription rank 0",
            32,
            vec![fixture("vllm_map_dp3")],
        ),
        case(
            7,
            "batch 2 elements then store",
            32,
            vec![fixture("vllm_map_batch_2elem"), min()],
        ),
        case(
            32,
            "offload bare block_size 0 then GPU store",
            32,
            vec![fixture("vllm_map_offload_bare"), min()],
        ),
        case(
            33,
            "CPU store then GPU remove: device 0",
            0,
            vec![fixture("vllm_map_cpu_tier")],
        ),
        case(
            37,
            "remove unknown hash is a no-op",
            32,
            vec![min(), removed()],
        ),
    ]
}

fn forms() -> Vec<Scenario> {
    let unknown_field = || fixture("vllm_map_unknown_field");
    let only_the_field = changed("vllm_map_unknown_field", |batch| {
        batch.as_array_mut().unwrap().truncate(3);
    });
    let only_the_element = changed("vllm_map_unknown_field", |batch| {
        batch[1][0].as_object_mut().unwrap().remove("future_field");
    });
    let unknown_and_known = batch(&[
        event("vllm_map_unknown_event", 0),
        event("vllm_map_stored_min", 0),
    ]);
    vec![
        case(
            5,
            "bytes hash, the store",
            32,
            vec![part("vllm_map_bytes_hash", &[0])],
        ),
        case(13, "unknown field", 16, vec![unknown_field()]),
        case(
            14,
            "unknown map field only (3-element batch)",
            16,
            vec![only_the_field],
        ),
        case(15, "4-element batch only", 16, vec![only_the_element]),
        case(
            16,
            "unknown event type + known store in one batch",
            32,
            vec![unknown_and_known],
        ),
        case(
            17,
            "unknown event then store",
            32,
            vec![fixture("vllm_map_unknown_event"), min()],
        ),
        case(
            18,
            "array v0230, the store",
            32,
            vec![part("vllm_array_v0230_full", &[0])],
        ),
        case(
            19,
            "array v085 (5 fields), the store",
            32,
            vec![part("vllm_array_v085", &[0])],
        ),
        case(23, "sglang array", 16, vec![fixture("sglang_array_0512")]),
    ]
}

fn hybrids() -> Vec<Scenario> {
    let copy_removed = || fixture("vllm_map_hybrid_mamba_removed");
    let attention = part("vllm_map_hybrid_attn_last", &[3]);
    let cases = [
        (
            8,
            "hybrid attn last",
            vec![fixture("vllm_map_hybrid_attn_last")],
        ),
        (
            9,
            "hybrid mamba last",
            vec![fixture("vllm_map_hybrid_mamba_last")],
        ),
        (
            10,
            "hybrid + mamba group removes shared hash",
            vec![fixture("vllm_map_hybrid_attn_last"), copy_removed()],
        ),
        (
            11,
            "mamba remove arrives before its group was learned",
            vec![attention, copy_removed()],
        ),
    ];
    let cases = cases.into_iter().map(|(number, name, batches)| Scenario {
        query: LONG_PROMPT,
        ..case(number, name, 3840, batches)
    });
    let swa = case(12, "swa ignored", 0, vec![fixture("vllm_map_swa")]);
    cases.chain([swa]).collect()
}

fn names() -> Vec<Scenario> {
    let salted = || {
        changed("vllm_map_stored_min", |batch| {
            batch[1][0]["extra_keys"] = json!([["tenant-a"], null]);
        })
    };
    vec![
        case(
            20,
            "lora: base request must not hit",
            0,
            vec![fixture("vllm_map_lora_salt_mm")],
        ),
        case(21, "salt: base request must not hit", 0, vec![salted()]),
        Scenario {
            query: Query {
                salt: Some("tenant-a"),
                ..PROMPT
            },
            ..case(22, "salt: salted request must hit", 32, vec![salted()])
        },
        Scenario {
            query: Query {
                salt: Some("tenant-a"),
                adapter: Some("adapter-a"),
                counts_lower: true,
                ..PROMPT
            },
            ..case(
                24,
                "sglang map salt: salted request (host tier)",
                16,
                vec![fixture("sglang_map_salt_lora")],
            )
        },
    ]
}

fn refused() -> Vec<Scenario> {
    let child_first = batch(&[stored(&[SECOND], Some(FIRST), TOKEN + 16)]);
    let then_parent = batch(&[stored(&[FIRST], None, TOKEN)]);
    vec![
        case(
            25,
            "sglang short page",
            0,
            vec![fixture("sglang_map_short_page")],
        ),
        case(
            26,
            "bad truncated then store",
            32,
            vec![fixture("bad_truncated"), min()],
        ),
        case(27, "dup hash", 0, vec![fixture("bad_dup_hash")]),
        case(28, "self parent", 0, vec![fixture("bad_self_parent")]),
        case(
            29,
            "len mismatch 3 hashes / 2 blocks",
            32,
            vec![fixture("bad_len_mismatch")],
        ),
        case(
            30,
            "orphan child not at root",
            0,
            vec![fixture("bad_orphan_child")],
        ),
        case(
            31,
            "orphan then parent arrives (out of order)",
            32,
            vec![child_first, then_parent],
        ),
    ]
}

fn copies() -> Vec<Scenario> {
    let gone = || remove(&[SECOND]);
    let same = batch(&[stored(&[91, 92], None, TOKEN)]);
    vec![
        case(
            34,
            "duplicate store x2, remove x1: still cached",
            32,
            vec![min(), min(), gone()],
        ),
        case(
            35,
            "duplicate store x2, remove x2: gone",
            16,
            vec![min(), min(), gone(), gone()],
        ),
        case(
            36,
            "remove middle then re-store tail: hole",
            16,
            vec![min(), child(), gone(), child()],
        ),
        case(
            38,
            "two parents, same tokens under other hashes, one removed",
            32,
            vec![min(), same, remove(&[FIRST, SECOND])],
        ),
    ]
}

fn restarts() -> Vec<Scenario> {
    let case = |number, name, right, replays, unheard: usize| {
        let mut acts = vec![Act::Heard(min()), Act::Heard(child()), Act::Restart];
        acts.extend((0..unheard).map(|_| Act::Unheard(nothing())));
        acts.push(Act::Heard(new_prefix()));
        let query = match right {
            0 => PROMPT,
            _ => NEW_PROMPT,
        };
        Scenario {
            replays,
            acts,
            query,
            ..case(number, name, right, Vec::new())
        }
    };
    vec![
        case(39, "restart, no replay: old prefix", 0, WITHOUT, 0),
        case(40, "restart, no replay: new prefix", 48, WITHOUT, 1),
        case(41, "restart, with replay: old prefix", 0, WITH, 0),
        case(42, "restart, with replay: new prefix", 48, WITH, 1),
        case(
            43,
            "restart, first live number is the next one: old prefix",
            0,
            BOTH,
            2,
        ),
    ]
}

fn gaps() -> Vec<Scenario> {
    let gap = vec![
        Act::Heard(min()),
        Act::Unheard(child()),
        Act::Heard(nothing()),
    ];
    let gone = vec![
        Act::Heard(min()),
        Act::Heard(child()),
        Act::Unheard(remove(&[FIRST, SECOND, THIRD])),
        Act::Unheard(nothing()),
        Act::Unheard(nothing()),
        Act::Heard(nothing()),
    ];
    let of = |number, name, right, replays, acts| Scenario {
        replays,
        acts,
        ..case(number, name, right, Vec::new())
    };
    vec![
        of(44, "gap, replay has it", 48, WITH, gap),
        of(
            45,
            "gap older than the replay buffer, lost removes",
            0,
            SHORT,
            gone,
        ),
        Scenario {
            before: vec![min(), child()],
            ..of(
                46,
                "late consumer with replay",
                48,
                WITH,
                vec![Act::Heard(nothing())],
            )
        },
        Scenario {
            before: vec![min(), child()],
            ..of(
                47,
                "late consumer with replay, no live traffic yet",
                48,
                WITH,
                Vec::new(),
            )
        },
    ]
}
