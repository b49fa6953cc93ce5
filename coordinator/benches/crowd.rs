//! What others notice of a crowd at the door: the time of their submissions and probes while hostile connections are held,
//! a fleet beats and works, and one token submits as fast as it can over all connections that it gets.
//!
//! `cargo bench -p planforge-coordinator --bench crowd` prints one line for each crowd. `PLANFORGE_BENCH_HOSTILE` (4,096),
//! `PLANFORGE_BENCH_AGENTS` (1,100) and `PLANFORGE_BENCH_CALLS` (1,000) set how large it is. Coordinator, fleet, crowd and
//! the token each are a process of their own. The crowd and the greedy token would be on machines of their own: here they
//! run at the lowest priority, so that what they do to the coordinator is seen, and not what they do to its processor. How
//! many connections the crowd opened is printed, so that one knows whether it came to its work.

#![expect(clippy::print_stdout, reason = "a benchmark prints its table")]
#![allow(dead_code, reason = "benchmarks share what is scripted, and each uses a part")]

mod scripted;

use planforge_proto::v1::{self, agent_message::Kind as Say, coordinator_message::Kind};
use planforge_types::{Digest, open_files};
use scripted::{Agent, Bench, Outcome, SKU, Trouble, Way, connect, percentile, setting};
use std::{
    net::{Ipv4Addr, SocketAddr},
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpSocket, TcpStream},
    process::{Child, Command},
};

/// People and pipelines beside it, each with a token: none of them comes near its own limits.
const OTHERS: usize = 8;
/// How long the greedy token is let go on until it is at its limits.
const GREEDY_FIRST: Duration = Duration::from_secs(20);
/// Callers of the greedy token.
const GREEDY_CALLERS: usize = 64;
/// Pause between the others' calls: people and pipelines, not a flood.
const BETWEEN_CALLS: Duration = Duration::from_millis(5);
/// A connection that was closed is opened again after this.
const HOSTILE_AGAIN: Duration = Duration::from_secs(1);

fn main() -> Outcome {
    open_files::raise()?;
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let runtime = tokio::runtime::Runtime::new()?;
    match words.as_slice() {
        ["serve", folder] => runtime.block_on(serve(folder)),
        ["fleet", url, plan, bytes] => runtime.block_on(fleet(url, (plan.parse()?, bytes.parse()?))),
        ["hostile", address, addresses] => runtime.block_on(hostile(address.parse()?, addresses.parse()?)),
        ["greedy", url, secret, model] => runtime.block_on(greedy(url, secret, model)),
        _ => runtime.block_on(measure()),
    }
}

/// A process of this program; ends with its standard input, or when it is dropped.
fn child(arguments: &[&str]) -> Result<Child, Trouble> {
    let mut command = Command::new(std::env::current_exe()?);
    Ok(command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true).spawn()?)
}

async fn line(child: &mut Child) -> Result<String, Trouble> {
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().ok_or("no pipe")?).read_line(&mut line).await?;
    Ok(line.trim().to_owned())
}

async fn serve(folder: &str) -> Outcome {
    let bench = Bench::start(folder.as_ref()).await?;
    let (Way { url, secret }, (plan, bytes)) = (&bench.way, bench.plan);
    println!("{url} {secret} {} {plan} {bytes}", bench.request.models[0].digest);
    tokio::io::stdin().read_to_end(&mut Vec::new()).await?;
    bench.coordinator.shutdown().await;
    Ok(())
}

/// Agents that beat and finish whatever they are given, each with a token of its own from standard input.
async fn fleet(url: &str, plan: (Digest, u64)) -> Outcome {
    let mut tokens = BufReader::new(tokio::io::stdin()).lines();
    let mut number = 0;
    while let Some(secret) = tokens.next_line().await? {
        if secret.is_empty() {
            break;
        }
        let way = Way { url: url.to_owned(), secret };
        let agent = connect(&way, number).await?;
        number += 1;
        tokio::spawn(beat(agent.out.clone()));
        tokio::spawn(work(agent, plan));
    }
    println!("{number}");
    tokens.next_line().await?;
    Ok(())
}

