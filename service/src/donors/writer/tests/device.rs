//! Donors in device memory: admitted, kept and removed by what is known of their blocks.

use kvatlas_events::event::{self, EngineHash, Event, Kind, Removed, Stored};
use kvatlas_events::view::SourceId;

use super::*;

/// Tokens a block: enough for seeds.
const BLOCK: u32 = 64;
const BLOCKS: u32 = 4;

fn namespace() -> Namespace {
    Namespace {
        adapter: "none".into(),
        block_size: BLOCK,
        tenant_key: "semblend:tenant:v1:none".into(),
        ..super::namespace(0)
    }
}

/// A donor of whole blocks in device memory, with the engine's names of its blocks.
fn new(id: &str, blocks: u32, names: &[u64]) -> NewDonor {
    NewDonor {
        namespace: NamespaceName::Full(Box::new(namespace())),
        captured: tokens(blocks),
        exact_tokens: 0,
        medium: Medium::Device,
        block_names: names.iter().map(|&name| EngineHash(name)).collect(),
        ..super::new(id, 0)
    }
}

fn tokens(blocks: u32) -> Vec<u32> {
    (0..blocks * BLOCK)
        .map(|at| at.wrapping_mul(26_544) % 50_021)
        .collect()
}

impl Scene {
    /// The owner's engine is followed from now on, and holds these blocks.
    fn follow(&self, names: &[u64]) -> SourceId {
        let residents = &self.catalog.residents;
        let name = residents.engine_namespace(Some(&namespace()));
        let source = residents.view.add(name).unwrap();
        let owner = self.catalog.owners.get_or_add(&owner(0), NOW_MS).unwrap();
        residents.follow(&owner, source, name);
        self.tell(
            source,
            Event::Stored(Stored {
                hashes: names.iter().map(|&name| EngineHash(name)).collect(),
                parent: None,
                tokens: tokens(u32::try_from(names.len()).unwrap()),
                bigram_end: None,
                block_size: BLOCK,
                medium: event::Medium::Device,
                adapter: None,
                salt: None,
                extra: Vec::new(),
                group: None,
                kind: Kind::Absent,
                lookahead: Vec::new(),
            }),
        );
        source
    }

    fn tell(&self, source: SourceId, event: Event<'_>) {
        let mut changes = Vec::new();
        let residents = &self.catalog.residents;
        residents
            .view
            .apply(source, &[event], &mut changes)
            .unwrap();
        residents.changed(source, &changes);
    }

    fn live_tokens(&self, id: &str) -> Option<u32> {
        let shard = self.catalog.shard(namespace().id()).unwrap();
        let donors = shard.read();
        donors.by_id(id).unwrap().claim.residency.live_tokens()
    }
}

#[test]
fn names_of_blocks_outlast_a_restart() {
    let folder = TempDir::new().unwrap();
    run(folder.path(), ROOM, |scene| {
        scene.register(new("a", BLOCKS, &[1, 2, 3, 4]));
        scene.register(new("b", BLOCKS, &[1, 2, 30, 40]));
    });
    run(folder.path(), ROOM, |scene| {
        assert_eq!(scene.live_tokens("a"), None);
        scene.follow(&[1, 2, 3, 4]);
        assert_eq!(scene.live_tokens("a"), Some(BLOCKS * BLOCK));
        assert_eq!(scene.live_tokens("b"), Some(2 * BLOCK));
    });
}

#[test]
fn there_are_as_many_names_as_full_blocks() {
    let folder = TempDir::new().unwrap();
    run(folder.path(), ROOM, |scene| {
        for names in [&[1, 2, 3][..], &[1, 2, 3, 4, 5]] {
            let pending = scene.writes.try_register(new("a", BLOCKS, names)).unwrap();
            let refusal = scene.runtime.block_on(pending).unwrap().unwrap_err();
            let WriteRefusal::BlockHashes { given, full: 4 } = refusal else {
                panic!("{refusal}");
            };
            assert_eq!(given, names.len());
        }
        let mut with_tail = new("a", BLOCKS, &[1, 2, 3, 4]);
        with_tail.captured.push(7);
        scene.register(with_tail);
    });
}

#[test]
fn only_what_is_on_the_owners_device_goes_with_it() {
    let folder = TempDir::new().unwrap();
    run(folder.path(), ROOM, |scene| {
        scene.register(new("device", 2, &[]));
        scene.register(NewDonor {
            medium: Medium::Host,
            ..new("host", 3, &[])
        });
        scene.register(NewDonor {
            owner: owner(1),
            ..new("other", 4, &[])
        });
        assert_eq!(scene.remove(Removal::OnDevice(owner(0))), 1);
        let left: Vec<String> = scene.all().into_keys().collect();
        assert_eq!(left.len(), 2);
        assert!(
            !left.iter().any(|name| name.ends_with("/device")),
            "{left:?}"
        );
    });
}

#[test]
fn a_donor_covers_no_more_than_is_left_of_it() {
    let folder = TempDir::new().unwrap();
    run(folder.path(), ROOM, |scene| {
        let check = |id: &str, blocks, names: &[u64], admission| {
            let registered = scene.register(new(id, blocks, names));
            assert_eq!(registered.admission, admission);
        };
        let covered = || Admission::Covered("a".into());
        check("a", BLOCKS, &[], Admission::Added);
        // Nothing is known of either; but names may come to be known.
        check("b", 3, &[], covered());
        check("b", 3, &[1, 2, 3], Admission::Added);
        let source = scene.follow(&[1, 2, 3, 4]);
        check("b", 3, &[], covered());
        check("b", 3, &[1, 2, 3], covered());
        let removed = Removed {
            hashes: vec![EngineHash(3)],
            medium: event::Medium::Device,
            group: None,
        };
        scene.tell(source, Event::Removed(removed));
        check("b", 2, &[], covered());
        check("b", 3, &[], Admission::Added);
    });
}
