//! A farm whose blobs lie in S3: built, fetched, killed, moved home and back, and refused in words.

use nix::sys::signal::Signal;
use planforge_client::{Blobs, Endpoint, EndpointOptions, Token};
use planforge_postgres_server::Server;
use planforge_s3_server::{BUCKET, Fault, Proxy, S3Server};
use planforge_tests::{
    eventually,
    farm::{Farm, Link, id_of},
    models,
    process::{self, Process},
};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use std::{
    fs,
    path::Path,
    process::{Command, Output},
    time::Duration,
};

const PLACE: &str = "s3://farm/blobs";

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Flags by which a coordinator keeps its blobs there.
fn flags(endpoint: &str, server: &S3Server) -> Vec<String> {
    let keys = server.keys_file().display().to_string();
    ["--blobs", PLACE, "--blobs-endpoint", endpoint, "--blobs-keys", &keys].map(str::to_owned).into()
}

fn start(endpoint: &str, server: &S3Server, more: &[&str]) -> Farm {
    let flags = flags(endpoint, server);
    let flags: Vec<&str> = flags.iter().map(String::as_str).chain(more.iter().copied()).collect();
    Farm::start_with(Link::Loopback, &flags)
}

/// Fetches the plan of a job anew and holds it against its digest.
fn fetch(farm: &Farm, url: &str, job: &Value) {
    let digest = job["plan_digest"].as_str().expect("a plan digest");
    let out = farm.home("user").join("fetched.plan");
    let _ = fs::remove_file(&out);
    let mut command = farm.cli(&["fetch", digest, "-o", out.to_str().expect("UTF-8")]);
    command.env("PLANFORGE_SERVER", url);
    let fetched = process::run(command);
    assert!(fetched.status.success(), "{}", said(&fetched));
    assert_eq!(hex::encode(Sha256::digest(fs::read(&out).expect("a plan"))), digest);
}

/// `planforge admin blobs PLACE` on the farm's folder.
fn move_to(farm: &Farm, place: &str, server: &S3Server) -> Output {
    let keys = server.keys_file();
    let mut command = process::command(&farm.home("admin"));
    command.args(["admin", "blobs", place, "--json", "--data"]).arg(farm.data());
    command.args(["--blobs-endpoint", &server.endpoint(), "--blobs-keys"]).arg(keys);
    process::run(command)
}

fn stop(farm: &mut Farm) {
    farm.coordinator.signal(Signal::SIGTERM);
    assert!(farm.coordinator.wait().success());
}

fn blobs_in(server: &S3Server) -> usize {
    server.keys(BUCKET).iter().filter(|key| key.starts_with("blobs/sha256/")).count()
}

