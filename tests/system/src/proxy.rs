//! A proxy before an API server that answers late, wrongly, in part or not at all, as a script says.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use futures::AsyncBufReadExt as _;
use kube::client::Body;
use kube::{Client, Config, Error};
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

/// What becomes of a request, or of a watch when the server tells it something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fault {
    /// It is passed on, and so is the answer.
    None,
    /// So it is, after a while.
    Slow(Duration),
    /// The answer is 429, with the wish to be left alone for a second.
    Overloaded,
    /// The answer is this HTTP status, and the server does not see the request.
    Status(u16),
    /// Nothing answers, and the server does not see the request.
    Hang,
    /// The server does what it is asked; its answer does not come.
    Lost,
    /// The connection ends before an answer, and the server does not see the request. A watch ends well.
    End,
    /// The connection ends in the middle of the answer; a watch's, in the middle of an event.
    Cut,
    /// The watch says that its moment is forgotten, as an event.
    Expired,
    /// The watch stays open and tells nothing from now on.
    Silent,
}

/// When a script is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// The request has come.
    Asked,
    /// A watch is about to tell something.
    Event,
}

/// Decides over requests.
pub type Script = dyn Fn(&Request, Moment) -> Fault + Send + Sync;

/// A request, without its body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Counted from one.
    pub number: usize,
    /// Such as `PATCH`.
    pub method: String,
    /// Such as `/api/v1/namespaces`.
    pub path: String,
    /// What comes behind the question mark.
    pub query: String,
}

impl Request {
    /// Whether it is a watch.
    #[must_use]
    pub fn is_watch(&self) -> bool {
        self.query.contains("watch=")
    }

    /// Whether it changes something.
    #[must_use]
    pub fn is_write(&self) -> bool {
        self.method != "GET" && !self.query.contains("dryRun=")
    }

    /// Whether it is about a Lease.
    #[must_use]
    pub fn is_of_lease(&self) -> bool {
        self.path.contains("/coordination.k8s.io/")
    }

    /// Whether it writes an Event.
    #[must_use]
    pub fn is_of_event(&self) -> bool {
        self.path.ends_with("/events")
    }

    /// What it asks for, the same for each time that it is asked.
    #[must_use]
    pub fn line(&self) -> String {
        let telling = ["fieldSelector", "labelSelector", "watch", "force", "dryRun", "continue"];
        let pairs = self.query.split('&').filter_map(|pair| pair.split_once('='));
        let pairs = pairs.filter(|(key, _)| telling.contains(key));
        pairs.fold(format!("{} {}", self.method, self.path), |line, (key, value)| match key {
            "continue" => format!("{line} continue"),
            _ => format!("{line} {key}={}", value.replace("%3D", "=")),
        })
    }
}

/// A request that was made.
#[derive(Debug, Clone)]
pub struct Asked {
    /// The request.
    pub request: Request,
    /// When it came.
    pub at: Instant,
    /// The status that was answered, if any was.
    pub status: Option<u16>,
}

/// The proxy; gone with the value. It speaks plain HTTP on loopback to whoever comes, as whom the upstream client is.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

struct Shared {
    upstream: Client,
    page: Option<u32>,
    script: Mutex<Arc<Script>>,
    log: Mutex<Vec<Asked>>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Proxy {
    /// A proxy that passes everything on.
    ///
    /// # Errors
    /// No port is to be had.
    pub async fn start(upstream: Client) -> Result<Self> {
        Self::start_with(upstream, None).await
    }

    /// A proxy that has lists come in pages of so many objects, and passes everything on.
    ///
    /// # Errors
    /// No port is to be had.
    pub async fn start_with(upstream: Client, page: Option<u32>) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("listen")?;
        let address = listener.local_addr()?;
        let pass: Arc<Script> = Arc::new(|_, _| Fault::None);
        let shared = Arc::new(Shared { upstream, page, script: Mutex::new(pass), log: Mutex::default() });
        let task = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Ok(Self { address, shared, task })
    }

    /// Has a script decide from now on.
    pub fn script(&self, script: impl Fn(&Request, Moment) -> Fault + Send + Sync + 'static) {
        *lock(&self.shared.script) = Arc::new(script);
    }