async fn beat(out: tokio::sync::mpsc::Sender<v1::AgentMessage>) {
    let mut beat = tokio::time::interval(Duration::from_secs(3));
    loop {
        beat.tick().await;
        let telemetry = vec![v1::DeviceTelemetry { device: "cpu0".into(), json: r#"{"load":0.5}"#.into() }];
        let kind = Some(Say::Heartbeat(v1::Heartbeat { leases: Vec::new(), telemetry }));
        if out.send(v1::AgentMessage { kind }).await.is_err() {
            return;
        }
    }
}

async fn work(mut agent: Agent, plan: (Digest, u64)) -> Outcome {
    loop {
        if let Kind::Assign(assign) = agent.next().await? {
            agent.finish(assign, plan).await?;
        }
    }
}

/// Gives the processor to everybody else first, as whoever sits elsewhere does.
fn elsewhere() -> Outcome {
    Ok(rustix::process::setpriority_process(None, 19)?)
}

/// Connections that say nothing or one byte, from so many addresses of this machine, opened again when they are closed.
async fn hostile(to: SocketAddr, addresses: u32) -> Outcome {
    elsewhere()?;
    let held = Arc::new(AtomicU64::new(0));
    let count = setting("PLANFORGE_BENCH_HOSTILE", 4_096) as u32;
    let tried = Arc::new(AtomicU64::new(0));
    for number in 0..count {
        let (held, tried) = (held.clone(), tried.clone());
        // 127.0.0.1 is where everybody else comes from.
        let from = Ipv4Addr::from_bits(Ipv4Addr::LOCALHOST.to_bits() + number % addresses);
        tokio::spawn(async move {
            loop {
                if let Ok(mut stream) = hold(to, from, number % 2 == 1).await {
                    held.fetch_add(1, Ordering::Relaxed);
                    tried.fetch_add(1, Ordering::Relaxed);
                    let _ = stream.read_u8().await;
                    held.fetch_sub(1, Ordering::Relaxed);
                }
                tokio::time::sleep(HOSTILE_AGAIN).await;
            }
        });
    }
    while tried.load(Ordering::Relaxed) < u64::from(count) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    println!("{}", held.load(Ordering::Relaxed));
    tokio::io::stdin().read_to_end(&mut Vec::new()).await?;
    println!("{} {}", held.load(Ordering::Relaxed), tried.load(Ordering::Relaxed));
    Ok(())
}

async fn hold(to: SocketAddr, from: Ipv4Addr, one_byte: bool) -> Result<TcpStream, std::io::Error> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::from((from, 0)))?;
    let mut stream = socket.connect(to).await?;
    if one_byte {
        stream.write_all(b"G").await?;
    }
    Ok(stream)
}

/// One token that submits as fast as it can, on every connection that it gets.
async fn greedy(url: &str, secret: &str, model: &str) -> Outcome {
    elsewhere()?;
    let way = Way { url: url.to_owned(), secret: secret.to_owned() };
    let (done, refused) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let mut streams = Vec::new();
    // Streams without an end, until no more are given.
    while let Ok(mut farm) = way.farm().await {
        match farm.watch_jobs(v1::WatchJobsRequest::default()).await {
            Ok(stream) => streams.push(stream.into_inner()),
            Err(_) => break,
        }
        if streams.len() + GREEDY_CALLERS >= 880 {
            break;
        }
    }
    let held = streams.len();
    for mut stream in streams {
        tokio::spawn(async move { while let Ok(Some(_)) = stream.message().await {} });
    }
    for _ in 0..GREEDY_CALLERS {
        let mut farm = way.farm().await?;
        let (request, done, refused) = (submission(model), done.clone(), refused.clone());
        tokio::spawn(async move {
            loop {
                match farm.submit(request.clone()).await {
                    Ok(_) => done.fetch_add(1, Ordering::Relaxed),
                    Err(_) => refused.fetch_add(1, Ordering::Relaxed),
                };
            }
        });
    }
    println!("{held}");
    let begin = Instant::now();
    tokio::io::stdin().read_to_end(&mut Vec::new()).await?;
    let rate = |count: &AtomicU64| count.load(Ordering::Relaxed) as f64 / begin.elapsed().as_secs_f64();
    println!("{:.0} {:.0}", rate(&done), rate(&refused));
    Ok(())
}

fn submission(model: &str) -> v1::SubmitRequest {
    let file = v1::ModelFile { name: "m.onnx".into(), digest: model.into(), size_bytes: 7 };
    let model = v1::Model { digest: model.into(), name: "m.onnx".into(), files: vec![file], ..v1::Model::default() };
    v1::SubmitRequest { models: vec![model], skus: vec![SKU.into()], force: true, ..Default::default() }
}

async fn token(way: &Way, name: &str, role: &str) -> Result<String, Trouble> {
    let request = v1::CreateTokenRequest { name: name.into(), role: role.into(), ..Default::default() };
    Ok(way.farm().await?.create_token(request).await?.into_inner().secret)
}

/// What the others met: sorted milliseconds of submissions and probes, and how many of each failed.
#[derive(Default)]
struct Met {
    submits: Vec<f64>,
    probes: Vec<f64>,
    failed: [usize; 2],
}

impl Met {
    fn fails(&mut self, what: usize, error: &dyn std::error::Error) {
        println!("{} failed: {error:?}", ["a submission", "a probe"][what]);
        self.failed[what] += 1;
    }
}

