//! What a donor in device memory goes through, one case each.

use super::*;
use crate::donors::{answer::Outcome, residents::ties::Counts, vocabulary::FallbackReason};

const PATH: [u8; 5] = [1, 2, 3, 4, 5];

#[track_caller]
fn check_miss(answer: &Answer, detail: &str) {
    assert_eq!(
        answer.reason,
        Some(FallbackReason::DonorStale),
        "{answer:?}"
    );
    assert!(answer.lease.is_none() && answer.found.is_none());
    assert!(answer.detail.contains(detail), "{}", answer.detail);
}

/// So many blocks of the donor are offered, and leased.
#[track_caller]
fn check_leased(world: &World, answer: &Answer, donor: &str, blocks: u32) {
    let found = answer
        .found
        .as_ref()
        .unwrap_or_else(|| panic!("{answer:?}"));
    assert_eq!(&*found.donor.id, donor);
    let prefix = found.worth.prefix.unwrap();
    assert_eq!(prefix.tokens, blocks * SIZE);
    assert!(world.is_valid(answer));
}

#[test]
fn a_donor_lives_and_dies_with_its_blocks() {
    let mut world = World::exact();
    world.register(New::of("a", &PATH));
    check_miss(&world.find(&tokens(&PATH)), "no KV event");

    world.send(0, &[stored(0, &PATH, 0)]);
    let whole = world.find(&tokens(&PATH));
    check_leased(&world, &whole, "a", 5);

    world.send(0, &[removed(0, &PATH[..4])]);
    assert!(!world.is_valid(&whole), "its fourth block is gone");
    let part = world.find(&tokens(&PATH));
    check_leased(&world, &part, "a", 3);
    let spans = &part.found.as_ref().unwrap().spans;
    assert!(spans.iter().all(|(span, _)| span.donor_end() <= 3 * SIZE));

    world.send(0, &[removed(0, &PATH[..1])]);
    assert!(!world.is_valid(&part));
    check_miss(&world.find(&tokens(&PATH)), "left the device memory");

    // The blocks beyond were there all the time.
    world.send(0, &[stored(0, &PATH[..1], 0)]);
    check_leased(&world, &world.find(&tokens(&PATH)), "a", 3);
    world.send(0, &[stored(0, &PATH[..4], 3)]);
    check_leased(&world, &world.find(&tokens(&PATH)), "a", 5);
    assert!(!world.is_valid(&whole), "what was stale stays so");
}

#[test]
fn a_lease_ends_with_a_copy_of_one_of_its_blocks() {
    let mut world = World::exact();
    world.register(New::of("a", &PATH));
    world.send(0, &[stored(0, &PATH, 0), stored(0, &PATH[..2], 1)]);
    let leased = world.find(&tokens(&PATH));
    check_leased(&world, &leased, "a", 5);
    world.send(0, &[removed(0, &PATH[..2])]);
    assert!(!world.is_valid(&leased), "which copy is left, nobody says");
    check_leased(&world, &world.find(&tokens(&PATH)), "a", 1);
    world.send(0, &[stored(0, &PATH[..2], 1)]);
    check_leased(&world, &world.find(&tokens(&PATH)), "a", 5);
    assert!(!world.is_valid(&leased));
}

#[test]
fn a_clear_ends_everything() {
    let mut world = World::exact();
    world.send(0, &[stored(0, &PATH, 0)]);
    world.register(New::of("a", &PATH));
    let leased = world.find(&tokens(&PATH));
    check_leased(&world, &leased, "a", 5);
    world.send(0, &[Event::Cleared, stored(0, &PATH[..3], 0)]);
    assert!(!world.is_valid(&leased));
    check_leased(&world, &world.find(&tokens(&PATH)), "a", 3);
}

