//! A server that does what its script says.

use std::{path::Path, pin::Pin, sync::Arc, time::Duration};

use kvatlas_client::{Client, Endpoint, FindDonor, Namespace, Tokens, v1};
use parking_lot::Mutex;
use tokio::{
    net::{TcpListener, UnixListener},
    runtime::{Builder, Runtime},
    sync::mpsc,
};
use tokio_stream::{
    Stream, StreamExt,
    wrappers::{ReceiverStream, TcpListenerStream, UnixListenerStream},
};
use tonic::{Code, Request, Response, Status, Streaming, transport::Server};
use v1::{
    donors_server::{Donors, DonorsServer},
    leases_server::{Leases, LeasesServer},
    routing_server::{Routing, RoutingServer},
};

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;
type Reply<T> = Result<Response<T>, Status>;

/// A deadline that no test waits for.
pub(crate) const LONG: Duration = Duration::from_secs(20);

#[derive(Debug, Clone)]
pub(crate) enum Script {
    Find(Box<v1::FindDonorResponse>),
    Manifest(Box<v1::GetManifestResponse>),
    Refuse(Code),
    Silent,
}

#[derive(Debug, Clone)]
pub(crate) struct Fake {
    pub(crate) script: Arc<Mutex<Script>>,
    pub(crate) seen: Arc<Mutex<Seen>>,
}

/// What reached the server.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) finds: Vec<v1::FindDonorRequest>,
    pub(crate) timeouts: Vec<String>,
    pub(crate) uploads: Vec<(v1::PutPriorHeader, Vec<u8>)>,
}

/// A running server. Dropping it closes its connections.
pub(crate) struct Running {
    runtime: Option<Runtime>,
    pub(crate) fake: Fake,
    pub(crate) address: String,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.runtime.take().unwrap().shutdown_background();
    }
}

impl Running {
    pub(crate) fn tcp(script: Script) -> Self {
        Self::start(script, |runtime, fake| {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            listener.set_nonblocking(true).unwrap();
            let address = listener.local_addr().unwrap().to_string();
            let serve = async move {
                let listener = TcpListener::from_std(listener).unwrap();
                let incoming = TcpListenerStream::new(listener);
                router(fake).serve_with_incoming(incoming).await
            };
            runtime.spawn(serve);
            address
        })
    }

    pub(crate) fn unix(script: Script, path: &Path) -> Self {
        Self::start(script, |runtime, fake| {
            let listener = std::os::unix::net::UnixListener::bind(path).unwrap();
            listener.set_nonblocking(true).unwrap();
            let serve = async move {
                let listener = UnixListener::from_std(listener).unwrap();
                let incoming = UnixListenerStream::new(listener);
                router(fake).serve_with_incoming(incoming).await
            };
            runtime.spawn(serve);
            format!("unix:{}", path.display())
        })
    }

    fn start(script: Script, listen: impl FnOnce(&Runtime, Fake) -> String) -> Self {
        let fake = Fake {
            script: Arc::new(Mutex::new(script)),
            seen: Arc::default(),
        };
        let mut builder = Builder::new_multi_thread();
        let runtime = builder.worker_threads(1).enable_all().build().unwrap();
        let address = listen(&runtime, fake.clone());
        Self {
            runtime: Some(runtime),
            fake,
            address,
        }
    }

    pub(crate) fn client(&self) -> Client {
        client(&self.address)
    }
}

pub(crate) fn client(address: &str) -> Client {
    Client::connect(&address.parse::<Endpoint>().unwrap()).with_lookup_deadline(LONG)
}

fn router(fake: Fake) -> tonic::transport::server::Router {
    Server::builder()
        .add_service(DonorsServer::new(fake.clone()))
        .add_service(LeasesServer::new(fake.clone()))
        .add_service(RoutingServer::new(fake))
}

