//! One case for each rule about what engines mean by their events.

use super::*;
use crate::event::{Adapter, Extra};
use crate::view::{Item, Outcome, tenant_key};

/// What a prompt of the first `tokens` finds on the device after the batches.
fn check(batches: &[&[Event<'_>]], tokens: u32, want: u32) -> Engine {
    let engine = Engine::after(batches);
    assert_eq!(
        engine.finds_tokens(0..tokens),
        (want, 0),
        "{:?}",
        engine.counts
    );
    engine
}

/// The same with the events of one batch in every order.
fn check_every_order(batch: &[Event<'_>], tokens: u32, want: u32) {
    if let Some((first, rest)) = batch.split_first() {
        for at in 0..batch.len() {
            let mut order = rest.to_vec();
            order.rotate_left(at.saturating_sub(1));
            order.insert(at, first.clone());
            check(&[&order], tokens, want);
            order.reverse();
            check(&[&order], tokens, want);
        }
    }
}

#[test]
fn blocks_are_found_from_the_start() {
    check(&[&[store(stored(0..32))]], 48, 32);
    check(&[&[store(stored(0..32))]], 31, 16);
    check(&[&[store(stored(0..32))], &[store(stored(32..48))]], 48, 48);
    let engine = check(&[&[store(stored(0..32))]], 0, 0);
    assert_eq!(engine.finds_tokens(1..33), (0, 0));
}

#[test]
fn what_is_removed_or_cleared_is_gone() {
    check(&[&[store(stored(0..48))], &[remove(&[3])]], 48, 32);
    check(&[&[store(stored(0..48))], &[Event::Cleared]], 48, 0);
    let unknown = check(&[&[store(stored(0..32))], &[remove(&[77])]], 48, 32);
    assert_eq!(unknown.counts.get(Outcome::RemovedUnknown), 1);
}

#[test]
fn a_clear_stands_where_the_engine_put_it() {
    check(
        &[
            &[store(stored(0..48))],
            &[Event::Cleared, store(stored(0..16))],
        ],
        48,
        16,
    );
    check(&[&[store(stored(0..48)), Event::Cleared]], 48, 0);
}

#[test]
fn a_hole_ends_a_match_until_it_is_filled() {
    let all = [store(stored(0..48))];
    check(&[&all, &[remove(&[2])]], 48, 16);
    check(&[&all, &[remove(&[2])], &[store(stored(32..48))]], 48, 16);
    check(&[&all, &[remove(&[2])], &[store(stored(16..32))]], 48, 48);
}

#[test]
fn copies_are_counted() {
    let all = [store(stored(0..32))];
    let again = [store(stored(16..32))];
    check(&[&all, &again, &[remove(&[2])]], 32, 32);
    check(&[&all, &again, &[remove(&[2])], &[remove(&[2])]], 32, 16);
}

#[test]
fn one_content_under_two_names_goes_with_the_second() {
    let other = Stored {
        hashes: hashes(&[92]),
        ..stored(16..32)
    };
    let both: [&[Event<'_>]; 2] = [&[store(stored(0..32))], &[store(other)]];
    check(&both, 32, 32);
    check(&[both[0], both[1], &[remove(&[2])]], 32, 32);
    check(&[both[0], both[1], &[remove(&[92])]], 32, 32);
    check(
        &[both[0], both[1], &[remove(&[92])], &[remove(&[2])]],
        32,
        16,
    );
}

#[test]
fn a_name_for_another_content_is_learned_anew() {
    let other = Stored {
        hashes: hashes(&[2]),
        ..stored(0..16)
    };
    let engine = check(&[&[store(stored(0..32))], &[store(other)]], 32, 16);
    assert_eq!(engine.counts.get(Outcome::Conflict), 1);
    check(
        &[
            &[store(stored(0..16))],
            &[store(Stored {
                tokens: (7..23).collect(),
                ..stored(0..16)
            })],
        ],
        16,
        0,
    );
}

#[test]
fn groups_without_prefixes_are_ignored() {
    check(
        &[&[store(Stored {
            kind: Kind::Other,
            ..stored(0..32)
        })]],
        32,
        0,
    );
    let unknown = check(
        &[&[store(Stored {
            kind: Kind::Unknown,
            ..stored(0..32)
        })]],
        32,
        0,
    );
    assert_eq!(unknown.counts.get(Outcome::UnknownKind), 1);
    check(&[&[store(without_kind(stored(0..32)))]], 32, 32);
}

#[test]
fn a_hybrid_model_is_its_attention_group() {
    let attention = |tokens| {
        store(Stored {
            group: Some(3),
            ..stored(tokens)
        })
    };
    let batch = [
        store(mamba(0..80, 0)),
        store(mamba(80..160, 0)),
        attention(0..80),
        attention(80..160),
        store(mamba(0..80, 1)),
    ];
    check_every_order(&batch, 160, 160);
    let copy_goes = Event::Removed(Removed {
        group: Some(0),
        ..removed(&[5])
    });
    check(&[&batch, std::slice::from_ref(&copy_goes)], 160, 160);
    let engine = check(&[&[attention(0..80)], &[copy_goes]], 80, 80);
    assert!(
        engine
            .changes
            .iter()
            .all(|change| matches!(change, Change::Stored(_)))
    );
    check(
        &[
            &batch,
            &[Event::Removed(Removed {
                group: Some(3),
                ..removed(&[5])
            })],
        ],
        160,
        64,
    );
}

#[test]
fn a_hybrid_model_that_names_no_kind_is_indexed_by_what_tokens_prove() {
    let without = |stored: Stored<'static>| store(without_kind(stored));
    let attention = |tokens| {
        without(Stored {
            group: Some(3),
            ..stored(tokens)
        })
    };
    let batch = [
        without(mamba(0..80, 0)),
        attention(0..80),
        without(mamba(80..160, 0)),
        attention(80..160),
    ];
    check_every_order(&batch, 160, 160);
}

#[test]
fn where_hashes_and_tokens_do_not_pair_no_name_is_learned() {
    let odd = Stored {
        hashes: hashes(&[5, 6, 7]),
        ..stored(0..32)
    };
    let child = Stored {
        parent: Some(EngineHash(6)),
        ..stored(32..48)
    };
    let engine = check(&[&[store(odd.clone())], &[store(child)]], 48, 32);
    assert_eq!(engine.counts.get(Outcome::OrphanHeld), 1);
    check(&[&[store(odd.clone())], &[remove(&[6])]], 48, 0);
    check(
        &[
            &[store(odd.clone())],
            &[store(stored(0..32))],
            &[remove(&[6])],
        ],
        48,
        32,
    );
    check(
        &[
            &[store(odd), store(stored(0..32))],
            &[remove(&[2])],
            &[remove(&[7])],
        ],
        48,
        16,
    );
}

#[test]
fn every_attention_group_must_hold_a_block() {
    let group = |group, tokens| {
        store(Stored {
            group: Some(group),
            ..stored(tokens)
        })
    };
    check(&[&[group(0, 0..48), group(1, 0..32)]], 48, 32);
    check(
        &[&[group(0, 0..48), group(1, 0..48)], &[remove(&[1])]],
        48,
        0,
    );
}

#[test]
fn a_removal_without_a_group_ends_the_block_in_all() {
    let none = || {
        Event::Removed(Removed {
            group: None,
            ..removed(&[2])
        })
    };
    check(&[&[store(stored(0..32))], &[none()]], 32, 16);
    let nameless = store(Stored {
        group: None,
        ..stored(0..32)
    });
    check(&[std::slice::from_ref(&nameless), &[none()]], 32, 16);
    check(&[&[nameless], &[remove(&[2])]], 32, 16);
}

#[test]
fn tiers_are_apart() {
    let host = store(Stored {
        medium: Medium::Host,
        ..stored(0..16)
    });
    let engine = Engine::after(&[&[host], &[remove(&[1])]]);
    assert_eq!(engine.finds_tokens(0..32), (0, 16));
    let rest = store(Stored {
        medium: Medium::Disk,
        ..stored(16..32)
    });
    let engine = Engine::after(&[&[store(stored(0..16))], &[rest], &[store(stored(32..48))]]);
    assert_eq!(engine.finds_tokens(0..48), (16, 32));
    assert_eq!(
        engine.changes.len(),
        2,
        "leases rest on the device: {:?}",
        engine.changes
    );
}

#[test]
fn hashes_alone_put_known_blocks_on_a_tier() {
    let bare = |names| {
        let nothing = Stored {
            tokens: Vec::new(),
            block_size: 0,
            parent: None,
            ..stored(0..16)
        };
        store(Stored {
            hashes: hashes(names),
            medium: Medium::Host,
            group: None,
            ..nothing
        })
    };
    check(&[&[bare(&[1])], &[store(stored(0..32))]], 32, 32);
    let batch = [bare(&[1, 2, 9]), store(stored(0..32))];
    let mut engine = Engine::after(&[&batch, &[remove(&[1, 2])]]);
    assert_eq!(engine.finds_tokens(0..32), (0, 32));
    assert_eq!(engine.counts.get(Outcome::BareUnknown), 1);
    engine.send(&[Event::Removed(Removed {
        medium: Medium::Host,
        group: None,
        ..removed(&[1])
    })]);
    assert_eq!(engine.finds_tokens(0..32), (0, 0));
}

#[test]
fn hashes_alone_leave_a_group_its_size() {
    let large = Stored {
        hashes: hashes(&[2]),
        block_size: 2 * SIZE,
        group: Some(1),
        ..stored(0..32)
    };
    let bare = Stored {
        hashes: hashes(&[2]),
        tokens: Vec::new(),
        block_size: 0,
        medium: Medium::Host,
        ..stored(0..16)
    };
    // Both groups name a block so; whichever was announced first.
    for groups in [
        [large.clone(), stored(0..32)],
        [stored(0..32), large.clone()],
    ] {
        let mut engine = Engine::after(&[&groups.map(store), &[store(bare.clone())]]);
        assert_eq!(engine.finds_tokens(0..32), (32, 0));
        engine.send(&[remove(&[2])]);
        assert_eq!(engine.finds_tokens(0..32), (16, 16));
        // Not its own group's any more, and not the other's either.
        engine.send(&[Event::Removed(Removed {
            medium: Medium::Host,
            ..removed(&[2])
        })]);
        engine.send(&[store(bare.clone()), store(stored(0..32))]);
        assert_eq!(engine.finds_tokens(0..32), (32, 0));
    }
}

#[test]
fn adapters_and_salts_keep_prompts_apart_and_children_inherit_them() {
    let adapted = Stored {
        adapter: Some(Adapter::Name("a")),
        ..stored(0..16)
    };
    let salt = Extra {
        salt: Some("tenant"),
        items: Vec::new(),
    };
    let salted = Stored {
        extra: vec![salt],
        ..stored(0..16)
    };
    let by_name = Stored {
        salt: Some("tenant"),
        ..stored(0..16)
    };
    let tokens: Vec<u32> = (0..32).collect();
    for (first, adapter, salt) in [
        (adapted, Some(Adapter::Name("a")), None),
        (salted, None, Some("tenant")),
        (by_name, None, Some("tenant")),
    ] {
        let engine = check(&[&[store(first), store(stored(16..32))]], 32, 0);
        let with = |adapter, salt: Option<&str>| {
            let tenant = salt.map(tenant_key);
            let prompt = Prompt {
                adapter,
                tenant: tenant.as_deref(),
                ..prompt(&tokens)
            };
            engine.finds(&prompt, SHAPE)
        };
        assert_eq!(with(adapter, salt), (32, 0));
        assert_eq!(with(Some(Adapter::Id(1)), salt), (0, 0));
        assert_eq!(with(adapter, Some("other")), (0, 0));
        assert_eq!(with(salt.map(Adapter::Name), None), (0, 0));
    }
}

#[test]
fn items_of_other_media_are_part_of_the_blocks_they_lie_in() {
    let item = |offset| Extra {
        salt: None,
        items: vec![("image", offset)],
    };
    let stored = Stored {
        extra: vec![item(3), item(-13), Extra::default()],
        ..stored(0..48)
    };
    let engine = check(&[&[store(stored)]], 48, 0);
    let tokens: Vec<u32> = (0..48).collect();
    let with = |id, start, length| {
        let items = [Item {
            id,
            start,
            tokens: length,
        }];
        engine.finds(
            &Prompt {
                items: &items,
                ..prompt(&tokens)
            },
            SHAPE,
        )
    };
    assert_eq!(with("image", 3, 20), (48, 0));
    assert_eq!(
        with("image", 3, 40),
        (32, 0),
        "it goes on into the third block"
    );
    assert_eq!(with("image", 4, 20), (0, 0));
    assert_eq!(with("other", 3, 20), (0, 0));
}

#[test]
fn a_window_beyond_the_block_matches_only_where_its_tokens_follow() {
    let shape = Shape {
        lookahead: 1,
        ..SHAPE
    };
    let lookahead = Stored {
        lookahead: vec![32],
        ..stored(0..32)
    };
    let bigram = Stored {
        bigram_end: Some(32),
        ..stored(0..32)
    };
    for event in [lookahead, bigram] {
        let engine = Engine::after(&[&[store(event)]]);
        let finds = |tokens: Vec<u32>| engine.finds(&prompt(&tokens), shape).0;
        assert_eq!(finds((0..40).collect()), 32);
        assert_eq!(finds((0..32).collect()), 16);
        assert_eq!(finds((0..32).chain([99]).collect()), 16);
        assert_eq!(engine.view.shapes(MODEL), [shape]);
    }
}

#[test]
fn short_pages_are_ignored() {
    let page = |size: u32| Stored {
        tokens: (16..16 + size).collect(),
        block_size: size,
        ..stored(16..32)
    };
    for (size, outcome) in [(7, Outcome::OddSize), (8, Outcome::ShortPage)] {
        let engine = check(&[&[store(stored(0..16)), store(page(size))]], 32, 16);
        assert_eq!(engine.counts.get(outcome), 1);
    }
    let alone = Stored {
        parent: None,
        ..page(7)
    };
    assert_eq!(check(&[&[store(alone)]], 32, 0).view.shapes(MODEL), []);
    check_every_order(
        &[
            store(Stored {
                parent: None,
                ..page(8)
            }),
            store(stored(0..16)),
        ],
        32,
        16,
    );
}

#[test]
fn events_that_name_a_block_twice_are_refused() {
    let twice = Stored {
        hashes: hashes(&[1, 1]),
        ..stored(0..32)
    };
    let engine = check(&[&[store(twice)]], 32, 0);
    assert_eq!(engine.counts.get(Outcome::DuplicateHash), 1);
    let own_parent = Stored {
        parent: Some(EngineHash(2)),
        ..stored(16..32)
    };
    let engine = check(&[&[store(stored(0..16)), store(own_parent)]], 32, 16);
    assert_eq!(engine.counts.get(Outcome::SelfParent), 1);
    let short = Stored {
        extra: vec![Extra::default()],
        ..stored(0..32)
    };
    assert_eq!(
        check(&[&[store(short)]], 32, 0)
            .counts
            .get(Outcome::Malformed),
        1
    );
}

#[test]
fn a_block_waits_for_its_parent() {
    let child = || store(stored(16..32));
    let engine = check(&[&[child()]], 32, 0);
    assert_eq!(engine.finds_tokens(16..32), (0, 0), "never at the root");
    assert_eq!(engine.counts.get(Outcome::OrphanHeld), 1);
    check(
        &[
            &[store(stored(32..48))],
            &[child()],
            &[store(stored(0..16))],
        ],
        48,
        48,
    );
    check(
        &[
            &[child()],
            &[child()],
            &[store(stored(0..16))],
            &[remove(&[2])],
        ],
        32,
        32,
    );
    check(
        &[&[child()], &[remove(&[2])], &[store(stored(0..16))]],
        32,
        16,
    );
    check(
        &[
            &[store(stored(16..48))],
            &[remove(&[2])],
            &[store(stored(0..16))],
        ],
        48,
        16,
    );
    check(
        &[&[child()], &[Event::Cleared], &[store(stored(0..16))]],
        32,
        16,
    );
    check_every_order(
        &[child(), store(stored(0..16)), store(stored(32..48))],
        48,
        48,
    );
}

#[test]
fn a_known_block_needs_no_parent() {
    let all = [store(stored(0..48))];
    let first_gone = [remove(&[1])];
    check(
        &[
            &all,
            &first_gone,
            &[store(stored(16..64))],
            &[store(stored(0..16))],
        ],
        64,
        64,
    );
}

#[test]
fn changes_tell_of_every_copy_that_goes() {
    let again = || store(stored(16..32));
    let batches: [&[Event<'_>]; 5] = [
        &[store(stored(0..32))],
        &[again()],
        &[remove(&[2])],
        &[again()],
        &[remove(&[2]), remove(&[2]), Event::Cleared],
    ];
    let engine = check(&batches, 32, 0);
    let names = names(0..32);
    let gone = |is_gone| Change::Removed {
        own: names[1],
        is_gone,
    };
    let stored = [Change::Stored(names[0]), Change::Stored(names[1])];
    assert_eq!(engine.changes[..2], stored);
    assert_eq!(
        engine.changes[2..],
        [
            gone(false),
            Change::Stored(names[1]),
            gone(false),
            gone(true),
            Change::Cleared
        ]
    );
}
