//! Donors across restarts: what was acknowledged is there again, and nothing else.

mod device;

use std::{collections::BTreeMap, path::Path};

use proptest::prelude::*;
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};

use super::*;
use crate::donors::{
    catalog::Donor,
    gate::Gates,
    namespace::Namespace,
    owners::OwnerKey,
    record::{DonorRecord, donor_key},
    vocabulary::{Medium, Mode},
    writes::{Admission, NewDonor},
};

const NOW_MS: u64 = 1000;
const ROOM: Capacity = Capacity {
    donors_max: 1000,
    tokens_max: 1 << 30,
};

/// A writer at work, and the ways to it.
struct Scene {
    runtime: Runtime,
    writes: Writes,
    catalog: Arc<Catalog>,
    texts: DonorTexts,
    loaded: Loaded,
}

fn run<T>(folder: &Path, capacity: Capacity, act: impl FnOnce(&Scene) -> T) -> T {
    let store = Arc::new(Store::open(folder).unwrap().0);
    let defaults = Defaults {
        mode: Mode::Materialize,
        mode_is_given: true,
        gates: Gates::default(),
    };
    let Opened {
        writer,
        writes,
        catalog,
        texts,
        loaded,
    } = Writer::open(store, defaults, capacity).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| writer.run());
        let scene = Scene {
            runtime: Builder::new_current_thread().build().unwrap(),
            writes,
            catalog,
            texts,
            loaded,
        };
        act(&scene)
    })
}

impl Scene {
    fn register(&self, new: NewDonor) -> Registered {
        let pending = self.writes.try_register(new).unwrap();
        self.runtime.block_on(pending).unwrap().unwrap()
    }

    fn remove(&self, removal: Removal) -> u64 {
        self.runtime.block_on(self.writes.remove(removal)).unwrap()
    }

    fn donor(&self, id: &str) -> Option<Arc<Donor>> {
        let shard = self.catalog.shard(namespace(0).id())?;
        let donors = shard.read();
        donors.by_id(id).map(Arc::clone)
    }

    /// Sequence and tokens of every donor.
    fn all(&self) -> BTreeMap<String, (u64, u32)> {
        let shards = self.catalog.shards();
        let of = |shard: &Arc<crate::donors::catalog::Shard>| {
            let donors = shard.read();
            let held = donors.iter().map(|donor| {
                let name = format!("{}/{}", shard.id, donor.id);
                (name, (donor.sequence, donor.captured_tokens))
            });
            held.collect::<Vec<_>>()
        };
        shards.iter().flat_map(of).collect()
    }
}

fn namespace(number: u8) -> Namespace {
    Namespace {
        model: format!("model-{number}"),
        block_size: 16,
        ..Namespace::default()
    }
}

fn owner(number: u8) -> OwnerKey {
    OwnerKey {
        worker_id: format!("worker-{number}").into(),
        data_parallel_rank: 1,
    }
}

fn new(id: &str, seed: u32) -> NewDonor {
    NewDonor {
        donor_id: id.into(),
        namespace: NamespaceName::Full(Box::new(namespace(0))),
        owner: owner(0),
        owner_generation: 7,
        captured: (0..64 + seed % 9)
            .map(|at| (seed * 1000 + at).wrapping_mul(26_544) % 50_021)
            .collect(),
        exact_tokens: 32,
        medium: Medium::Host,
        store_id: "host-a".into(),
        source_request_id: "request".into(),
        block_names: Vec::new(),
        text: None,
        now_ms: NOW_MS,
    }
}

