//! Kill -9 under load: what was acknowledged is there after the restart, what was removed is not.

use std::{collections::BTreeMap, sync::Arc};

use kvatlas_proto::v1;
use parking_lot::Mutex;
use tempfile::TempDir;
use tokio::{sync::mpsc, task::JoinSet};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status};

use crate::common::{
    Clients, ServerProcess, donor, lookup, next_random, prior_file, prompt, selector,
    serve_command, upload, within,
};

const ROUNDS: u64 = 50;
/// Acknowledgements of a round before the kill, at most.
const ACKS_MAX: u64 = 60;
const PROMPT_TOKENS: usize = 256;
/// Ids that one load task writes over and over.
const IDS_OF_A_TASK: u64 = 12;
/// Registrations that the streaming task has under way at a time.
const STREAM_BATCH: u64 = 8;
const PAGE: u32 = 5;
const PAGES_MAX: u32 = 100;
const BLOCKS: u32 = 4;
/// Told apart by their sizes.
const FILES: [&str; 3] = ["perk.pt", "legacy_list.pt", "aff_float16.pt"];

#[tokio::test]
async fn fifty_kills_lose_nothing_and_bring_nothing_back() {
    let folder = TempDir::new().unwrap();
    let known = Arc::new(Mutex::new(Known::default()));
    let mut seed = 1;
    let mut blocks = BTreeMap::new();
    for round in 0..ROUNDS {
        let mut server = ServerProcess::launch(serve_command(folder.path())).await;
        let clients = server.clients();
        check(&clients, &known, &mut blocks).await;

        let (acks, mut acknowledged) = mpsc::channel(1);
        known.lock().killed = false;
        let load = |name: &'static str| Load {
            name,
            clients: clients.clone(),
            known: Arc::clone(&known),
            acks: acks.clone(),
            random: round * 100 + name.len() as u64,
        };
        let mut tasks = JoinSet::new();
        tasks.spawn(load("stream").stream_donors());
        tasks.spawn(load("one").put_and_remove_donors());
        tasks.spawn(load("other").put_and_remove_donors());
        tasks.spawn(load("prior").put_and_delete_priors());
        drop(acks);
        for _ in 0..=next_random(&mut seed) % ACKS_MAX {
            within(acknowledged.recv()).await.expect("load goes on");
        }
        known.lock().killed = true;
        server.kill();
        drop(acknowledged);
        while let Some(ended) = within(tasks.join_next()).await {
            ended.unwrap();
        }
    }
    let server = ServerProcess::launch(serve_command(folder.path())).await;
    check(&server.clients(), &known, &mut blocks).await;
    let known = known.lock();
    let (donors, priors) = (known.present(Kind::Donor), known.present(Kind::Prior));
    println!(
        "{} writes acknowledged; {donors} donors and {priors} priors at the end",
        known.acknowledged
    );
    assert!(blocks.len() == FILES.len(), "every file was tried");
}

/// What callers know of the server's records.
#[derive(Default)]
struct Known {
    entries: BTreeMap<(Kind, String), Entry>,
    versions: u64,
    acknowledged: u64,
    killed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Donor,
    Prior,
}

/// One id. A version is a number of its own for a donor, and a file for a prior.
#[derive(Default)]
struct Entry {
    /// What may be stored, oldest first: the last certain version and all writes since. `None`:
    /// nothing.
    possible: Vec<Option<u64>>,
    /// The last version that was sent.
    newest: u64,
}

impl Known {
    // Before a write is sent: from now on it may be stored.
    fn begin(&mut self, kind: Kind, id: &str, version: Option<u64>) {
        let entry = self.entries.entry((kind, id.to_owned())).or_default();
        if entry.possible.is_empty() {
            entry.possible.push(None);
        }
        entry.newest = version.unwrap_or(entry.newest);
        entry.possible.push(version);
    }

    // After its acknowledgement: what was there before is no longer possible.
    fn acknowledge(&mut self, kind: Kind, id: &str, version: Option<u64>) {
        let entry = self.entries.get_mut(&(kind, id.to_owned())).unwrap();
        let place = entry.possible.iter().skip(1).position(|v| *v == version);
        entry.possible.drain(..=place.unwrap());
        self.acknowledged += 1;
    }

    // What a restarted server turned out to hold.
    fn observe(&mut self, kind: Kind, id: &str, found: Option<u64>) {
        let entry = self.entries.get_mut(&(kind, id.to_owned())).unwrap();
        assert!(
            entry.possible.contains(&found),
            "{kind:?} {id}: found version {found:?}, acknowledged or under way {:?}",
            entry.possible
        );
        entry.possible = vec![found];
    }

    fn may_be(&self, kind: Kind, id: &str, version: Option<u64>) -> bool {
        let entry = self.entries.get(&(kind, id.to_owned()));
        entry.is_none_or(|entry| entry.possible.contains(&version))
    }