    /// A client that asks through this proxy.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn client(&self) -> Result<Client> {
        Ok(Client::try_from(Config::new(format!("http://{}", self.address).parse()?))?)
    }

    /// A kubeconfig for programs that ask through this proxy.
    #[must_use]
    pub fn kubeconfig(&self) -> String {
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{ "name": "test", "cluster": { "server": format!("http://{}", self.address) } }],
            "users": [{ "name": "test", "user": {} }],
            "contexts": [{ "name": "test", "context": { "cluster": "test", "user": "test" } }],
        });
        config.to_string()
    }

    /// What was asked until now, in order.
    #[must_use]
    pub fn asked(&self) -> Vec<Asked> {
        lock(&self.shared.log).clone()
    }
}

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            // Nothing is lost when the other is taken first.
            Ok((stream, _)) = listener.accept() => {
                let shared = Arc::clone(&shared);
                // A connection that fails is closed, and that is all.
                connections.spawn(async move { serve(stream, &shared).await.is_ok() });
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

/// A request as it came.
struct Message {
    request: Request,
    /// Its place in the log.
    at: usize,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

async fn serve(stream: TcpStream, shared: &Shared) -> Result<()> {
    stream.set_nodelay(true)?;
    let (read, mut write) = stream.into_split();
    let mut read = BufReader::new(read);
    while let Some(message) = receive(&mut read, shared).await? {
        let goes_on = tokio::select! {
            biased;
            goes_on = answer(&message, shared, &mut write) => goes_on?,
            // A client says nothing before it has its answer, so it is gone; so is what it asked for.
            _ = read.fill_buf() => false,
        };
        if !goes_on {
            break;
        }
    }
    Ok(())
}

/// The next request of a connection, if it does not end.
async fn receive(read: &mut BufReader<OwnedReadHalf>, shared: &Shared) -> Result<Option<Message>> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if read.read_until(b'\n', &mut head).await? == 0 {
            return Ok(None);
        }
    }
    let head = String::from_utf8(head)?;
    let mut lines = head.lines();
    let mut first = lines.next().unwrap_or_default().split(' ');
    let (method, target) = (first.next().unwrap_or_default(), first.next().unwrap_or_default());
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let length = headers.iter().find(|(name, _)| name == "content-length");
    let length = length.map_or(Ok(0), |(_, length)| length.parse())?;
    let mut body = vec![0; length];
    read.read_exact(&mut body).await?;
    let mut log = lock(&shared.log);
    let request = Request {
        number: log.len() + 1,
        method: method.to_owned(),
        path: path.to_owned(),
        query: query.to_owned(),
    };
    let at = log.len();
    log.push(Asked { request: request.clone(), at: Instant::now(), status: None });
    Ok(Some(Message { request, at, headers, body }))
}

impl Shared {
    fn decide(&self, request: &Request, moment: Moment) -> Fault {
        let script = Arc::clone(&lock(&self.script));
        script(request, moment)
    }

    fn note(&self, at: usize, status: u16) {
        if let Some(asked) = lock(&self.log).get_mut(at) {
            asked.status = Some(status);
        }
    }

    /// The request as it is passed on.
    fn forwarded(&self, message: &Message) -> Result<http::Request<Vec<u8>>> {
        let Request { method, path, query, .. } = &message.request;
        let query = match self.page {
            Some(page) => query.replace("limit=500", &format!("limit={page}")),
            None => query.clone(),
        };
        let mut request = http::Request::builder().method(method.as_str()).uri(format!("{path}?{query}"));
        let passed = ["accept", "accept-encoding", "content-type", "user-agent"];
        for (name, value) in message.headers.iter().filter(|(name, _)| passed.contains(&name.as_str())) {
            request = request.header(name, value);
        }
        Ok(request.body(message.body.clone())?)
    }
}

/// Answers; whether the connection goes on.
async fn answer(message: &Message, shared: &Shared, write: &mut OwnedWriteHalf) -> Result<bool> {
    let fault = shared.decide(&message.request, Moment::Asked);
    match fault {
        Fault::Slow(time) => tokio::time::sleep(time).await,
        Fault::Overloaded => {
            shared.note(message.at, 429);
            // As the server says it: no Status, and the wish in a header.
            let wish = "content-type: text/plain\r\nretry-after: 1\r\n";
            respond(write, 429, wish, b"Too many requests, please try again later.\n").await?;
            return Ok(true);
        }
        Fault::Status(code) => {
            shared.note(message.at, code);
            respond(write, code, JSON, status(code).as_bytes()).await?;
            return Ok(true);
        }
        Fault::Hang => std::future::pending().await,
        Fault::End if !message.request.is_watch() => return Ok(false),
        _ => {}
    }
    if message.request.is_watch() {
        watch(message, fault, shared, write).await
    } else {
        pass(message, fault, shared, write).await
    }
}