#[test]
fn a_donor_comes_back_whole_and_serves_once_its_owner_is_heard_from() {
    let folder = TempDir::new().unwrap();
    let (host, device) = (new("host", 1), new("device", 2));
    let captured = host.captured.clone();
    run(folder.path(), ROOM, |scene| {
        scene.register(host);
        scene.register(NewDonor {
            medium: Medium::Device,
            ..device
        });
    });
    run(folder.path(), ROOM, |scene| {
        assert_eq!(
            (
                scene.loaded.donors,
                scene.loaded.damaged,
                scene.loaded.torn_bytes
            ),
            (2, 0, 0)
        );
        let donor = scene.donor("host").unwrap();
        assert_eq!(
            (&*donor.store_id, &*donor.source_request_id),
            ("host-a", "request")
        );
        assert_eq!((donor.owner_generation, donor.exact_tokens), (7, 32));
        assert_eq!(donor.owner.key, owner(0));
        let shard = scene.catalog.shard(namespace(0).id()).unwrap();
        let donors = shard.read();
        let mut held = (0..2).filter_map(|slot| donors.index.tokens(slot));
        assert!(held.any(|tokens| tokens.len() == captured.len() && tokens.starts_with(&captured)));
        drop(donors);

        let leasable = |id| {
            let donor = scene.donor(id).unwrap();
            donor.unleasable(NOW_MS, donor.sight()).is_none()
        };
        assert!(!leasable("host"), "its owner was not heard from");
        scene
            .catalog
            .owners
            .announce(&owner(0), 7, NOW_MS + 1, NOW_MS)
            .unwrap();
        assert!(leasable("host"));
        assert!(!leasable("device"), "what lay on the device may be gone");
        scene
            .catalog
            .owners
            .announce(&owner(0), 8, NOW_MS + 1, NOW_MS)
            .unwrap();
        assert!(!leasable("host"), "of an older generation");
    });
}

#[derive(Clone, Debug)]
enum Step {
    Register(u8, u8, u32),
    RemoveIds(u8, Vec<u8>),
    RemoveOwner(u8),
    RemoveOlder(u8, u64),
    RemoveNamespace(u8),
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => (0_u8..3, 0_u8..20, any::<u32>())
            .prop_map(|(namespace, id, seed)| Step::Register(namespace, id, seed % 5000)),
        3 => (0_u8..3, prop::collection::vec(0_u8..20, 1..5))
            .prop_map(|(namespace, ids)| Step::RemoveIds(namespace, ids)),
        1 => (0_u8..3).prop_map(Step::RemoveOwner),
        1 => (0_u8..3, 0_u64..4).prop_map(|(owner, generation)| {
            Step::RemoveOlder(owner, generation)
        }),
        1 => (0_u8..3).prop_map(Step::RemoveNamespace),
        2 => Just(Step::Restart),
    ]
}

/// By namespace and id: owner and generation.
type Model = BTreeMap<(u8, u8), (u8, u64)>;

fn take(scene: &Scene, model: &mut Model, step: &Step) {
    let known = |namespace_number| {
        let id = namespace(namespace_number).id();
        scene.catalog.shard(id).map(|_| NamespaceName::Id(id))
    };
    let before = model.len();
    let removal = match step {
        Step::Register(at, id, seed) => {
            let number = u8::try_from(seed % 3).unwrap();
            let generation = u64::from(seed / 3 % 4);
            let mut donor = new(&format!("donor-{id}"), *seed);
            donor.namespace = NamespaceName::Full(Box::new(namespace(*at)));
            donor.owner = owner(number);
            donor.owner_generation = generation;
            let pending = scene.writes.try_register(donor).unwrap();
            match scene.runtime.block_on(pending).unwrap() {
                Ok(registered) => match registered.admission {
                    Admission::Added | Admission::Replaced => {
                        let replaced = model.insert((*at, *id), (number, generation)).is_some();
                        assert_eq!(replaced, registered.admission == Admission::Replaced);
                    }
                    Admission::Covered(_) | Admission::NothingCaptured => {
                        model.remove(&(*at, *id));
                    }
                },
                Err(WriteRefusal::Owner(_)) => {}
                Err(refusal) => panic!("{refusal}"),
            }
            return;
        }
        Step::RemoveIds(at, ids) => {
            ids.iter().for_each(|id| _ = model.remove(&(*at, *id)));
            let ids = ids.iter().map(|id| format!("donor-{id}")).collect();
            known(*at).map(|name| Removal::Ids(name, ids))
        }
        Step::RemoveOwner(number) => {
            model.retain(|_, (owner, _)| owner != number);
            Some(Removal::Owner(owner(*number)))
        }
        Step::RemoveOlder(number, below) => {
            model.retain(|_, (owner, generation)| owner != number || *generation >= *below);
            Some(Removal::OlderThan(owner(*number), *below))
        }
        Step::RemoveNamespace(at) => {
            model.retain(|(namespace, _), _| namespace != at);
            known(*at).map(Removal::Namespace)
        }
        Step::Restart => return,
    };
    let removed = removal.map_or(0, |removal| scene.remove(removal));
    assert_eq!(removed, (before - model.len()) as u64);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn every_restart_finds_what_the_last_run_held(
        steps in prop::collection::vec(step(), 1..60)
    ) {
        let folder = TempDir::new().unwrap();
        let mut model = Model::new();
        let mut all = None;
        for run_of_steps in steps.split(|step| matches!(step, Step::Restart)) {
            all = Some(run(folder.path(), ROOM, |scene| {
                if let Some(all) = &all {
                    assert_eq!(&scene.all(), all);
                }
                run_of_steps.iter().for_each(|step| take(scene, &mut model, step));
                let names = model.keys().map(|(at, id)| {
                    format!("{}/donor-{id}", namespace(*at).id())
                });
                let mut names: Vec<_> = names.collect();
                names.sort();
                assert_eq!(scene.all().into_keys().collect::<Vec<_>>(), names);
                scene.all()
            }));
        }
    }
}