    fn present(&self, kind: Kind) -> usize {
        let of_kind = self.entries.iter().filter(|((k, _), _)| *k == kind);
        of_kind.filter(|(_, e)| e.possible != [None]).count()
    }

    fn new_version(&mut self) -> u64 {
        self.versions += 1;
        self.versions
    }
}

/// One task that writes until the server is killed.
struct Load {
    name: &'static str,
    clients: Clients,
    known: Arc<Mutex<Known>>,
    acks: mpsc::Sender<()>,
    random: u64,
}

impl Load {
    async fn stream_donors(self) {
        let (requests, receiver) = mpsc::channel(1);
        let mut donors = self.clients.donors.clone();
        let opened = donors.register_donors(ReceiverStream::new(receiver)).await;
        let Some(opened) = self.unless_killed(opened) else {
            return;
        };
        let mut answers = opened.into_inner();
        for first in (0..).map(|batch| batch * STREAM_BATCH) {
            let mut sent = Vec::new();
            for number in first..first + STREAM_BATCH {
                let (id, version) = self.next_donor(number);
                let request = v1::RegisterDonorsRequest {
                    correlation_id: version,
                    request: Some(donor(&id, prompt(version, PROMPT_TOKENS))),
                };
                if requests.send(request).await.is_err() {
                    break;
                }
                sent.push((id, version));
            }
            for (id, version) in sent {
                let Some(answer) = self.unless_killed(answers.message().await) else {
                    return;
                };
                let Some(answer) = answer else {
                    assert!(self.known.lock().killed, "the stream ended");
                    return;
                };
                assert_eq!(answer.correlation_id, version);
                let Some(v1::register_donors_response::Result::Acknowledged(registered)) =
                    answer.result
                else {
                    panic!("refused: {answer:?}");
                };
                self.registered(&id, version, &registered);
                if self.acks.send(()).await.is_err() {
                    return;
                }
            }
        }
    }

    async fn put_and_remove_donors(mut self) {
        for number in 0.. {
            let mut donors = self.clients.donors.clone();
            if next_random(&mut self.random).is_multiple_of(4) {
                let ids: Vec<_> = (number..number + 3).map(|n| self.id(n)).collect();
                for id in &ids {
                    self.known.lock().begin(Kind::Donor, id, None);
                }
                let removal = remove(ids.clone());
                let removed = donors.remove_donors(removal).await;
                if self.unless_killed(removed).is_none() {
                    return;
                }
                for id in &ids {
                    self.known.lock().acknowledge(Kind::Donor, id, None);
                }
            } else {
                let (id, version) = self.next_donor(number);
                let request = donor(&id, prompt(version, PROMPT_TOKENS));
                let registered = donors.register_donor(request).await;
                let Some(registered) = self.unless_killed(registered) else {
                    return;
                };
                self.registered(&id, version, registered.get_ref());
            }
            if self.acks.send(()).await.is_err() {
                return;
            }
        }
    }

    async fn put_and_delete_priors(mut self) {
        for number in 0.. {
            let mut routing = self.clients.routing.clone();
            let id = self.id(number);
            if next_random(&mut self.random).is_multiple_of(4) {
                self.known.lock().begin(Kind::Prior, &id, None);
                let request = v1::DeletePriorRequest { key: key(&id) };
                match routing.delete_prior(request).await {
                    Err(status) if status.code() == Code::NotFound => {
                        let known = self.known.lock();
                        assert!(known.may_be(Kind::Prior, &id, None), "{id} is lost");
                    }
                    other => {
                        if self.unless_killed(other).is_none() {
                            return;
                        }
                    }
                }
                self.known.lock().acknowledge(Kind::Prior, &id, None);
            } else {
                let file = next_random(&mut self.random) % FILES.len() as u64;
                let place = usize::try_from(file).unwrap();
                self.known.lock().begin(Kind::Prior, &id, Some(file));
                let header = v1::PutPriorHeader {
                    prefix_hash: id.clone(),
                    algorithm: "crash".into(),
                    ..Default::default()
                };
                let parts = upload(header, &prior_file(FILES[place]));
                let put = routing.put_prior(tokio_stream::iter(parts)).await;
                if self.unless_killed(put).is_none() {
                    return;
                }
                self.known.lock().acknowledge(Kind::Prior, &id, Some(file));
            }
            if self.acks.send(()).await.is_err() {
                return;
            }
        }
    }

    fn id(&self, number: u64) -> String {
        format!("{}-{}", self.name, number % IDS_OF_A_TASK)
    }

    fn next_donor(&self, number: u64) -> (String, u64) {
        let id = self.id(number);
        let mut known = self.known.lock();
        let version = known.new_version();
        known.begin(Kind::Donor, &id, Some(version));
        (id, version)
    }

    fn registered(&self, id: &str, version: u64, registered: &v1::RegisterDonorResponse) {
        let kept = [v1::Admission::Added, v1::Admission::Replaced];
        assert!(kept.contains(&registered.admission()), "{registered:?}");
        self.known
            .lock()
            .acknowledge(Kind::Donor, id, Some(version));
    }