/// A prompt of 100 tokens, 10 of them covered by the engine's own cache.
pub(crate) fn query() -> FindDonor {
    let ids: Vec<u32> = (0..100).collect();
    let mut query = FindDonor::new(Tokens::new(&ids), namespace().into());
    query.exact_prefix_tokens = 10;
    query
}

pub(crate) fn namespace() -> Namespace {
    Namespace::builder()
        .model("m", "1")
        .tokenizer("t", "1")
        .tokenization("default")
        .chat_template("none")
        .dtypes("bfloat16", "auto")
        .kv_layout(16, "NHD", "flash_attn")
        .parallel_sizes(1, 1)
        .adapter("none")
        .rope_scaling("none")
        .tenant_key(None)
        .build()
        .unwrap()
}

/// A truthful answer to [`query`]: 48 tokens continue the prefix, and 8 more lie elsewhere.
pub(crate) fn hit() -> v1::FindDonorResponse {
    let span = |donor_start, target_start, length, tier: v1::Tier| v1::Span {
        donor_start,
        target_start,
        length,
        tier: tier.into(),
    };
    v1::FindDonorResponse {
        outcome: v1::FindOutcome::Prefix.into(),
        r#match: Some(v1::DonorMatch {
            donor_id: "d".into(),
            owner: Some(owner()),
            owner_generation: 1,
            medium: v1::Medium::Host.into(),
            store_id: "s".into(),
            tier: v1::Tier::Exact.into(),
            cache_policy: v1::CachePolicy::ExactCommit.into(),
            reusable_prefix_tokens: 48,
            donor_offset: 10,
            spans: vec![
                span(10, 10, 48, v1::Tier::Exact),
                span(70, 60, 8, v1::Tier::Verified),
            ],
            similarity: 0.6,
            reuse_ratio: 0.48,
            captured_tokens: 80,
            quality: None,
        }),
        lease: Some(lease()),
        mode: v1::Mode::Materialize.into(),
        ..Default::default()
    }
}

pub(crate) fn owner() -> v1::Owner {
    v1::Owner {
        worker_id: "w".into(),
        data_parallel_rank: 0,
    }
}

pub(crate) fn lease() -> v1::Lease {
    v1::Lease {
        id: "lease".into(),
        ttl_ms: 30_000,
        deadline_unix_ms: 1,
    }
}

impl Fake {
    async fn play(&self) -> Result<Script, Status> {
        let script = self.script.lock().clone();
        match script {
            Script::Refuse(code) => Err(Status::new(code, "scripted")),
            Script::Silent => std::future::pending().await,
            Script::Find(_) | Script::Manifest(_) => Ok(script),
        }
    }

    async fn find(&self) -> Result<v1::FindDonorResponse, Status> {
        let Script::Find(answer) = self.play().await? else {
            panic!("no donor is scripted");
        };
        Ok(*answer)
    }

    async fn manifest(&self) -> Result<v1::GetManifestResponse, Status> {
        let Script::Manifest(answer) = self.play().await? else {
            panic!("no manifest is scripted");
        };
        Ok(*answer)
    }
}

fn answered_by(mut answer: v1::FindDonorResponse, name: &str) -> v1::FindDonorResponse {
    if let Some(found) = answer.r#match.as_mut() {
        found.donor_id = format!("d{name}");
    }
    answer
}

fn not_scripted<T>() -> Reply<T> {
    Err(Status::unimplemented("not scripted"))
}

#[tonic::async_trait]
impl Donors for Fake {
    type FindDonorsStream = Answers<v1::FindDonorsResponse>;
    type RegisterDonorsStream = Answers<v1::RegisterDonorsResponse>;

    async fn find_donor(
        &self,
        request: Request<v1::FindDonorRequest>,
    ) -> Reply<v1::FindDonorResponse> {
        let timeout = request.metadata().get("grpc-timeout").cloned();
        let timeout = timeout.map(|value| value.to_str().unwrap().to_owned());
        {
            let mut seen = self.seen.lock();
            seen.timeouts.extend(timeout);
            seen.finds.push(request.into_inner());
        }
        self.find().await.map(Response::new)
    }