#[test]
fn a_batch_comes_to_each_donor_twice_at_most() {
    const MANY: u8 = 50;
    let mut world = World::exact();
    // They share all but the last block.
    let path = |donor: u8| [1, 2, 3, 4, donor];
    for donor in 0..MANY {
        world.register(New::of(&format!("{donor}"), &path(donor)));
    }
    let shared = &path(0)[..4];
    let own = |donor: u8| stored(0, &path(donor), 4);
    world.send(0, &[stored(0, shared, 0)]);
    world.send(0, &(0..MANY).map(own).collect::<Vec<_>>());
    let leased = world.find(&tokens(&path(7)));
    check_leased(&world, &leased, "7", 5);

    // From the end, as engines do, each often: what is left of them is not known.
    let go = (0..4).rev().flat_map(|end| {
        let gone = removed(0, &shared[..=end]);
        std::iter::repeat_n(gone, 20)
    });
    let come = std::iter::repeat_n(stored(0, shared, 0), 20);
    world.visits(0);
    world.send(0, &come.chain(go).collect::<Vec<_>>());
    assert_eq!(world.visits(0), usize::from(MANY), "one for what went");
    assert!(!world.is_valid(&leased));
    check_miss(&world.find(&tokens(&path(7))), "left the device memory");
    world.send(0, &vec![stored(0, shared, 0); 20]);
    assert_eq!(world.visits(0), usize::from(MANY), "one for what came");
    check_leased(&world, &world.find(&tokens(&path(7))), "7", 5);

    let leased = world.find(&tokens(&path(8)));
    let mut clears = vec![Event::Cleared; 20];
    clears.insert(10, stored(0, shared, 0));
    clears.push(stored(0, shared, 0));
    world.send(0, &clears);
    assert_eq!(world.visits(0), 2 * usize::from(MANY));
    assert!(!world.is_valid(&leased));
    check_leased(&world, &world.find(&tokens(&path(8))), "8", 4);
}

#[test]
fn nobody_leases_from_a_device_that_is_in_doubt() {
    let mut world = World::exact();
    world.send(0, &[stored(0, &PATH, 0)]);
    world.register(New::of("a", &PATH));
    let leased = world.find(&tokens(&PATH));
    check_leased(&world, &leased, "a", 5);
    world.set_exact(0, false);
    assert!(!world.is_valid(&leased));
    check_miss(&world.find(&tokens(&PATH)), "gaps");
    world.set_exact(0, true);
    assert!(!world.is_valid(&leased));
    check_leased(&world, &world.find(&tokens(&PATH)), "a", 5);
    world.forget(0);
    check_miss(&world.find(&tokens(&PATH)), "not followed");
    world.set_exact(0, true);
    check_miss(&world.find(&tokens(&PATH)), "not followed");
}

#[test]
fn a_source_that_comes_later_confirms_donors_that_were_there() {
    let mut world = World::new(1, Mode::Materialize, namespace());
    for donor in 0..200_u8 {
        let path = [donor; 3];
        world.register(New::of(&format!("{donor}"), &path));
    }
    world.follow(0, None);
    world.set_exact(0, true);
    for donor in 0..200 {
        world.send(0, &[stored(0, &[donor; 3], 0)]);
        let answer = world.find(&tokens(&[donor; 3]));
        check_leased(&world, &answer, &format!("{donor}"), 3);
    }
}

#[test]
fn a_source_takes_the_place_of_an_older_one() {
    let mut world = World::exact();
    world.send(0, &[stored(0, &PATH, 0)]);
    world.register(New::of("a", &PATH));
    let leased = world.find(&tokens(&PATH));
    let older = world.sources[0].unwrap();
    world.follow(0, None);
    assert!(!world.is_valid(&leased));
    world.catalog.residents.set_exact(older, true);
    world.send(0, &[stored(0, &PATH[..2], 0)]);
    check_miss(&world.find(&tokens(&PATH)), "gaps");
    world.set_exact(0, true);
    world.catalog.residents.forget(older);
    check_leased(&world, &world.find(&tokens(&PATH)), "a", 2);
}

#[test]
fn blocks_of_another_tenant_adapter_or_model_confirm_nobody() {
    let check = |edit: fn(&mut Namespace), names: Vec<EngineHash>, is_leased: bool| {
        let mut other = namespace();
        edit(&mut other);
        let mut world = World::new(1, Mode::Materialize, other);
        world.follow(0, Some(&namespace()));
        world.set_exact(0, true);
        world.send(0, &[stored(0, &PATH, 0)]);
        world.register(New {
            names,
            ..New::of("a", &PATH)
        });
        let answer = world.find(&tokens(&PATH));
        assert_eq!(answer.lease.is_some(), is_leased, "{answer:?}");
    };
    check(|_| {}, Vec::new(), true);
    let tenant = |it: &mut Namespace| it.tenant_key = format!("semblend:tenant:v1:{:032}", 1);
    let adapter = |it: &mut Namespace| it.adapter = "poet".into();
    let images = |it: &mut Namespace| it.multimodal_hashes = vec!["image".into()];
    check(tenant, Vec::new(), false);
    check(adapter, Vec::new(), false);
    check(images, Vec::new(), false);
    check(|it| it.model = "other".into(), Vec::new(), false);
    check(|it| it.kv_layout = "other".into(), Vec::new(), false);
    // Also where the names are right: the tokens would make other blocks.
    check(tenant, names(0, &PATH), false);
    check(images, names(0, &PATH), true);
}