    fn unless_killed<T>(&self, outcome: Result<T, Status>) -> Option<T> {
        match outcome {
            Ok(value) => Some(value),
            Err(status) => {
                assert!(self.known.lock().killed, "{}: {status}", self.name);
                None
            }
        }
    }
}

// Compares everything that the server holds with what is known, and takes over what was in doubt.
async fn check(clients: &Clients, known: &Mutex<Known>, blocks: &mut BTreeMap<u64, Vec<u32>>) {
    check_priors(clients, known, blocks).await;
    check_donors(clients, known).await;
    let status = clients.status().await;
    let known = known.lock();
    assert_eq!(status.donors, known.present(Kind::Donor) as u64, "donors");
    assert_eq!(status.priors, known.present(Kind::Prior) as u64, "priors");
    assert_eq!(status.damaged_records, 0);
}

async fn check_priors(
    clients: &Clients,
    known: &Mutex<Known>,
    blocks: &mut BTreeMap<u64, Vec<u32>>,
) {
    let mut routing = clients.routing.clone();
    let sizes = FILES.map(|file| prior_file(file).len() as u64);
    let mut listed = BTreeMap::new();
    let mut request = v1::ListPriorsRequest {
        page_size: PAGE,
        ..Default::default()
    };
    for number in 0.. {
        assert!(number < PAGES_MAX, "the pages have no end");
        let page = within(routing.list_priors(request.clone())).await.unwrap();
        let page = page.into_inner();
        for prior in page.priors {
            let file = sizes.iter().position(|size| *size == prior.file_bytes);
            listed.insert(prior.prefix_hash, file.unwrap() as u64);
        }
        if page.next_page_token.is_empty() {
            break;
        }
        request.page_token = page.next_page_token;
    }
    for (id, file) in &listed {
        let request = v1::GetManifestRequest {
            prefix_hash: id.clone(),
            k: BLOCKS,
            ..Default::default()
        };
        let manifest = within(routing.get_manifest(request)).await.unwrap();
        let given = manifest.into_inner().block_indices;
        assert_eq!(given.len(), BLOCKS as usize);
        assert_eq!(blocks.entry(*file).or_insert(given.clone()), &given, "{id}");
    }
    let mut known = known.lock();
    for id in known.ids(Kind::Prior) {
        known.observe(Kind::Prior, &id, listed.get(&id).copied());
    }
}

async fn check_donors(clients: &Clients, known: &Mutex<Known>) {
    let (asked, requests): (Vec<_>, Vec<_>) = {
        let known = known.lock();
        let of_kind = known.entries.iter().filter(|((k, _), _)| *k == Kind::Donor);
        of_kind
            .flat_map(|((_, id), entry)| {
                let mut versions: Vec<u64> = entry.possible.iter().flatten().copied().collect();
                versions.push(entry.newest);
                versions.sort_unstable();
                versions.dedup();
                versions.into_iter().map(|version| (id.clone(), version))
            })
            .map(|(id, version)| {
                let request = v1::FindDonorsRequest {
                    correlation_id: version,
                    request: Some(lookup(prompt(version, PROMPT_TOKENS))),
                };
                ((id, version), request)
            })
            .unzip()
    };
    let mut donors = clients.donors.clone();
    let answers = within(donors.find_donors(tokio_stream::iter(requests))).await;
    let mut answers = answers.unwrap().into_inner();
    let mut held: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for (id, version) in asked {
        let answer = within(answers.message()).await.unwrap().unwrap();
        assert_eq!(answer.correlation_id, version);
        let Some(v1::find_donors_response::Result::Answer(answer)) = answer.result else {
            panic!("{answer:?}");
        };
        let versions = held.entry(id.clone()).or_default();
        if answer.outcome() != v1::FindOutcome::Miss {
            assert_eq!(answer.r#match.unwrap().donor_id, id);
            versions.push(version);
        }
    }
    let mut known = known.lock();
    for (id, versions) in held {
        assert!(versions.len() < 2, "{id} is held as {versions:?}");
        known.observe(Kind::Donor, &id, versions.first().copied());
    }
}

impl Known {
    fn ids(&self, kind: Kind) -> Vec<String> {
        let of_kind = self.entries.keys().filter(|(k, _)| *k == kind);
        of_kind.map(|(_, id)| id.clone()).collect()
    }
}

fn remove(donor_ids: Vec<String>) -> v1::RemoveDonorsRequest {
    let ids = v1::DonorIds {
        namespace: selector(crate::common::namespace()),
        donor_ids,
    };
    v1::RemoveDonorsRequest {
        what: Some(v1::remove_donors_request::What::Donors(ids)),
    }
}

#[expect(clippy::unnecessary_wraps, reason = "fields of messages are optional")]
fn key(prefix_hash: &str) -> Option<v1::PriorKey> {
    Some(v1::PriorKey {
        prefix_hash: prefix_hash.into(),
        ..Default::default()
    })
}
