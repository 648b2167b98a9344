//! Manifests, leases, uploads and registrations.

use std::io::{self, Read};

use bytes::Bytes;
use kvatlas_client::{
    BlockSet, ClientError, DonorRecord, Manifest, ManifestQuery, PriorUpload, Renewal, Tokens, v1,
};
use tonic::Code;

use crate::fake::{Running, Script, client, lease, namespace, owner};

pub(crate) fn manifest() -> v1::GetManifestResponse {
    v1::GetManifestResponse {
        block_indices: vec![3, 7],
        total_blocks: 8,
        effective_k: 2,
        policy: "top-k".into(),
        lease: Some(lease()),
        ..Default::default()
    }
}

async fn ask(script: Script) -> Result<Option<Manifest>, ClientError> {
    let server = Running::tcp(script);
    let query = ManifestQuery::top_k("p", 2);
    server.client().get_manifest(&query).await
}

#[tokio::test]
async fn an_unknown_prefix_is_none_and_other_errors_are_errors() {
    let unknown = ask(Script::Refuse(Code::NotFound)).await;
    assert!(matches!(unknown, Ok(None)), "{unknown:?}");
    let refused = ask(Script::Refuse(Code::InvalidArgument)).await;
    assert!(
        matches!(&refused, Err(ClientError::Refused { message, .. }) if message == "scripted"),
        "{refused:?}"
    );
    let found = ask(Script::Manifest(Box::new(manifest()))).await;
    assert_eq!(
        found.unwrap().unwrap().blocks,
        BlockSet::Uniform(vec![3, 7])
    );
}

#[tokio::test]
async fn a_manifest_that_contradicts_itself_is_malformed() {
    let lies: [fn(&mut v1::GetManifestResponse); 9] = [
        |manifest| manifest.block_indices = vec![7, 3],
        |manifest| manifest.block_indices = vec![3, 3],
        |manifest| manifest.block_indices = vec![3, 8],
        |manifest| manifest.block_indices = vec![3],
        |manifest| manifest.effective_k = 0,
        |manifest| manifest.lease = None,
        |manifest| manifest.per_head = Some(Box::default()),
        |manifest| {
            manifest.block_indices.clear();
            manifest.per_head = Some(Box::new(per_head(vec![1, 2, 4, 3])));
        },
        |manifest| {
            manifest.block_indices.clear();
            manifest.per_head = Some(Box::new(per_head(vec![1, 2, 3])));
        },
    ];
    for (number, lie) in lies.iter().enumerate() {
        let mut answer = manifest();
        lie(&mut answer);
        let believed = ask(Script::Manifest(Box::new(answer))).await;
        assert!(
            matches!(believed, Err(ClientError::Malformed(_))),
            "{number}: {believed:?}"
        );
    }
}

#[tokio::test]
async fn each_head_has_its_own_order() {
    let mut answer = manifest();
    answer.block_indices.clear();
    answer.per_head = Some(Box::new(per_head(vec![5, 7, 0, 1])));
    let manifest = ask(Script::Manifest(Box::new(answer))).await;
    let expected = BlockSet::PerHead(per_head(vec![5, 7, 0, 1]));
    assert_eq!(manifest.unwrap().unwrap().blocks, expected);
}

fn per_head(block_indices: Vec<u32>) -> v1::PerHeadBlocks {
    v1::PerHeadBlocks {
        layers: 1,
        kv_heads: 2,
        block_indices,
    }
}

#[tokio::test]
async fn a_lease_that_cannot_be_checked_is_stale() {
    let id = Bytes::from_static(b"lease");
    let server = Running::tcp(Script::Manifest(Box::new(manifest())));
    let state = server.client().validate_lease(&id, "holder").await;
    assert_eq!(state, v1::LeaseState::Valid);
    *server.fake.script.lock() = Script::Refuse(Code::Unavailable);
    let state = server.client().validate_lease(&id, "holder").await;
    assert_eq!(state, v1::LeaseState::Stale);
}

#[tokio::test]
async fn only_the_holder_renews() {
    let id = Bytes::from_static(b"lease");
    let server = Running::tcp(Script::Silent);
    let client = server.client();
    let renewed = client.renew_lease(&id, "holder", None).await.unwrap();
    assert!(matches!(renewed, Renewal::Renewed(_)), "{renewed:?}");
    let refused = client.renew_lease(&id, "thief", None).await.unwrap();
    assert_eq!(refused, Renewal::Refused(v1::LeaseState::NotHolder));
}

#[tokio::test]
async fn a_file_arrives_whole_and_in_order() {
    let file: Vec<u8> = (0..=255).cycle().take(700_001).collect();
    let server = Running::tcp(Script::Silent);
    let header = v1::PutPriorHeader {
        prefix_hash: "p".into(),
        ..Default::default()
    };
    let upload = PriorUpload {
        header: header.clone(),
        file: io::Cursor::new(file.clone()),
    };
    server.client().put_prior(upload).await.unwrap();
    assert_eq!(server.fake.seen.lock().uploads, [(header, file)]);
}

#[tokio::test]
async fn a_file_that_cannot_be_read_to_its_end_is_not_stored() {
    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::other("bad sector"))
        }
    }
    let server = Running::tcp(Script::Silent);
    let upload = PriorUpload {
        header: v1::PutPriorHeader::default(),
        file: io::Cursor::new(vec![1; 300_000]).chain(Broken),
    };
    let error = server.client().put_prior(upload).await.unwrap_err();
    assert!(matches!(error, ClientError::File(_)), "{error:?}");
    // A later upload proves that the server has had its chance to store the first.
    let upload = PriorUpload {
        header: v1::PutPriorHeader::default(),
        file: io::empty(),
    };
    server.client().put_prior(upload).await.unwrap();
    assert_eq!(server.fake.seen.lock().uploads.len(), 1);
}

fn record(donor_id: &str) -> DonorRecord {
    DonorRecord {
        donor_id: donor_id.into(),
        namespace: namespace().into(),
        owner: owner(),
        owner_generation: 1,
        tokens: Tokens::new(&[1, 2, 3]),
        captured_tokens: 3,
        exact_tokens: 3,
        medium: v1::Medium::Host,
        store_id: "s".into(),
        source_request_id: String::new(),
        block_hashes: Vec::new(),
        text: String::new(),
    }
}

#[tokio::test]
async fn every_record_is_acknowledged_or_refused_in_order() {
    let server = Running::tcp(Script::Silent);
    let records = [record("a"), record("bad"), record("b")];
    let answers = server.client().register_donors(&records).await.unwrap();
    assert_eq!(answers[0].as_ref().unwrap().covered_by, "a");
    assert!(matches!(&answers[1], Err(ClientError::Refused { message, .. }) if message == "full"));
    assert_eq!(answers[2].as_ref().unwrap().covered_by, "b");
}

#[tokio::test]
async fn a_record_that_claims_more_than_its_tokens_is_not_sent() {
    let client = client("127.0.0.1:1");
    let mut over_captured = record("a");
    over_captured.captured_tokens = 4;
    let mut over_exact = record("a");
    over_exact.captured_tokens = 2;
    for record in [over_captured, over_exact] {
        let error = client.register_donor(&record).await.unwrap_err();
        assert!(matches!(error, ClientError::Invalid(_)), "{error:?}");
    }
}