/// The others' submissions, over a connection each, and probes, each over a new one. What fails is counted and tried no
/// second time.
async fn others(ways: &[Way], address: SocketAddr, model: &str) -> Result<Met, Trouble> {
    let calls = setting("PLANFORGE_BENCH_CALLS", 1_000);
    let (mut farms, request, mut met) = (Vec::new(), submission(model), Met::default());
    for way in ways {
        farms.push(way.farm().await?);
    }
    for call in 0..calls {
        let farm = &mut farms[call % ways.len()];
        let begin = Instant::now();
        match farm.submit(request.clone()).await {
            Ok(_) => met.submits.push(begin.elapsed().as_secs_f64() * 1e3),
            Err(error) => met.fails(0, &error),
        }
        tokio::time::sleep(BETWEEN_CALLS).await;
        let begin = Instant::now();
        match probe(address).await {
            Ok(()) => met.probes.push(begin.elapsed().as_secs_f64() * 1e3),
            Err(error) => met.fails(1, error.as_ref()),
        }
        tokio::time::sleep(BETWEEN_CALLS).await;
    }
    met.submits.sort_by(f64::total_cmp);
    met.probes.sort_by(f64::total_cmp);
    Ok(met)
}

async fn probe(address: SocketAddr) -> Outcome {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    if answer.starts_with("HTTP/1.1 200") { Ok(()) } else { Err(answer.into()) }
}

fn print(what: &str, met: &Met) {
    let of = |times: &[f64], failed: usize| {
        format!(
            "p50 {:.2} p99 {:.2} max {:.2} ms, {failed} failed",
            percentile(times, 0.5),
            percentile(times, 0.99),
            percentile(times, 1.0)
        )
    };
    println!("{what}: submit {}; healthz {}", of(&met.submits, met.failed[0]), of(&met.probes, met.failed[1]));
}

async fn measure() -> Outcome {
    let folder = tempfile::tempdir_in(".")?;
    let mut server = child(&["serve", &folder.path().display().to_string()])?;
    let told = line(&mut server).await?;
    let [url, secret, model, plan, bytes] = told.split(' ').collect::<Vec<_>>()[..] else { return Err(told.into()) };
    let address: SocketAddr = url.trim_start_matches("http://").parse()?;
    let admin = Way { url: url.to_owned(), secret: secret.to_owned() };
    let mut other = Vec::new();
    for number in 0..OTHERS {
        let secret = token(&admin, &format!("other{number}"), "submit").await?;
        other.push(Way { url: url.to_owned(), secret });
    }

    let agents = setting("PLANFORGE_BENCH_AGENTS", 1_100);
    let mut fleet = child(&["fleet", url, plan, bytes])?;
    let tokens = fleet.stdin.as_mut().ok_or("no pipe")?;
    for number in 0..agents {
        tokens.write_all(format!("{}\n", token(&admin, &format!("agent{number}"), "agent").await?).as_bytes()).await?;
    }
    tokens.write_all(b"\n").await?;
    let joined = line(&mut fleet).await?;
    print(&format!("{joined} agents"), &others(&other, address, model).await?);

    for addresses in ["1", "64", "4096"] {
        let mut crowd = child(&["hostile", &address.to_string(), addresses])?;
        line(&mut crowd).await?;
        let times = others(&other, address, model).await?;
        drop(crowd.stdin.take());
        let told = line(&mut crowd).await?;
        print(&format!("and hostile connections from {addresses} addresses (held, opened in all: {told})"), &times);
    }

    let greedy_secret = token(&admin, "greedy", "submit").await?;
    let mut greedy = child(&["greedy", url, &greedy_secret, model])?;
    let held = line(&mut greedy).await?;
    tokio::time::sleep(GREEDY_FIRST).await;
    let times = others(&other, address, model).await?;
    print(&format!("agents, and one token with {GREEDY_CALLERS} callers and {held} streams"), &times);
    for addresses in ["1", "4096"] {
        let mut crowd = child(&["hostile", &address.to_string(), addresses])?;
        line(&mut crowd).await?;
        let times = others(&other, address, model).await?;
        drop(crowd.stdin.take());
        let told = line(&mut crowd).await?;
        print(&format!("all of it, hostile from {addresses} addresses (held, opened in all: {told})"), &times);
    }
    drop(greedy.stdin.take());
    println!("the token's submissions and refusals a second: {}", line(&mut greedy).await?);
    let metrics = metrics(address, secret).await?;
    for name in ["planforge_connections", "planforge_connection_places", "planforge_agents_connected"] {
        for line in metrics.lines().filter(|line| line.starts_with(name)) {
            println!("{line}");
        }
    }
    Ok(())
}

async fn metrics(address: SocketAddr, secret: &str) -> Result<String, Trouble> {
    let mut stream = TcpStream::connect(address).await?;
    let head = format!(
        "GET /metrics HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {secret}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}