#[test]
fn what_is_built_lies_in_s3_and_moves_home_and_back() {
    let server = S3Server::start();
    let proxy = Proxy::before(server.address());
    let mut farm = start(&proxy.endpoint(), &server, &["--blobs-direct", "60"]);
    let agent = farm.start_agent("one", "host", None);
    farm.wait_agents(1);
    let jobs = farm.submit(&models::digits(), &["--sku", "cpu-x86-64-v2", "--threads", "1"]);
    let job = farm.wait_ended(&id_of(&jobs[0]));
    assert_eq!(job["state"], "succeeded", "{job}");
    let plan = job["plan_digest"].as_str().expect("a plan digest");
    assert!(server.keys(BUCKET).contains(&format!("blobs/sha256/{}/{plan}", &plan[..2])), "{:?}", server.keys(BUCKET));
    assert!(!farm.data().join("blobs/sha256").exists(), "nothing lies in a folder");
    fetch(&farm, &farm.url, &job);
    let direct = |seen: &&planforge_s3_server::Seen| seen.method == "GET" && seen.target.contains("X-Amz-Signature=");
    let seen = proxy.seen();
    let read = seen.iter().find(direct).unwrap_or_else(|| panic!("nobody read from the store itself: {seen:?}"));
    assert!(read.target.contains("X-Amz-Expires=60"), "{read:?}");
    drop(agent);
    // Whoever may not read a blob is told no address of it, as if it were not there.
    let path = format!("/v1/blobs/sha256/{plan}");
    let asked = |secret: &str| {
        let mut curl = Command::new("curl");
        curl.args(["-s", "-i", "-H", "Planforge-Direct: ?1", "-H", &format!("Authorization: Bearer {secret}")]);
        curl.arg(format!("{}{path}", farm.url));
        said(&process::run(curl))
    };
    let told = asked(&farm.admin);
    assert!(told.starts_with("HTTP/1.1 307") && header(&told, "planforge-range").starts_with("bytes=0-"), "{told}");
    let made = farm.json(&["token", "create", "other", "--role", "submit", "--project", "other"]);
    let refused = asked(made["secret"].as_str().expect("a secret"));
    assert!(refused.starts_with("HTTP/1.1 404") && !refused.contains("X-Amz-Signature"), "{refused}");

    farm.kill_coordinator();
    farm.restart_coordinator();
    fetch(&farm, &farm.url, &job);
    let refused = move_to(&farm, "elsewhere", &server);
    assert!(!refused.status.success() && said(&refused).contains("another coordinator"), "{}", said(&refused));
    stop(&mut farm);

    // Home: into the folder of the farm, from which it then runs.
    let count = blobs_in(&server);
    let home = farm.data().join("blobs").display().to_string();
    let moved = move_to(&farm, &home, &server);
    assert!(moved.status.success(), "{}", said(&moved));
    let told: Value = serde_json::from_slice(&moved.stdout).unwrap_or_else(|_| panic!("{}", said(&moved)));
    assert_eq!((told["blobs"].as_u64(), told["was_there"].as_u64()), (Some(count as u64), Some(0)), "{told}");
    let mut command = process::command(&farm.home("home"));
    command.args(["coordinator", "--listen", "127.0.0.1:0", "--data"]).arg(farm.data());
    let mut at_home = Process::start("home", farm.path(), command);
    let line = at_home.wait_for_line("url ");
    let url = line[line.find("http://").expect("a URL")..].split_whitespace().next().expect("a URL").to_owned();
    fetch(&farm, &url, &job);
    at_home.signal(Signal::SIGTERM);
    assert!(at_home.wait().success());

    // Started with the former place it would know none of what was stored since.
    let refused = coordinator(&farm, &flags(&server.endpoint(), &server));
    assert!(refused.contains("the blobs of this farm lie in") && refused.contains("admin blobs"), "{refused}");

    // And back: everything is there already.
    let moved = move_to(&farm, PLACE, &server);
    assert!(moved.status.success(), "{}", said(&moved));
    let told: Value = serde_json::from_slice(&moved.stdout).unwrap_or_else(|_| panic!("{}", said(&moved)));
    assert_eq!(
        (told["blobs"].as_u64(), told["was_there"].as_u64()),
        (Some(count as u64), Some(count as u64)),
        "{told}"
    );
    let again = move_to(&farm, PLACE, &server);
    assert!(!again.status.success() && said(&again).contains("already"), "{}", said(&again));
    farm.restart_coordinator();
    fetch(&farm, &farm.url, &job);
}

/// What a coordinator that does not start on the farm's folder says.
fn coordinator(farm: &Farm, flags: &[String]) -> String {
    let mut command = process::command(&farm.home("refused"));
    command.args(["coordinator", "--listen", "127.0.0.1:0", "--data"]).arg(farm.data()).args(flags);
    let output = process::run(command);
    assert!(!output.status.success(), "{output:?}");
    said(&output)
}

fn curl(farm: &Farm, path: &str, arguments: &[&str]) -> Command {
    let mut curl = Command::new("curl");
    curl.args(["-s", "-i", "-H", &format!("Authorization: Bearer {}", farm.admin)]);
    curl.args(arguments).arg(format!("{}{path}", farm.url));
    curl
}

fn header(answer: &str, name: &str) -> String {
    let value = answer.lines().find_map(|line| {
        let (found, value) = line.split_once(':')?;
        found.eq_ignore_ascii_case(name).then(|| value.trim().to_owned())
    });
    value.unwrap_or_else(|| panic!("no {name} in {answer}"))
}