async fn pass(message: &Message, fault: Fault, shared: &Shared, write: &mut OwnedWriteHalf) -> Result<bool> {
    let answer = shared.upstream.send(shared.forwarded(message)?.map(Body::from)).await?;
    let code = answer.status().as_u16();
    let body = answer.into_body().collect_bytes().await?;
    if fault == Fault::Lost {
        std::future::pending::<()>().await;
    }
    shared.note(message.at, code);
    if fault == Fault::Cut {
        let half = body.get(..body.len() / 2).unwrap_or_default();
        write.write_all(head(code, JSON, body.len()).as_bytes()).await?;
        write.write_all(half).await?;
        return Ok(false);
    }
    respond(write, code, JSON, &body).await?;
    Ok(true)
}

async fn watch(message: &Message, fault: Fault, shared: &Shared, write: &mut OwnedWriteHalf) -> Result<bool> {
    let mut events = match shared.upstream.request_stream(shared.forwarded(message)?).await {
        Ok(events) => Box::pin(events),
        Err(Error::Api(error)) => {
            shared.note(message.at, error.code);
            respond(write, error.code, JSON, &serde_json::to_vec(&error)?).await?;
            return Ok(true);
        }
        Err(error) => return Err(error.into()),
    };
    shared.note(message.at, 200);
    write
        .write_all(format!("HTTP/1.1 200 OK\r\n{JSON}transfer-encoding: chunked\r\n\r\n").as_bytes())
        .await?;
    let mut fault = fault;
    let mut event = Vec::new();
    loop {
        match fault {
            Fault::Slow(time) if !event.is_empty() => tokio::time::sleep(time).await,
            Fault::None | Fault::Slow(_) => {}
            Fault::Hang | Fault::Lost | Fault::Silent => std::future::pending().await,
            Fault::Cut => {
                let whole =
                    if event.is_empty() { br#"{"type":"MODIFIED","object":{}}"#.to_vec() } else { event };
                chunk(write, whole.get(..whole.len() / 2).unwrap_or_default()).await?;
                return Ok(false);
            }
            Fault::Expired => {
                let error = format!("{{\"type\":\"ERROR\",\"object\":{}}}\n", status(410));
                chunk(write, error.as_bytes()).await?;
                break;
            }
            Fault::End | Fault::Overloaded | Fault::Status(_) => break,
        }
        if !event.is_empty() {
            chunk(write, &event).await?;
            event.clear();
        }
        if events.read_until(b'\n', &mut event).await? == 0 {
            break;
        }
        fault = shared.decide(&message.request, Moment::Event);
    }
    chunk(write, b"").await?;
    Ok(true)
}

const JSON: &str = "content-type: application/json\r\n";

fn head(code: u16, headers: &str, length: usize) -> String {
    let reason = http::StatusCode::from_u16(code).ok().and_then(|code| code.canonical_reason());
    format!("HTTP/1.1 {code} {}\r\n{headers}content-length: {length}\r\n\r\n", reason.unwrap_or_default())
}

async fn respond(write: &mut OwnedWriteHalf, code: u16, headers: &str, body: &[u8]) -> Result<()> {
    let mut answer = head(code, headers, body.len()).into_bytes();
    answer.extend_from_slice(body);
    Ok(write.write_all(&answer).await?)
}

/// One chunk of an answer; an empty one is its end.
async fn chunk(write: &mut OwnedWriteHalf, bytes: &[u8]) -> Result<()> {
    let mut chunk = format!("{:x}\r\n", bytes.len()).into_bytes();
    chunk.extend_from_slice(bytes);
    chunk.extend_from_slice(b"\r\n");
    Ok(write.write_all(&chunk).await?)
}

/// A failure in the words of the API.
fn status(code: u16) -> String {
    let reason = match code {
        409 => "Conflict",
        410 => "Expired",
        500 => "InternalError",
        503 => "ServiceUnavailable",
        _ => "",
    };
    let status = json!({
        "apiVersion": "v1",
        "kind": "Status",
        "metadata": {},
        "status": "Failure",
        "message": "so the test wants it",
        "reason": reason,
        "code": code,
    });
    status.to_string()
}