#[test]
fn an_owner_does_not_take_along_who_has_its_slot_now() {
    let folder = TempDir::new().unwrap();
    run(folder.path(), ROOM, |scene| {
        scene.register(new("first", 1));
        let ids = vec!["first".to_owned()];
        scene.remove(Removal::Ids(NamespaceName::Id(namespace(0).id()), ids));
        scene.register(NewDonor {
            owner: owner(1),
            ..new("second", 2)
        });
        assert_eq!(scene.remove(Removal::Owner(owner(0))), 0);
        assert_eq!(scene.remove(Removal::Owner(owner(1))), 1);
    });
}

#[test]
fn what_was_evicted_stays_away() {
    let folder = TempDir::new().unwrap();
    let few = Capacity {
        donors_max: 5,
        ..ROOM
    };
    let all = run(folder.path(), few, |scene| {
        for number in 0..20 {
            scene.register(new(&format!("donor-{number}"), number));
        }
        scene.all()
    });
    assert_eq!(all.len(), 5);
    run(folder.path(), few, |scene| assert_eq!(scene.all(), all));
}

/// A donor as a store held it before the log: tokens and all in one record.
fn put_into_records(store: &Store, id: &str, sequence: u64, captured: Vec<u32>) {
    let id_of_namespace = namespace(0).id();
    let space = NamespaceRecord::new(&namespace(0), &Settings::default()).encode_to_vec();
    let record = DonorRecord {
        worker_id: "worker-0".into(),
        data_parallel_rank: 1,
        owner_generation: 7,
        exact_tokens: 32,
        medium: 2,
        store_id: "host-a".into(),
        source_request_id: "request".into(),
        epoch: 1,
        sequence,
        captured,
        ..DonorRecord::default()
    };
    let changes = [
        Change::Put {
            table: Table::Namespaces,
            key: &id_of_namespace.0,
            payload: &space,
        },
        Change::Put {
            table: Table::Donors,
            key: &donor_key(id_of_namespace, id),
            payload: &record.encode_to_vec(),
        },
    ];
    store.write(&changes).unwrap();
    store.commit().unwrap();
}

