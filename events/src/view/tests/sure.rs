//! What leases may rest on: one case for each reason to doubt.

use super::*;

/// How many of three blocks leases may rest on after the batches, and how many are found.
fn check_sure(batches: &[&[Event<'_>]], want: (usize, u32)) {
    let engine = Engine::after(batches);
    let resident = engine.resident(&names(0..48));
    let found = engine.finds_tokens(0..48).0 / SIZE;
    assert_eq!((resident, found), want, "{:?}", engine.changes);
}

#[test]
fn after_a_removal_a_block_is_in_doubt_until_it_is_stored_again() {
    let all = [store(stored(0..48))];
    let again = [store(stored(16..32))];
    let gone = [remove(&[2])];
    check_sure(&[&all], (3, 3));
    check_sure(&[&all, &again], (3, 3));
    check_sure(&[&all, &again, &gone], (1, 3));
    check_sure(&[&all, &again, &gone, &again], (3, 3));
    check_sure(&[&all, &again, &gone, &gone], (1, 1));
    check_sure(&[&all, &again, &gone, &gone, &again], (3, 3));
    check_sure(&[&all, &gone, &again, &again, &gone], (1, 3));
    // In one batch the order says nothing.
    check_sure(&[&all, &[remove(&[2]), store(stored(16..32))]], (1, 3));
    check_sure(&[&all, &again, &[Event::Cleared], &all], (3, 3));
    let other = store(Stored {
        hashes: hashes(&[92]),
        ..stored(16..32)
    });
    check_sure(&[&all, &[other], &[remove(&[92])]], (1, 3));
}

#[test]
fn a_known_block_that_is_stored_without_its_parent_is_sure_again() {
    let batches: [&[Event<'_>]; 6] = [
        &[store(stored(0..48))],
        &[store(stored(16..48))],
        &[remove(&[1])],
        &[remove(&[2])],
        &[store(stored(16..48))],
        &[store(stored(0..16))],
    ];
    check_sure(&batches, (3, 3));
    check_sure(&[batches[0], batches[1], batches[3]], (1, 3));
}

#[test]
fn what_became_of_blocks_while_they_waited_counts() {
    let (first, rest) = ([store(stored(0..16))], [store(stored(16..48))]);
    let gone = [remove(&[3])];
    check_sure(&[&rest, &first], (3, 3));
    check_sure(&[&rest, &gone, &first], (2, 2));
    check_sure(&[&rest, &rest, &gone, &first], (2, 3));
    check_sure(&[&rest, &rest, &gone, &rest, &first], (3, 3));
    let engine = Engine::after(&[&rest, &gone, &first]);
    let third = names(0..48)[2];
    assert!(!engine.changes.contains(&Change::Stored(third)));
}

#[test]
fn what_became_of_a_held_block_counts_for_more_than_when_it_waited() {
    // The same blocks under another parent's name, which comes late.
    let waits = Stored {
        parent: Some(EngineHash(91)),
        hashes: hashes(&[92, 3]),
        ..stored(16..48)
    };
    let parent = Stored {
        hashes: hashes(&[91]),
        ..stored(0..16)
    };
    let batches: [&[Event<'_>]; 5] = [
        &[store(waits)],
        &[store(stored(0..48))],
        &[store(stored(32..48))],
        &[remove(&[3])],
        &[store(parent)],
    ];
    check_sure(&batches, (2, 3));
    check_sure(&[batches[0], batches[1], batches[2], batches[4]], (3, 3));
}

#[test]
fn what_does_not_pair_is_never_sure() {
    let odd = Stored {
        hashes: hashes(&[8, 9]),
        ..stored(0..48)
    };
    check_sure(&[&[store(odd.clone())]], (0, 3));
    let paired = [store(stored(0..48))];
    check_sure(&[&[store(odd.clone())], &paired], (3, 3));
    check_sure(&[&paired, &[store(odd)], &[remove(&[9])]], (0, 3));
}

#[test]
fn groups_without_a_kind_must_all_be_sure() {
    let group = |group, tokens| {
        store(without_kind(Stored {
            group: Some(group),
            ..stored(tokens)
        }))
    };
    check_sure(&[&[group(0, 0..48), group(1, 0..32)]], (2, 3));
    let gone = remove(&[1]);
    check_sure(&[&[group(0, 0..48), group(1, 0..48)], &[gone]], (0, 3));
    // One whose hashes never pair is no such group.
    let state = store(without_kind(mamba(0..48, 1)));
    check_sure(&[&[group(0, 0..48), state]], (3, 3));
    let nameless = store(Stored {
        group: None,
        ..stored(0..48)
    });
    check_sure(&[&[nameless, group(0, 0..32)]], (3, 3));
}

#[test]
fn every_attention_group_must_be_sure_of_a_block() {
    let group = |group, tokens| {
        store(Stored {
            group: Some(group),
            ..stored(tokens)
        })
    };
    let both = [group(0, 0..48), group(1, 0..48)];
    let again = [group(1, 0..48)];
    let gone = [Event::Removed(Removed {
        group: Some(1),
        ..removed(&[2])
    })];
    check_sure(&[&both], (3, 3));
    check_sure(&[&both, &again, &gone], (1, 3));
    check_sure(&[&both, &again, &gone, &[group(0, 0..48)]], (1, 3));
    check_sure(&[&both, &again, &gone, &again], (3, 3));
    let engine = Engine::after(&[&[group(1, 0..16)], &both[..1]]);
    let told = |at: usize| engine.changes.contains(&Change::Stored(names(0..48)[at]));
    assert!(told(0) && !told(1), "the other group lacks it");
}

#[test]
fn a_hash_names_a_block_on_the_device() {
    let host = store(Stored {
        medium: Medium::Host,
        ..stored(16..32)
    });
    let engine = Engine::after(&[&[store(stored(0..16)), host]]);
    let named = |name| engine.view.own_of(engine.source, EngineHash(name));
    assert_eq!(named(1), Some(names(0..16)[0]));
    assert_eq!((named(2), named(3)), (None, None));
    assert_eq!(engine.view.shapes_of(engine.source), [SHAPE]);
    let other = store(Stored {
        group: Some(7),
        tokens: (5..21).collect(),
        ..stored(0..16)
    });
    let engine = Engine::after(&[&[store(stored(0..16)), other]]);
    let named = |name| engine.view.own_of(engine.source, EngineHash(name));
    assert_eq!(named(1), None, "which of the two?");
}

#[test]
fn what_is_no_chain_is_followed_as_far_as_it_is_one() {
    let engine = Engine::after(&[&[store(stored(0..1600))]]);
    let names = names(0..1600);
    assert_eq!(engine.resident(&names), 100);
    let pick = |places: &[usize]| -> Vec<_> { places.iter().map(|&at| names[at]).collect() };
    assert_eq!(engine.resident(&pick(&[0, 1, 3])), 2);
    assert_eq!(engine.resident(&pick(&[1, 2, 3])), 0);
    assert_eq!(engine.resident(&pick(&[0, 99])), 1);
    assert_eq!(engine.resident(&pick(&[0, 32])), 1);
    assert_eq!(engine.resident(&pick(&[32, 33])), 0);
    assert_eq!(engine.resident(&[]), 0);
    let branch = store(Stored {
        parent: Some(EngineHash(40)),
        ..stored(5000..5016)
    });
    let engine = Engine::after(&[&[store(stored(0..1600)), branch]]);
    let tokens: Vec<u32> = (0..640).chain(5000..5016).collect();
    let mut branched = chain(&prompt(&tokens), SHAPE);
    assert_eq!(engine.resident(&branched), 41);
    branched.remove(39);
    assert_eq!(engine.resident(&branched), 39);
}

#[test]
fn a_group_that_shows_itself_late_ends_what_rests_on_the_others_alone() {
    let group = |group, kind| {
        store(Stored {
            group: Some(group),
            kind,
            ..stored(0..48)
        })
    };
    let other = |kind| {
        store(Stored {
            group: Some(1),
            kind,
            parent: None,
            ..stored(4800..4816)
        })
    };
    for kind in [Kind::Attention, Kind::Absent] {
        let mut engine = Engine::after(&[&[group(0, kind)]]);
        assert_eq!(engine.resident(&names(0..48)), 3);
        engine.changes.clear();
        engine.send(&[other(kind)]);
        assert_eq!(engine.resident(&names(0..48)), 0);
        for own in names(0..48) {
            let is_gone = false;
            let told = Change::Removed { own, is_gone };
            assert!(engine.changes.contains(&told), "{kind:?}");
        }
        engine.changes.clear();
        engine.send(&[group(1, kind)]);
        assert_eq!(engine.resident(&names(0..48)), 3);
        let again = names(0..48).into_iter().map(Change::Stored);
        assert!(engine.changes.iter().eq(&again.collect::<Vec<_>>()));
    }
}

#[test]
fn where_a_group_on_the_device_finds_no_room_nothing_is_there() {
    let of = |group, medium| {
        store(Stored {
            group: Some(group),
            medium,
            ..stored(0..16)
        })
    };
    let mut engine = Engine::after(&[&[of(0, Medium::Device)]]);
    for group in 1..16 {
        engine.send(&[of(group, Medium::Host)]);
    }
    assert_eq!(engine.resident(&names(0..16)), 1);
    // A lower tier that finds none is not missed.
    engine.send(&[of(20, Medium::Disk)]);
    assert_eq!(engine.resident(&names(0..16)), 1);
    engine.send(&[of(21, Medium::Device)]);
    assert_eq!(engine.resident(&names(0..16)), 0);
    assert_eq!(engine.finds_tokens(0..16), (0, 16));
    assert_eq!(engine.changes.last(), Some(&Change::Cleared));
    engine.send(&[of(0, Medium::Device)]);
    assert_eq!(engine.resident(&names(0..16)), 0);
    let reset = engine.view.reset(engine.source, &mut engine.changes);
    assert!(reset.is_some());
    engine.send(&[of(0, Medium::Device)]);
    assert_eq!(engine.resident(&names(0..16)), 1);
}