    /// The donor has the request's name. "hold" is answered only when the next request comes,
    /// "ahead" under the next one's number, "refuse" with an error; "end" ends the stream.
    async fn find_donors(
        &self,
        request: Request<Streaming<v1::FindDonorsRequest>>,
    ) -> Reply<Self::FindDonorsStream> {
        let mut requests = request.into_inner();
        let (answers, stream) = mpsc::channel(8);
        let answer = self.find().await?;
        let serve = async move {
            use v1::find_donors_response::Result as Answer;
            let mut held = Vec::new();
            while let Some(Ok(message)) = requests.next().await {
                let name = message.request.unwrap().request_id;
                let result = Some(match name.as_str() {
                    "refuse" => Answer::Error(v1::CallError {
                        code: Code::InvalidArgument.into(),
                        message: "scripted".into(),
                    }),
                    _ => Answer::Answer(answered_by(answer.clone(), &name)),
                });
                let ahead = u64::from(name == "ahead");
                held.push(v1::FindDonorsResponse {
                    correlation_id: message.correlation_id + ahead,
                    result,
                });
                match name.as_str() {
                    "hold" => continue,
                    "end" => return,
                    _ => {}
                }
                for answer in held.drain(..) {
                    answers.send(Ok(answer)).await.unwrap();
                }
            }
        };
        tokio::runtime::Handle::current().spawn(serve);
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }

    async fn announce_owner(
        &self,
        _: Request<v1::AnnounceOwnerRequest>,
    ) -> Reply<v1::AnnounceOwnerResponse> {
        not_scripted()
    }

    async fn register_donor(
        &self,
        _: Request<v1::RegisterDonorRequest>,
    ) -> Reply<v1::RegisterDonorResponse> {
        not_scripted()
    }

    /// Refuses the donor "bad".
    async fn register_donors(
        &self,
        request: Request<Streaming<v1::RegisterDonorsRequest>>,
    ) -> Reply<Self::RegisterDonorsStream> {
        use v1::register_donors_response::Result as Acknowledgement;
        let answers = request.into_inner().map(|message| {
            let message = message?;
            let donor_id = message.request.unwrap().donor_id;
            let result = Some(match donor_id.as_str() {
                "bad" => Acknowledgement::Refused(v1::CallError {
                    code: Code::ResourceExhausted.into(),
                    message: "full".into(),
                }),
                _ => Acknowledgement::Acknowledged(v1::RegisterDonorResponse {
                    admission: v1::Admission::Added.into(),
                    covered_by: donor_id,
                    ..Default::default()
                }),
            });
            Ok(v1::RegisterDonorsResponse {
                correlation_id: message.correlation_id,
                result,
            })
        });
        Ok(Response::new(Box::pin(answers)))
    }

    async fn remove_donors(
        &self,
        _: Request<v1::RemoveDonorsRequest>,
    ) -> Reply<v1::RemoveDonorsResponse> {
        not_scripted()
    }

    async fn report_reuse(
        &self,
        _: Request<v1::ReportReuseRequest>,
    ) -> Reply<v1::ReportReuseResponse> {
        not_scripted()
    }
}

#[tonic::async_trait]
impl Leases for Fake {
    async fn validate(&self, _: Request<v1::ValidateRequest>) -> Reply<v1::ValidateResponse> {
        self.play().await?;
        Ok(Response::new(v1::ValidateResponse {
            state: v1::LeaseState::Valid.into(),
            remaining_ms: 7,
        }))
    }

    async fn renew(&self, request: Request<v1::RenewRequest>) -> Reply<v1::RenewResponse> {
        let is_holder = request.into_inner().holder == "holder";
        let state = match is_holder {
            true => v1::LeaseState::Valid,
            false => v1::LeaseState::NotHolder,
        };
        Ok(Response::new(v1::RenewResponse {
            state: state.into(),
            lease: is_holder.then(lease),
        }))
    }