#[test]
fn names_must_be_those_of_the_donors_blocks() {
    let mut world = World::exact();
    let named = |id, names| New {
        names,
        ..New::of(id, &PATH)
    };
    world.register(named("a", names(0, &PATH)));
    check_miss(&world.find(&tokens(&PATH)), "no KV event");
    world.send(0, &[stored(0, &PATH, 0)]);
    check_leased(&world, &world.find(&tokens(&PATH)), "a", 5);

    let unknown = [names(0, &PATH[..2]), vec![EngineHash(1); 3]].concat();
    world.register(named("a", unknown));
    check_leased(&world, &world.find(&tokens(&PATH)), "a", 2);

    let other = [1, 2, 9, 9, 9];
    world.register(named("a", names(0, &other)));
    check_leased(&world, &world.find(&tokens(&PATH)), "a", 2);
    world.send(0, &[stored(0, &other, 2)]);
    let answer = world.find(&tokens(&PATH));
    assert!(
        answer.lease.is_none(),
        "it says of itself what is not so: {answer:?}"
    );
}

#[test]
fn donors_whose_blocks_only_names_tell_each_have_their_turn() {
    const MANY: u8 = 100;
    let mut images = namespace();
    images.multimodal_hashes = vec!["image".into()];
    let mut world = World::new(1, Mode::Materialize, images);
    world.follow(0, Some(&namespace()));
    world.set_exact(0, true);
    let path = |donor: u8| [donor; 3];
    for donor in 0..MANY {
        world.register(New {
            names: names(0, &path(donor)),
            ..New::of(&format!("{donor}"), &path(donor))
        });
    }
    for donor in 0..MANY {
        world.send(0, &[stored(0, &path(donor), 0)]);
    }
    for turn in 0..usize::from(MANY).div_ceil(NAMED_PER_CALL_MAX) {
        world.send(0, &[stored(0, &[MANY, u8::try_from(turn).unwrap()], 0)]);
    }
    for donor in 0..MANY {
        let answer = world.find(&tokens(&path(donor)));
        check_leased(&world, &answer, &format!("{donor}"), 3);
    }
    let leased = world.find(&tokens(&path(7)));
    world.send(0, &[removed(0, &path(7)[..2])]);
    assert!(!world.is_valid(&leased));
    check_leased(&world, &world.find(&tokens(&path(7))), "7", 1);
    assert_eq!(world.counts(0).unread, 1);
    world.send(0, &[stored(0, &path(7)[..2], 1)]);
    check_leased(&world, &world.find(&tokens(&path(7))), "7", 3);
    for donor in 0..MANY {
        world.catalog.unpublish(&world.shard, &format!("{donor}"));
    }
    assert_eq!(world.counts(0), Counts::default());
}

#[test]
fn a_token_is_there_where_every_shape_has_it() {
    let mut world = World::exact();
    world.send(0, &[stored(0, &PATH, 0)]);
    world.register(New::of("a", &PATH));
    let leased = world.find(&tokens(&PATH));
    check_leased(&world, &leased, "a", 5);
    // Another group of layers, in blocks of half the size.
    let halves = |event: Event<'static>, group| match event {
        Event::Stored(stored) => Event::Stored(Stored {
            hashes: (0..2 * stored.hashes.len() as u64)
                .map(EngineHash)
                .collect(),
            block_size: SIZE / 2,
            group: Some(group),
            ..stored
        }),
        Event::Removed(_) | Event::Cleared => panic!("blocks are stored"),
    };
    world.send(0, &[halves(stored(0, &PATH[..2], 0), 1)]);
    assert!(
        !world.is_valid(&leased),
        "the other layers of most of it are not there"
    );
    check_leased(&world, &world.find(&tokens(&PATH)), "a", 2);
    world.register(New::of("b", &PATH[..3]));
    check_leased(&world, &world.find(&tokens(&PATH[..3])), "b", 2);
    let half = Removed {
        hashes: vec![EngineHash(1)],
        medium: event::Medium::Device,
        group: Some(1),
    };
    let leased = world.find(&tokens(&PATH));
    world.send(0, &[Event::Removed(half)]);
    assert!(!world.is_valid(&leased));
    assert!(
        world.find(&tokens(&PATH)).lease.is_none(),
        "half a block is left"
    );
}

