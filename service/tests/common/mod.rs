//! A real server, in this process or as a child, with clients, a namespace and prompts.

use std::{
    fs::File,
    future::Future,
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    os::fd::OwnedFd,
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use kvatlas::{
    app::{self, RunningServer},
    config::{ListenAddress, ServeArgs},
};
use kvatlas_proto::v1::{
    self, admin_client::AdminClient, donors_client::DonorsClient, leases_client::LeasesClient,
    namespace_selector::Selector, routing_client::RoutingClient,
};
use tempfile::TempDir;
use tokio::net::unix::pipe;
use tonic::transport::{Channel, Endpoint};

/// Longest wait for anything that a server is to do, on the busiest machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// How often another process is looked at where it tells nothing by itself.
const LOOK_EVERY: Duration = Duration::from_millis(5);
const ANY_PORT: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

/// What a test server is started with: free ports, this folder, few log lines.
pub(crate) fn args(data_dir: &Path) -> ServeArgs {
    ServeArgs {
        listen: vec![ListenAddress::Tcp(ANY_PORT)],
        http_listen: ANY_PORT,
        data_dir: data_dir.to_owned(),
        log: "warn".into(),
        // A test that waits for the end of its server answers no pings meanwhile.
        drain_ms: 0,
        ..ServeArgs::default()
    }
}

/// A server in this process, with a folder of its own. Drains and ends when dropped.
pub(crate) struct InProcess {
    pub(crate) server: RunningServer,
    pub(crate) clients: Clients,
    _data_dir: TempDir,
}

/// Starts a server in this process, with whatever `change` makes of the arguments.
pub(crate) fn start_with(change: impl FnOnce(&mut ServeArgs)) -> InProcess {
    let data_dir = TempDir::new().unwrap();
    let mut args = args(data_dir.path());
    change(&mut args);
    let server = app::start(args).unwrap();
    let clients = Clients::lazy(&server.grpc_addresses()[0].to_string());
    InProcess {
        server,
        clients,
        _data_dir: data_dir,
    }
}

/// Starts a server in this process.
pub(crate) fn start() -> InProcess {
    start_with(|_| {})
}

/// The typed clients of one connection.
#[derive(Clone)]
pub(crate) struct Clients {
    pub(crate) channel: Channel,
    pub(crate) routing: RoutingClient<Channel>,
    pub(crate) donors: DonorsClient<Channel>,
    pub(crate) leases: LeasesClient<Channel>,
    pub(crate) admin: AdminClient<Channel>,
}

impl Clients {
    /// For `IP:PORT` or `unix:PATH`, as the ready line spells it. Connects at the first call.
    pub(crate) fn lazy(address: &str) -> Clients {
        let uri = match address.strip_prefix("unix:") {
            Some(path) => format!("unix://{path}"),
            None => format!("http://{address}"),
        };
        let channel = Endpoint::from_shared(uri).unwrap().connect_lazy();
        Clients {
            routing: RoutingClient::new(channel.clone()),
            donors: DonorsClient::new(channel.clone()),
            leases: LeasesClient::new(channel.clone()),
            admin: AdminClient::new(channel.clone()),
            channel,
        }
    }

    pub(crate) async fn status(&self) -> v1::GetStatusResponse {
        let mut admin = self.admin.clone();
        let status = within(admin.get_status(v1::GetStatusRequest {})).await;
        status.unwrap().into_inner()
    }
}

/// The real binary as a child process. Killed when dropped.
pub(crate) struct ServerProcess {
    child: Child,
    /// As in the ready line: `IP:PORT` or `unix:PATH`.
    pub(crate) grpc: Vec<String>,
    pub(crate) http: SocketAddr,
}

/// `kvatlas serve` on free ports and this folder; add flags before [`ServerProcess::launch`].
pub(crate) fn serve_command(data_dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvatlas"));
    serve_flags(&mut command, data_dir);
    command
}

/// The flags of [`serve_command`], for a command that runs the server under another program.
pub(crate) fn serve_flags(command: &mut Command, data_dir: &Path) {
    command
        .args(["serve", "--listen", "127.0.0.1:0"])
        .args(["--http-listen", "127.0.0.1:0"])
        // Here, so that a test can still say --log.
        .env("KVATLAS_LOG", "warn")
        .arg("--data-dir")
        .arg(data_dir);
}

impl ServerProcess {
    /// Starts the child and waits for its ready line.
    pub(crate) async fn launch(mut command: Command) -> ServerProcess {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = OwnedFd::from(child.stdout.take().unwrap());
        // From here on a panic kills the child.
        let mut server = ServerProcess {
            child,
            grpc: Vec::new(),
            http: ANY_PORT,
        };
        let line = within(first_line(pipe::Receiver::from_owned_fd(stdout).unwrap())).await;
        let ready: serde_json::Value = serde_json::from_str(&line).unwrap();
        let grpc = ready["grpc"].as_array().unwrap();
        server.grpc = grpc
            .iter()
            .map(|address| address.as_str().unwrap().to_owned())
            .collect();
        server.http = ready["http"].as_str().unwrap().parse().unwrap();
        server
    }

    pub(crate) fn clients(&self) -> Clients {
        Clients::lazy(&self.grpc[0])
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// SIGKILL; returns once the process is gone.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// SIGTERM.
    pub(crate) fn terminate(&self) {
        self.signal("TERM");
    }

    /// SIGHUP.
    pub(crate) fn hang_up(&self) {
        self.signal("HUP");
    }

    fn signal(&self, name: &str) {
        let told = Command::new("sh")
            .args(["-c", &format!("kill -{name} {}", self.child.id())])
            .status();
        assert!(told.unwrap().success());
    }

    /// The exit code, once the process has ended; none when a signal ended it.
    pub(crate) async fn exit_code(&mut self) -> Option<i32> {
        let mut status = None;
        until(|| {
            status = self.child.try_wait().unwrap();
            std::future::ready(status.is_some())
        })
        .await;
        status.unwrap().code()
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // Both fail only when it has ended already.
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// Runs `work`, or fails the test after [`PATIENCE`].
pub(crate) async fn within<T>(work: impl Future<Output = T>) -> T {
    // On the heap: calls are large, and are awaited at every depth.
    tokio::time::timeout(PATIENCE, Box::pin(work))
        .await
        .expect("done within the patience of the tests")
}

/// Looks again and again until `holds`, for what tells nothing by itself.
pub(crate) async fn until<F: Future<Output = bool>>(mut holds: impl FnMut() -> F) {
    within(async {
        let mut looks = tokio::time::interval(LOOK_EVERY);
        while !holds().await {
            looks.tick().await;
        }
    })
    .await;
}

// Up to the first end of line; what was there when the pipe closed otherwise.
async fn first_line(pipe: pipe::Receiver) -> String {
    let mut line = Vec::new();
    let mut byte = [0_u8; 1];
    loop {
        pipe.readable().await.unwrap();
        match pipe.try_read(&mut byte) {
            Ok(0) => break,
            Ok(_) if byte[0] == b'\n' => break,
            Ok(_) => line.push(byte[0]),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => panic!("the ready line: {error}"),
        }
    }
    String::from_utf8(line).unwrap()
}

/// Status line, headers and body of one HTTP GET.
pub(crate) fn http_get(address: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Complete and valid, with blocks of 16 tokens.
pub(crate) fn namespace() -> v1::Namespace {
    v1::Namespace {
        model: "test-model".into(),
        model_revision: "r1".into(),
        tokenizer: "test-tokenizer".into(),
        tokenizer_revision: "r2".into(),
        tokenization: "no-special-tokens".into(),
        chat_template: "none".into(),
        dtype: "bfloat16".into(),
        kv_cache_dtype: "auto".into(),
        block_size: 16,
        kv_layout: "NHD".into(),
        attention_backend: "flash_attn".into(),
        tensor_parallel_size: 1,
        pipeline_parallel_size: 1,
        adapter: "none".into(),
        rope_scaling: "none".into(),
        multimodal_hashes: Vec::new(),
        tenant_key: "semblend:tenant:v1:none".into(),
    }
}

/// A namespace in full.
#[expect(clippy::unnecessary_wraps, reason = "fields of messages are optional")]
pub(crate) fn selector(namespace: v1::Namespace) -> Option<v1::NamespaceSelector> {
    Some(v1::NamespaceSelector {
        selector: Some(Selector::Namespace(namespace)),
    })
}

/// Tokens that two seeds share by chance alone (splitmix64 over 50,000 ids).
pub(crate) fn prompt(seed: u64, length: usize) -> Vec<u32> {
    let mut seed = seed;
    // Mixed, since the sequences of neighbouring seeds would overlap.
    let mut state = next_random(&mut seed);
    let next = || {
        let word = next_random(&mut state);
        u32::try_from(word % 50_000).unwrap()
    };
    std::iter::repeat_with(next).take(length).collect()
}

/// One step of splitmix64.
pub(crate) fn next_random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut word = *state;
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// Tokens as people spell them.
#[expect(clippy::unnecessary_wraps, reason = "fields of messages are optional")]
pub(crate) fn tokens(ids: Vec<u32>) -> Option<v1::Tokens> {
    Some(v1::Tokens {
        ids,
        packed: Vec::new().into(),
    })
}

/// A registration with every token captured, on the host of an owner "worker".
pub(crate) fn donor(id: &str, prompt: Vec<u32>) -> v1::RegisterDonorRequest {
    v1::RegisterDonorRequest {
        donor_id: id.into(),
        namespace: selector(namespace()),
        owner: owner("worker"),
        owner_generation: 1,
        captured_tokens: u32::try_from(prompt.len()).unwrap(),
        tokens: tokens(prompt),
        medium: v1::Medium::Host.into(),
        store_id: "store".into(),
        ..Default::default()
    }
}

#[expect(clippy::unnecessary_wraps, reason = "fields of messages are optional")]
pub(crate) fn owner(worker_id: &str) -> Option<v1::Owner> {
    Some(v1::Owner {
        worker_id: worker_id.into(),
        data_parallel_rank: 0,
    })
}

/// A look-up with low gates, so that short prompts serve.
pub(crate) fn lookup(prompt: Vec<u32>) -> v1::FindDonorRequest {
    v1::FindDonorRequest {
        tokens: tokens(prompt),
        namespace: selector(namespace()),
        gates: Some(v1::Gates {
            min_prompt_tokens: Some(16),
            min_reuse_tokens: Some(16),
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// The bytes of a prior file among the test data.
pub(crate) fn prior_file(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/pt");
    let mut bytes = Vec::new();
    let mut file = File::open(path.join(name)).unwrap();
    file.read_to_end(&mut bytes).unwrap();
    bytes
}

/// The messages that upload a file: a header, then chunks of at most 64 KiB.
pub(crate) fn upload(header: v1::PutPriorHeader, file: &[u8]) -> Vec<v1::PutPriorRequest> {
    use v1::put_prior_request::Part;
    let chunks = file
        .chunks(64 << 10)
        .map(|chunk| Part::Chunk(chunk.to_vec().into()));
    std::iter::once(Part::Header(header))
        .chain(chunks)
        .map(|part| v1::PutPriorRequest { part: Some(part) })
        .collect()
}
