//! Donor leases one trait at a time, and the race that a model cannot show.

use std::sync::Arc;

use super::*;

/// One table, one donor of one owner that lives until 100 s.
struct Scene {
    table: DonorLeases,
    claim: Arc<Claim>,
    owner: Arc<OwnerLife>,
}

impl Scene {
    fn new(capacity: usize) -> Self {
        let owner = OwnerLife::default();
        owner.announce(7, 100_000);
        Self {
            table: DonorLeases::new(1, capacity),
            claim: Arc::default(),
            owner: Arc::new(owner),
        }
    }

    fn acquire(&self, now_ms: u64) -> Result<LeaseId, AcquireError> {
        let terms = LeaseTerms {
            realm: [7; 32],
            holder: "one",
            ttl_ms: 1_000,
            claim: Arc::clone(&self.claim),
            owner: Arc::clone(&self.owner),
            generation: 7,
            sighting: None,
        };
        self.table.acquire(now_ms, terms).map(|grant| grant.id)
    }

    #[track_caller]
    fn check(&self, now_ms: u64, id: LeaseId, expected: LeaseState) {
        assert_eq!(
            self.table.validate(now_ms, id.as_ref(), Some("one")),
            expected
        );
    }
}

#[test]
fn a_full_table_refuses_until_a_lease_ends() {
    let scene = Scene::new(2);
    let first = scene.acquire(0).unwrap();
    scene.acquire(500).unwrap();
    assert_eq!(scene.acquire(999), Err(AcquireError::Full));
    assert_eq!(scene.claim.leases(), 2);
    let third = scene.acquire(1_000).unwrap();
    scene.check(1_000, first, LeaseState::Expired);
    assert_eq!(scene.acquire(1_000), Err(AcquireError::Full));
    assert!(scene.table.release(1_000, third.as_ref(), "one").0);
    scene.acquire(1_000).unwrap();
    let totals = LeaseTotals {
        granted: 4,
        released: 1,
        expired: 1,
        stale: 0,
    };
    assert_eq!(scene.table.totals(), totals);
}

#[test]
fn a_second_release_changes_nothing() {
    let scene = Scene::new(2);
    let id = scene.acquire(0).unwrap();
    scene.acquire(0).unwrap();
    let valid = LeaseState::Valid {
        remaining_ms: 1_000,
    };
    assert_eq!(
        scene.table.release(0, id.as_ref(), "two"),
        (false, LeaseState::NotHolder)
    );
    assert_eq!(scene.table.release(0, id.as_ref(), "one"), (true, valid));
    assert_eq!(
        scene.table.release(0, id.as_ref(), "one"),
        (false, LeaseState::Unknown)
    );
    assert_eq!(scene.claim.leases(), 1);
}

#[test]
fn a_lease_found_stale_stays_stale_when_its_owner_comes_back() {
    let scene = Scene::new(2);
    let id = scene.acquire(99_500).unwrap();
    scene.check(100_000, id, LeaseState::Stale);
    assert_eq!(
        scene.claim.leases(),
        0,
        "what has ended does not pin a donor"
    );
    assert!(scene.owner.announce(7, 200_000));
    scene.check(100_000, id, LeaseState::Stale);
    assert_eq!(
        scene.table.renew(100_000, id.as_ref(), "one", 1_000),
        (LeaseState::Stale, None)
    );
}

#[test]
fn an_ended_lease_is_remembered_for_a_minute() {
    let scene = Scene::new(2);
    let id = scene.acquire(0).unwrap();
    scene.check(60_999, id, LeaseState::Expired);
    scene.check(61_000, id, LeaseState::Unknown);
    scene.table.sweep(61_000);
    scene.check(1_000, id, LeaseState::Unknown);
}

#[test]
fn an_unnoticed_lease_stops_counting_even_when_it_is_forgotten() {
    let scene = Scene::new(2);
    let id = scene.acquire(0).unwrap();
    scene.check(90_000, id, LeaseState::Unknown);
    assert_eq!(scene.claim.leases(), 0);
}

#[test]
fn one_sweep_ends_all_however_many() {
    let scene = Scene::new(1_000);
    for _ in 0..1_000 {
        scene.acquire(0).unwrap();
    }
    assert_eq!(scene.table.sweep(999), 0);
    assert_eq!(scene.table.sweep(1_000), 1_000);
    assert_eq!(scene.claim.leases(), 0);
    assert_eq!(scene.table.counts().held, 0);
}

#[test]
fn every_altered_byte_and_every_other_length_of_an_id_is_refused() {
    let scene = Scene::new(2);
    let id = scene.acquire(0).unwrap();
    for index in 0..id.as_ref().len() {
        for change in 1..=u8::MAX {
            let mut altered = id.as_ref().to_vec();
            altered[index] ^= change;
            let is_epoch = (1..9).contains(&index);
            let expected = if is_epoch {
                LeaseState::Stale
            } else {
                LeaseState::Unknown
            };
            assert_eq!(scene.table.validate(0, &altered, None), expected);
        }
        let cut = &id.as_ref()[..index];
        assert_eq!(scene.table.validate(0, cut, None), LeaseState::Unknown);
    }
    let longer = [id.as_ref(), &[0]].concat();
    assert_eq!(scene.table.validate(0, &longer, None), LeaseState::Unknown);
    scene.check(
        0,
        id,
        LeaseState::Valid {
            remaining_ms: 1_000,
        },
    );
}

#[test]
fn the_kind_is_told_by_the_first_byte() {
    let scene = Scene::new(1);
    let id = scene.acquire(0).unwrap();
    assert_eq!(LeaseKind::of(id.as_ref()), Some(LeaseKind::Donor));
    let token = ManifestLeases::new(1, [0; 16]).issue(0, 1, 0);
    assert_eq!(LeaseKind::of(token.as_ref()), Some(LeaseKind::Manifest));
    assert_eq!(
        scene.table.validate(0, token.as_ref(), None),
        LeaseState::Unknown
    );
    assert_eq!((LeaseKind::of(&[]), LeaseKind::of(&[0])), (None, None));
}

/// Two threads lease a donor while another retires it as soon as it is unleased.
#[test]
fn no_valid_lease_is_left_on_a_donor_retired_for_being_unleased() {
    for round in 0..2_000 {
        let scene = Scene::new(4);
        let is_late = round % 2 == 0;
        let start = std::sync::Barrier::new(3);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    start.wait();
                    let Ok(id) = scene.acquire(0) else { return };
                    scene.check(
                        0,
                        id,
                        LeaseState::Valid {
                            remaining_ms: 1_000,
                        },
                    );
                    if is_late {
                        scene.table.release(0, id.as_ref(), "one");
                    }
                });
            }
            start.wait();
            while !scene.claim.retire_if_unleased() && is_late {
                std::hint::spin_loop();
            }
        });
        if scene.claim.is_retired() {
            assert_eq!(scene.claim.leases(), 0, "round {round}");
        } else {
            assert!(scene.claim.leases() > 0, "round {round}");
        }
    }
}