#[test]
fn an_upload_goes_on_behind_its_last_part_after_kill_9() {
    let server = S3Server::start();
    let proxy = Proxy::before(server.address());
    let mut farm = start(&proxy.endpoint(), &server, &[]);
    let bytes: Vec<u8> = (0..40_u32 << 18).flat_map(u32::to_le_bytes).collect();
    let digest = hex::encode(Sha256::digest(&bytes));
    let file = farm.path().join("model.bin");
    fs::write(&file, &bytes).expect("a file");
    let announced = format!(r#"{{"digest":"{digest}","size_bytes":{}}}"#, bytes.len());
    let answer = process::run(curl(&farm, "/v1/uploads", &["-H", "Content-Type: application/json", "-d", &announced]));
    let upload = header(&said(&answer), "location");
    let patch = |farm: &Farm, from: &Path, offset: &str, how: &[&str]| {
        let (offset, data) = (format!("Upload-Offset: {offset}"), format!("@{}", from.display()));
        let kind = "Content-Type: application/partial-upload";
        let mut arguments =
            vec!["-X", "PATCH", "-H", kind, "-H", &offset, "-H", "Upload-Complete: ?1", "-H", "Expect:"];
        arguments.extend(how);
        arguments.extend(["--data-binary", &data]);
        curl(farm, &upload, &arguments)
    };
    let mut sending = patch(&farm, &file, "0", &["--limit-rate", "20M"]);
    let mut sending = sending.stdout(std::process::Stdio::null()).spawn().expect("curl runs");
    eventually("the store has a part and more is on its way", || {
        let seen = proxy.seen();
        match seen.iter().any(|seen| seen.target.contains("partNumber=2")) {
            true => Ok(()),
            false => Err(format!("{seen:?}")),
        }
    });
    farm.kill_coordinator();
    sending.wait().expect("curl ends");
    assert_eq!(blobs_in(&server), 0, "nothing is visible");
    farm.restart_coordinator();
    let standing = said(&process::run(curl(&farm, &upload, &["-I"])));
    let offset: usize = header(&standing, "upload-offset").parse().expect("a number");
    assert!(offset >= 8 << 20 && offset.is_multiple_of(8 << 20) && offset < bytes.len(), "{offset}");
    let rest = farm.path().join("rest.bin");
    fs::write(&rest, &bytes[offset..]).expect("a file");
    let done = said(&process::run(patch(&farm, &rest, &offset.to_string(), &[])));
    assert!(done.starts_with("HTTP/1.1 201"), "{done}");
    let out = farm.path().join("read.bin");
    let path = format!("/v1/blobs/sha256/{digest}");
    let mut read = Command::new("curl");
    read.args(["-s", "-f", "-H", &format!("Authorization: Bearer {}", farm.admin), "-o"]).arg(&out);
    assert!(
        process::run({
            read.arg(format!("{}{path}", farm.url));
            read
        })
        .status
        .success()
    );
    assert_eq!(fs::read(&out).expect("a file"), bytes);
}

/// Bytes that are like no others.
fn many_bytes(count: u32, salt: u32) -> Vec<u8> {
    (0..count).flat_map(|at| (at ^ salt).to_le_bytes()).collect()
}

#[test]
fn large_uploads_go_to_the_store_itself_after_a_kill_too_and_through_the_coordinator_where_they_cannot() {
    let server = S3Server::start();
    let proxy = Proxy::before(server.address());
    let mut farm = start(&proxy.endpoint(), &server, &["--blobs-direct", "60"]);
    let endpoint = Endpoint::parse(&farm.url, &EndpointOptions::default()).expect("a URL");
    let token = Token::new(&farm.admin).expect("a token");
    let client = || Blobs::new(&endpoint, Some(token.clone())).expect("a client");
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let by_clients = || {
        let seen = proxy.seen();
        let signed =
            |seen: &&planforge_s3_server::Seen| seen.method == "PUT" && seen.target.contains("X-Amz-Signature=");
        seen.iter().filter(signed).map(|seen| seen.target.clone()).collect::<Vec<_>>()
    };
    let is_whole = |digest: &str, bytes: &[u8]| {
        let stored =
            fs::read(server.object(BUCKET, &format!("blobs/sha256/{}/{digest}", &digest[..2]))).expect("an object");
        assert!(stored == bytes, "other bytes than were sent");
        let left: Vec<_> = server.keys(BUCKET).into_iter().filter(|key| key.contains("uploads/")).collect();
        assert_eq!(left, Vec::<String>::new());
    };

    // The second part is held up, and the coordinator is killed meanwhile.
    let bytes = many_bytes(5 << 20, 0);
    proxy.decide(|seen| match seen.target.contains("partNumber=2") && seen.target.contains("X-Amz-Signature=") {
        true => Fault::Slow(Duration::from_millis(1_500)),
        false => Fault::None,
    });
    let (sender, sent) = (client(), bytes.clone());
    let sending = runtime.spawn(async move { sender.put_bytes(sent.into()).await });
    eventually("a client writes the second part", || match by_clients() {
        targets if targets.len() >= 2 => Ok(()),
        targets => Err(format!("{targets:?}")),
    });
    farm.kill_coordinator();
    assert_eq!(blobs_in(&server), 0, "nothing is visible");
    farm.restart_coordinator();
    let digest = runtime.block_on(sending).expect("it ends").expect("it is stored").to_string();
    is_whole(&digest, &bytes);
    let targets = by_clients();
    let first = targets.iter().filter(|target| target.contains("partNumber=1&")).count();
    assert_eq!(first, 1, "the first part is not written again: {targets:?}");
    assert!(targets.iter().all(|target| target.contains("X-Amz-Expires=60")), "{targets:?}");

    // A client that the store refuses sends the rest to the coordinator, and says why.
    let bytes = many_bytes(5 << 20, 7);
    let before = targets.len();
    proxy.decide(|seen| match seen.target.contains("partNumber=2") && seen.target.contains("X-Amz-Signature=") {
        true => Fault::Answered(403, "AccessDenied"),
        false => Fault::None,
    });
    let digest = runtime.block_on(client().put_bytes(bytes.clone().into())).expect("it is stored").to_string();
    is_whole(&digest, &bytes);
    assert_eq!(by_clients().len(), before + 2, "one part, and one that was refused");

    // A project's token reaches nobody else's upload, whatever it asks.
    let announced = serde_json::json!({ "digest": "7".repeat(64), "size_bytes": 20 << 20 }).to_string();
    let json = ["-H", "Content-Type: application/json", "-H", "Planforge-Direct: ?1"];
    let begun = said(&process::run(curl(&farm, "/v1/uploads", &[&json[..], &["-d", &announced]].concat())));
    assert_eq!(header(&begun, "planforge-part-bytes"), (8 << 20).to_string());
    let made = farm.json(&["token", "create", "other", "--role", "submit", "--project", "other"]);
    let other = format!("Authorization: Bearer {}", made["secret"].as_str().expect("a secret"));
    let asks = [("address", r#"{"offset":0,"sha256":"SHA"}"#), ("parts", r#"{"offset":0,"sha256":"SHA","etag":"a"}"#)];
    for (what, body) in asks {
        let (url, body) =
            (format!("{}{}/{what}", farm.url, header(&begun, "location")), body.replace("SHA", &"7".repeat(64)));
        let mut asked = Command::new("curl");
        asked.args(["-s", "-i", "-H", &other, "-d", &body, &url]).args(json);
        let refused = said(&process::run(asked));
        assert!(refused.starts_with("HTTP/1.1 404") && !refused.contains("X-Amz-Signature"), "{refused}");
    }
}

#[test]
fn a_store_that_goes_away_is_told_by_readiness_and_comes_back() {
    let mut server = S3Server::start();
    let farm = start(&server.endpoint(), &server, &[]);
    let ready = || said(&process::run(curl(&farm, "/readyz", &[])));
    let says = |what: &str, words: &str| {
        eventually(what, || match ready() {
            answer if answer.contains(words) => Ok(answer),
            answer => Err(answer),
        })
    };
    says("the farm is ready", "200 OK");
    server.stop();
    let away = says("readiness says that the store is away", "503");
    assert!(away.contains(PLACE) && away.contains("it does not answer"), "{away}");
    server.start_again();
    says("the farm is ready again", "200 OK");
}

#[test]
fn places_that_cannot_be_the_farms_are_refused_in_words() {
    let server = S3Server::start();
    let mut farm = start(&server.endpoint(), &server, &[]);
    stop(&mut farm);
    let with = |changed: &[(&str, &str)]| {
        let mut flags = flags(&server.endpoint(), &server);
        for (flag, value) in changed {
            let at = flags.iter().position(|known| known == flag).expect("a flag");
            flags[at + 1] = (*value).to_owned();
        }
        flags
    };
    let keys = farm.path().join("keys");
    fs::write(&keys, planforge_s3_server::keys_text("somebody", "else")).expect("a file");
    let words = coordinator(&farm, &with(&[("--blobs-keys", keys.to_str().expect("UTF-8"))]));
    assert!(words.contains("is open to other users") && words.contains("chmod 600"), "{words}");
    planforge_s3_server::close(&keys);
    let words = coordinator(&farm, &with(&[("--blobs-keys", keys.to_str().expect("UTF-8"))]));
    assert!(words.contains("it does not accept the keys") && words.contains("--blobs-keys"), "{words}");
    let words = coordinator(&farm, &with(&[("--blobs", "s3://none/blobs")]));
    assert!(words.contains("there is no such bucket"), "{words}");
    let words = coordinator(&farm, &with(&[("--blobs", "ftp://farm/blobs")]));
    assert!(words.contains("only s3:// is known"), "{words}");
    let words = coordinator(&farm, &with(&[("--blobs", "s3://farm/elsewhere")]));
    assert!(words.contains("the blobs of this farm lie in s3://farm/blobs"), "{words}");
    let words = coordinator(&farm, &[]);
    assert!(words.contains("the blobs of this farm lie in s3://farm/blobs"), "{words}");
    let words = coordinator(&farm, &with(&[])[2..]);
    assert!(words.contains("--blobs s3://BUCKET/PREFIX"), "{words}");

    // Another farm, which has nothing yet.
    let other = tempfile::tempdir().expect("a folder");
    let mut command = process::command(&farm.home("other"));
    command.args(["coordinator", "--listen", "127.0.0.1:0", "--data"]).arg(other.path().join("data")).args(with(&[]));
    let words = said(&process::run(command));
    assert!(words.contains("is gone, and blobs of its farm are still there"), "{words}");
    assert!(!other.path().join("data/farm.db").exists(), "nothing was begun");
    let mut command = process::command(&farm.home("other"));
    command.args(["coordinator", "--new", "--listen", "127.0.0.1:0", "--data"]).arg(other.path().join("data"));
    let words = said(&process::run({
        command.args(with(&[]));
        command
    }));
    assert!(words.contains("s3://farm/blobs is of the farm"), "{words}");
    for action in ["check", "backup"] {
        let mut command = process::command(&farm.home("admin"));
        command.args(["admin", action, "--data"]).arg(farm.data());
        if action == "backup" {
            command.arg(farm.path().join("copy"));
        }
        let words = said(&process::run(command));
        assert!(words.contains("lie in s3://farm/blobs"), "{words}");
    }
}

/// Copies what lies in a folder into another.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    let mut copy = Command::new("cp");
    copy.arg("-a").arg(from.join(".")).arg(to);
    let output = process::run(copy);
    assert!(output.status.success(), "{}", said(&output));
}

/// Builds a small engine.
fn build(farm: &Farm, threads: &str) -> Value {
    let jobs = farm.submit(&models::digits(), &["--sku", "cpu-x86-64-v2", "--threads", threads]);
    let job = farm.wait_ended(&id_of(&jobs[0]));
    assert_eq!(job["state"], "succeeded", "{job}");
    job
}

/// A farm whose rows lie in PostgreSQL and whose blobs in S3.
fn over_both(database: &Server, server: &S3Server) -> Farm {
    let flags = flags(&server.endpoint(), server);
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    Farm::start_among(Link::Loopback, &flags, &[("PLANFORGE_STORE", &database.database("farm"))])
}

/// As docs/operations.md tells it: the database first and the store after it, while the farm works; then both are gone, and
/// the coordinator's host with them.
#[test]
fn a_farm_is_restored_from_copies_of_its_database_and_its_bucket() {
    let Some(database) = Server::start() else { return };
    let mut server = S3Server::start();
    let mut farm = over_both(&database, &server);
    let agent = farm.start_agent("one", "host", None);
    farm.wait_agents(1);
    let kept = build(&farm, "1");
    let database_copy = database.dump("farm");
    let lost = build(&farm, "2");
    let bucket_copy = farm.path().join("bucket");
    copy(server.folder(), &bucket_copy);
    drop(agent);
    farm.kill_coordinator();
    server.stop();
    for folder in [farm.data(), server.folder().join(BUCKET)] {
        fs::remove_dir_all(folder).expect("it goes");
    }

    database.restore("farm", &database_copy);
    copy(&bucket_copy, server.folder());
    server.start_again();
    farm.restart_coordinator();
    assert_eq!(farm.job(&id_of(&kept)).expect("the job is known")["state"], "succeeded");
    fetch(&farm, &farm.url, &kept);
    assert_eq!(farm.job(&id_of(&lost)), None, "it came after the copy");
    // The farm goes on, and what was lost is made again.
    let _agent = farm.start_agent("one", "host", None);
    farm.wait_agents(1);
    let again = build(&farm, "2");
    assert_eq!(again["engine_key"], lost["engine_key"]);
    fetch(&farm, &farm.url, &again);
}

/// `planforge admin export|import` with flags of the store.
fn exchange(farm: &Farm, server: &S3Server, data: &Path, store: &str, arguments: &[&str]) -> Output {
    let mut command = process::command(&farm.home("admin"));
    command.env("PLANFORGE_STORE", store).arg("admin").args(arguments).args(["--json", "--data"]).arg(data);
    command.args(["--blobs-endpoint", &server.endpoint(), "--blobs-keys"]).arg(server.keys_file());
    process::run(command)
}

fn object(output: &Output) -> Value {
    assert!(output.status.success(), "{}", said(output));
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", said(output)))
}

#[test]
fn a_farm_goes_out_of_postgres_and_s3_and_into_others() {
    let Some(database) = Server::start() else { return };
    let mut server = S3Server::start();
    server.make_bucket("other");
    let mut farm = over_both(&database, &server);
    let store = database.url("postgres", "farm");
    let agent = farm.start_agent("one", "host", None);
    farm.wait_agents(1);
    let kept = build(&farm, "1");
    drop(agent);
    let (out, data) = (farm.path().join("exported"), farm.data());
    let out_word = out.display().to_string();
    let export = |farm: &Farm, server: &S3Server| exchange(farm, server, &data, &store, &["export", &out_word]);
    let refused = export(&farm, &server);
    assert!(!refused.status.success() && said(&refused).contains("another coordinator"), "{}", said(&refused));
    stop(&mut farm);

    // Broken off where the blobs are away, it is no farm yet, and goes on where it was.
    server.stop();
    let broken_off = export(&farm, &server);
    assert!(!broken_off.status.success() && !out.join("farm.db").exists(), "{}", said(&broken_off));
    server.start_again();
    let exported = object(&export(&farm, &server));
    assert_eq!(exported["blobs"].as_u64(), Some(blobs_in(&server) as u64), "{exported}");
    let again = export(&farm, &server);
    assert!(!again.status.success() && said(&again).contains("is not empty"), "{}", said(&again));
    let mut check = process::command(&farm.home("admin"));
    check.args(["admin", "check", "--read", "--data"]).arg(&out);
    let checked = process::run(check);
    assert!(checked.status.success(), "{}", said(&checked));

    // Into another database and another bucket: the same rows, by count and digest.
    let (other, home) = (database.database("other"), farm.path().join("other"));
    let import =
        |farm: &Farm| exchange(farm, &server, &home, &other, &["import", &out_word, "--blobs", "s3://other/blobs"]);
    let imported = object(&import(&farm));
    assert_eq!(imported["blobs"], exported["blobs"]);
    let tables = |told: &Value| {
        let tables = told["tables"].as_array().expect("tables").clone();
        tables.into_iter().filter(|table| table["table"] != "blob_notes").collect::<Vec<_>>()
    };
    assert!(tables(&exported).len() >= 30, "{exported}");
    assert_eq!(tables(&imported), tables(&exported));
    let again = import(&farm);
    assert!(!again.status.success() && said(&again).contains("is not empty"), "{}", said(&again));

    // All three are the farm.
    let serve = |name: &str, data: &Path, store: Option<&str>, flags: &[String]| {
        let mut command = process::command(&farm.home(name));
        command.envs(store.map(|store| ("PLANFORGE_STORE", store)));
        command.args(["coordinator", "--listen", "127.0.0.1:0", "--data"]).arg(data).args(flags);
        let mut coordinator = Process::start(name, farm.path(), command);
        let line = coordinator.wait_for_line("url ");
        let url = line[line.find("http://").expect("a URL")..].split_whitespace().next().expect("a URL").to_owned();
        fetch(&farm, &url, &kept);
        coordinator.signal(Signal::SIGTERM);
        assert!(coordinator.wait().success());
    };
    let mut others = flags(&server.endpoint(), &server);
    others[1] = "s3://other/blobs".into();
    serve("others", &home, Some(&other), &others);
    serve("exported", &out, None, &[]);
    farm.restart_coordinator();
    fetch(&farm, &farm.url, &kept);
}