    async fn release(&self, _: Request<v1::ReleaseRequest>) -> Reply<v1::ReleaseResponse> {
        not_scripted()
    }
}

#[tonic::async_trait]
impl Routing for Fake {
    type GetManifestsStream = Answers<v1::GetManifestsResponse>;

    async fn get_manifest(
        &self,
        _: Request<v1::GetManifestRequest>,
    ) -> Reply<v1::GetManifestResponse> {
        self.manifest().await.map(Response::new)
    }

    async fn get_manifests(
        &self,
        request: Request<Streaming<v1::GetManifestsRequest>>,
    ) -> Reply<Self::GetManifestsStream> {
        let manifest = self.manifest().await?;
        let answers = request.into_inner().map(move |message| {
            Ok(v1::GetManifestsResponse {
                correlation_id: message?.correlation_id,
                result: Some(v1::get_manifests_response::Result::Manifest(
                    manifest.clone(),
                )),
            })
        });
        Ok(Response::new(Box::pin(answers)))
    }

    async fn put_prior(
        &self,
        request: Request<Streaming<v1::PutPriorRequest>>,
    ) -> Reply<v1::PutPriorResponse> {
        use v1::put_prior_request::Part;
        let mut parts = request.into_inner();
        let (mut header, mut file) = (None, Vec::new());
        while let Some(part) = parts.message().await? {
            match part.part {
                Some(Part::Header(first)) => assert!(header.replace(first).is_none()),
                Some(Part::Chunk(chunk)) => file.extend(chunk),
                None => return Err(Status::invalid_argument("an empty part")),
            }
        }
        self.seen.lock().uploads.push((header.unwrap(), file));
        Ok(Response::new(v1::PutPriorResponse::default()))
    }

    async fn get_prior(&self, _: Request<v1::GetPriorRequest>) -> Reply<v1::Prior> {
        self.play().await?;
        not_scripted()
    }

    async fn list_priors(
        &self,
        _: Request<v1::ListPriorsRequest>,
    ) -> Reply<v1::ListPriorsResponse> {
        not_scripted()
    }

    async fn delete_prior(
        &self,
        _: Request<v1::DeletePriorRequest>,
    ) -> Reply<v1::DeletePriorResponse> {
        self.play().await?;
        not_scripted()
    }

    type ReadPriorStream = Answers<v1::ReadPriorResponse>;

    async fn read_prior(&self, _: Request<v1::ReadPriorRequest>) -> Reply<Self::ReadPriorStream> {
        Err(Status::unimplemented("not played"))
    }

    async fn put_key_summary(
        &self,
        _: Request<Streaming<v1::PutKeySummaryRequest>>,
    ) -> Reply<v1::PutKeySummaryResponse> {
        not_scripted()
    }

    async fn put_query(&self, _: Request<v1::PutQueryRequest>) -> Reply<v1::PutQueryResponse> {
        not_scripted()
    }

    async fn get_key_summary(&self, _: Request<v1::GetKeySummaryRequest>) -> Reply<v1::KeySummary> {
        not_scripted()
    }

    async fn list_key_summaries(
        &self,
        _: Request<v1::ListKeySummariesRequest>,
    ) -> Reply<v1::ListKeySummariesResponse> {
        not_scripted()
    }

    async fn delete_key_summary(
        &self,
        _: Request<v1::DeleteKeySummaryRequest>,
    ) -> Reply<v1::DeleteKeySummaryResponse> {
        not_scripted()
    }

    async fn put_encoder(
        &self,
        _: Request<v1::PutEncoderRequest>,
    ) -> Reply<v1::PutEncoderResponse> {
        not_scripted()
    }

    async fn list_encoders(
        &self,
        _: Request<v1::ListEncodersRequest>,
    ) -> Reply<v1::ListEncodersResponse> {
        not_scripted()
    }

    async fn delete_encoder(
        &self,
        _: Request<v1::DeleteEncoderRequest>,
    ) -> Reply<v1::DeleteEncoderResponse> {
        not_scripted()
    }
}