#[test]
fn discovery_names_what_may_be_there_and_not_what_is_gone() {
    let mut world = World::new(1, Mode::DiscoveryOnly, namespace());
    world.register(New::of("a", &PATH));
    let check = |world: &World, blocks: u32| {
        let answer = world.find(&tokens(&PATH));
        assert_eq!(answer.outcome, Outcome::Prefix, "{answer:?}");
        assert_eq!(
            answer.found.as_ref().unwrap().worth.prefix.unwrap().tokens,
            blocks * SIZE
        );
        assert!(answer.lease.is_none());
    };
    check(&world, 5);
    world.follow(0, None);
    check(&world, 5);
    world.send(0, &[stored(0, &PATH[..3], 0)]);
    check(&world, 3);
    world.send(0, &[removed(0, &PATH[..1])]);
    check_miss(&world.find(&tokens(&PATH)), "left the device memory");
    world.register(New {
        medium: Medium::Host,
        ..New::of("b", &PATH[..2])
    });
    check(&world, 2);
}

#[test]
fn parts_of_donors_do_not_hide_whole_ones() {
    for mode in [Mode::Materialize, Mode::DiscoveryOnly] {
        let mut world = World::new(1, mode, namespace());
        world.follow(0, None);
        world.set_exact(0, true);
        for donor in 0..30 {
            world.register(New::of(&format!("{donor}"), &PATH));
        }
        world.send(0, &[stored(0, &PATH[..2], 0)]);
        world.register(New {
            medium: Medium::Host,
            ..New::of("host", &PATH[..3])
        });
        let found = world.find(&tokens(&PATH));
        assert_eq!(&*found.found.as_ref().unwrap().donor.id, "host");
        world.send(0, &[stored(0, &PATH[..4], 2)]);
        let found = world.find(&tokens(&PATH));
        let found = found.found.as_ref().unwrap();
        assert_eq!(found.worth.prefix.unwrap().tokens, 4 * SIZE);
        assert_ne!(&*found.donor.id, "host");
    }
}

#[test]
fn segments_end_where_their_donor_does() {
    let mut world = World::exact();
    world.send(0, &[stored(0, &PATH[..3], 0)]);
    world.register(New::of("a", &PATH));
    let answer = world.find_segments(&tokens(&PATH), 4);
    let ends: Vec<u32> = answer
        .segments
        .iter()
        .map(|it| it.span.donor_end())
        .collect();
    assert_eq!(ends, [3 * SIZE]);
}

#[test]
fn donors_off_the_device_need_no_events() {
    for medium in [Medium::Host, Medium::Disk] {
        let mut world = World::exact();
        world.register(New {
            medium,
            ..New::of("a", &PATH)
        });
        let leased = world.find(&tokens(&PATH));
        check_leased(&world, &leased, "a", 5);
        world.send(
            0,
            &[stored(0, &PATH, 0), removed(0, &PATH[..2]), Event::Cleared],
        );
        world.forget(0);
        assert!(world.is_valid(&leased));
        assert_eq!(world.counts(0), Counts::default());
    }
}

/// One thread takes events in, another one registers and removes what they are about.
#[test]
fn a_donor_knows_its_blocks_whatever_the_threads_do() {
    let mut world = World::exact();
    world.register(New::of("other", &PATH));
    for round in 0..300 {
        let start = std::sync::Barrier::new(2);
        let kept = std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                start.wait();
                let first = round * 4 + 2;
                (first..first + 4)
                    .map(|at| world.register_as(New::of("a", &PATH), at))
                    .last()
            });
            start.wait();
            for end in [5, 3, 4] {
                world.send(0, &[stored(0, &PATH, 0)]);
                world.send(0, &[removed(0, &PATH[..end])]);
            }
            if round % 2 == 0 {
                world.send(0, &[Event::Cleared]);
                world.send(0, &[stored(0, &PATH[..2], 0)]);
            }
            writer.join().unwrap().unwrap()
        });
        let expected = if round % 2 == 0 { 2 } else { 3 };
        let live = kept.claim.residency.live_tokens();
        assert_eq!(live, Some(expected * SIZE), "round {round}");
        let leased = world.find(&tokens(&PATH[..2]));
        check_leased(&world, &leased, &leased.found.as_ref().unwrap().donor.id, 2);
        world.send(0, &[removed(0, &PATH[..2])]);
        assert!(!world.is_valid(&leased), "round {round}");
        world.send(0, &[Event::Cleared]);
    }
}