#[test]
fn donors_among_the_records_move_to_the_log_once() {
    let folder = TempDir::new().unwrap();
    let captured = new("old-1", 1).captured;
    {
        let (store, _) = Store::open(folder.path()).unwrap();
        for number in 0..3 {
            let sequence = store.next_sequence().unwrap();
            let captured = new("", number).captured;
            put_into_records(&store, &format!("old-{number}"), sequence, captured);
        }
    }
    run(folder.path(), ROOM, |scene| {
        assert_eq!((scene.loaded.donors, scene.loaded.damaged), (3, 0));
        let donor = scene.donor("old-1").unwrap();
        assert_eq!(donor.captured_tokens as usize, captured.len());
        assert_eq!((&*donor.store_id, donor.owner_generation), ("host-a", 7));
        let ids = vec!["old-0".to_owned()];
        assert_eq!(
            scene.remove(Removal::Ids(NamespaceName::Id(namespace(0).id()), ids)),
            1
        );
        scene.register(new("old-1", 9));
    });
    {
        // As after a crash between the log's commit and the removal from the records.
        let (store, _) = Store::open(folder.path()).unwrap();
        assert_eq!(
            store.scan(Table::Donors, &mut |_, _| {}).unwrap().visited,
            0
        );
        for number in 0..2 {
            put_into_records(&store, &format!("old-{number}"), 1 << 40, captured.clone());
        }
    }
    run(folder.path(), ROOM, |scene| {
        assert_eq!((scene.loaded.donors, scene.loaded.damaged), (2, 0));
        assert!(scene.donor("old-0").is_none(), "it was removed since");
        assert!(
            scene.donor("old-1").unwrap().sequence > 1 << 40,
            "it was replaced since"
        );
    });
}

#[test]
fn a_text_is_read_back_wherever_the_log_has_moved_it() {
    const CHURN: u32 = 60;
    const CHURN_BYTES: usize = 4 << 20;
    let folder = TempDir::new().unwrap();
    let text = "the prompt, as it was".repeat(100);
    run(folder.path(), ROOM, |scene| {
        let with_text = |id: &str, seed, text: String| NewDonor {
            text: Some(text.into()),
            ..new(id, seed)
        };
        scene.register(with_text("kept", 1, text.clone()));
        scene.register(new("plain", 2));
        let (donor, plain) = (scene.donor("kept").unwrap(), scene.donor("plain").unwrap());
        let first = donor.place.get();
        assert_eq!(scene.texts.of(&donor).as_ref(), Some(&text));
        assert_eq!(
            (scene.texts.of(&plain), scene.texts.read(plain.place.get())),
            (None, None)
        );
        for number in 0..CHURN {
            let filler = char::from(b'a' + number.to_le_bytes()[0] % 26).to_string();
            scene.register(with_text("churn", 3, filler.repeat(CHURN_BYTES)));
        }
        assert!(
            donor.place.get().segment > first.segment,
            "space was given back"
        );
        assert_eq!(scene.texts.read(first), None);
        assert_eq!(scene.texts.of(&donor).as_ref(), Some(&text));
        let files = std::fs::read_dir(folder.path().join("donors")).unwrap();
        let bytes: u64 = files
            .map(|file| file.unwrap().metadata().unwrap().len())
            .sum();
        assert!(bytes < 200 << 20, "{bytes} bytes for less than 5 MB");
    });
    run(folder.path(), ROOM, |scene| {
        let donor = scene.donor("kept").unwrap();
        assert_eq!(scene.texts.of(&donor), Some(text));
        assert_eq!(scene.loaded.donors, 3);
    });
}

/// A log that is gone is counted at every start, until donors are registered anew.
#[test]
fn a_log_that_was_deleted_is_missed() {
    let folder = TempDir::new().unwrap();
    let log = folder.path().join("donors");
    let check = |donors: u64, is_missing: bool| {
        run(folder.path(), ROOM, |scene| {
            let loaded = scene.loaded;
            assert_eq!(
                (loaded.donors, loaded.log_is_missing, loaded.damaged),
                (donors, is_missing, u64::from(is_missing))
            );
        });
    };
    check(0, false);
    std::fs::remove_dir_all(&log).unwrap();
    check(0, false);
    run(folder.path(), ROOM, |scene| {
        scene.register(new("one", 1));
    });
    check(1, false);
    std::fs::remove_dir_all(&log).unwrap();
    check(0, true);
    check(0, true);
    run(folder.path(), ROOM, |scene| {
        scene.register(new("two", 2));
    });
    check(1, false);
    // All removed is not the same as gone.
    run(folder.path(), ROOM, |scene| {
        let name = NamespaceName::Full(Box::new(namespace(0)));
        let donor_ids = vec!["two".into()];
        let removed = scene.remove(Removal::Ids(name, donor_ids));
        assert_eq!(removed, 1);
    });
    check(0, false);
}
