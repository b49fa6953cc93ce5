//! Where the user's secrets go, watched from the other side: a server that writes down every request.

use crate::support::{World, transcript};
use axum::{Router, body::Body, extract::Request, http::StatusCode};
use serde_json::Value;
use std::{
    fs,
    io::Write as _,
    net::SocketAddr,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    process::{Child, Command, Output, Stdio},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

const SECRET: &str = "pf_the_secret_of_this_user";

/// Longest that a started coordinator may take on a loaded machine.
const LIMIT: Duration = Duration::from_secs(120);

/// What one request brought.
#[derive(Clone, Debug)]
struct Arrived {
    path: String,
    authorization: Option<String>,
    /// Every header and the body, as text.
    all: String,
}

/// Variables and their values.
type Environment<'a> = &'a [(&'a str, &'a str)];

/// A server of somebody else: takes whatever comes, over HTTP/1.1 and HTTP/2, and answers nothing of use.
struct Hostile {
    address: SocketAddr,
    arrived: Arc<Mutex<Vec<Arrived>>>,
    _runtime: tokio::runtime::Runtime,
}

impl Hostile {
    fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let arrived = Arc::new(Mutex::new(Vec::new()));
        let book = arrived.clone();
        let app = Router::new().fallback(move |request: Request<Body>| {
            let book = book.clone();
            async move {
                let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
                let (parts, body) = request.into_parts();
                let headers = parts.headers.iter().map(|(name, value)| format!("{name}: {}\n", text(value.as_bytes())));
                let mut all: String = headers.collect();
                // A stream that never ends must not keep what came before it from the book.
                let body = tokio::time::timeout(Duration::from_millis(200), axum::body::to_bytes(body, 1 << 20)).await;
                all.push_str(&body.map_or(String::new(), |bytes| text(&bytes.unwrap_or_default())));
                let authorization = parts.headers.get("authorization").map(|value| text(value.as_bytes()));
                book.lock().unwrap().push(Arrived { path: parts.uri.path().to_owned(), authorization, all });
                StatusCode::NOT_IMPLEMENTED
            }
        });
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        runtime.spawn(async move { axum::serve(listener, app).await });
        Self { address, arrived, _runtime: runtime }
    }

    fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// What came since the last look.
    fn arrived(&self) -> Vec<Arrived> {
        std::mem::take(&mut self.arrived.lock().unwrap())
    }
}

/// A cloned repository whose project file names a server, and the files of its user.
struct Clone {
    world: World,
    token_file: String,
}

impl Clone {
    fn new(project: &str) -> Self {
        let world = World::new();
        world.write("planforge.toml", project);
        let token_file = world.root().join("token");
        fs::write(&token_file, SECRET).unwrap();
        fs::set_permissions(&token_file, fs::Permissions::from_mode(0o600)).unwrap();
        let token_file = token_file.to_str().unwrap().to_owned();
        Self { world, token_file }
    }

    fn user_file(&self, text: &str) {
        let folder = self.world.root().join("home/.config/planforge");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("config.toml"), text).unwrap();
    }

    fn run(&self, args: &[&str], environment: &[(&str, &str)]) -> Output {
        self.world.command(args).envs(environment.iter().copied()).output().unwrap()
    }
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn the_server_of_a_project_file_gets_no_secret_that_is_meant_for_another() {
    let hostile = Hostile::start();
    let url = hostile.url();
    let clone = Clone::new(&format!("server = \"{url}\"\n"));
    let file = clone.token_file.as_str();
    let ways: [(&str, &[&str], Environment<'_>, &str); 9] = [
        ("PLANFORGE_TOKEN", &[], &[("PLANFORGE_TOKEN", SECRET)], ""),
        ("PLANFORGE_TOKEN_FILE", &[], &[("PLANFORGE_TOKEN_FILE", file)], ""),
        ("PLANFORGE_TOKEN", &[], &[("PLANFORGE_TOKEN", SECRET), ("PLANFORGE_INSECURE", "1")], ""),
        ("PLANFORGE_INSECURE", &[], &[("PLANFORGE_INSECURE", "1")], ""),
        ("PLANFORGE_CA", &[], &[("PLANFORGE_CA", file)], ""),
        ("--token", &["--token", SECRET], &[], ""),
        ("--token-file", &["--token-file", file], &[], ""),
        ("'token'", &[], &[], "server = \"https://mine.example\"\ntoken = \"pf_the_secret_of_this_user\"\n"),
        ("'token_file'", &[], &[], "server = \"https://mine.example\"\ntoken_file = \"../../../token\"\n"),
    ];
    for (named, flags, environment, user_file) in ways {
        clone.user_file(user_file);
        let output = clone.run(&[&["jobs"], flags].concat(), environment);
        let words = said(&output);
        assert_eq!(output.status.code(), Some(5), "{named}: {words}");
        // Which of two settings is named first is a matter of taste.
        assert!(words.contains(named) || environment.len() > 1, "{named}: {words}");
        assert!(words.contains(&format!("set PLANFORGE_SERVER={url}")), "{named}: {words}");
        assert!(words.contains(&format!("planforge login {url}")), "{named}: {words}");
        let arrived = hostile.arrived();
        assert!(arrived.is_empty(), "{named}: {arrived:#?}");
    }
    // Every command that talks to a server goes the same way.
    clone.user_file("");
    clone
        .world
        .write("m.onnx", fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/digits/digits.onnx")).unwrap());
    let commands: [&[&str]; 9] = [
        &["agent"],
        &["submit", "m.onnx", "--sku", "cpu-x86-64-v3"],
        &["build", "m.onnx", "--sku", "cpu-x86-64-v3"],
        &["fetch", "m.onnx", "--sku", "cpu-x86-64-v3"],
        &["watch"],
        &["token", "list"],
        &["devices"],
        &["engines"],
        &["compare", "--model", "m.onnx"],
    ];
    for command in commands {
        let output = clone.run(command, &[("PLANFORGE_TOKEN", SECRET)]);
        assert_eq!(output.status.code(), Some(5), "{command:?}: {}", said(&output));
        assert!(hostile.arrived().is_empty(), "{command:?}");
    }
}

#[test]
fn a_project_file_says_nothing_about_credentials() {
    let hostile = Hostile::start();
    let clone = Clone::new("");
    let lines = [
        format!("token_file = \"{}\"", clone.token_file),
        "token = \"x\"".into(),
        "insecure = true".into(),
        "ca = \"ca.pem\"".into(),
        "data = \"farm\"".into(),
    ];
    for line in lines {
        clone.world.write("planforge.toml", format!("server = \"{}\"\n{line}\n", hostile.url()));
        let output = clone.run(&["jobs"], &[("PLANFORGE_TOKEN", SECRET)]);
        let words = said(&output);
        assert_eq!(output.status.code(), Some(2), "{line}: {words}");
        assert!(words.contains("planforge.toml:2: a project file cannot set"), "{line}: {words}");
        assert!(hostile.arrived().is_empty(), "{line}");
    }
    for server in [format!("http://{SECRET}@{}", hostile.address), "unix:farm.sock".into()] {
        clone.world.write("planforge.toml", format!("server = \"{server}\"\n"));
        let output = clone.run(&["jobs"], &[]);
        assert_eq!(output.status.code(), Some(2), "{server}: {}", said(&output));
        assert!(hostile.arrived().is_empty(), "{server}");
    }
}

#[test]
fn a_server_that_the_user_names_gets_the_token() {
    let hostile = Hostile::start();
    let url = hostile.url();
    let clone = Clone::new("");
    let file = clone.token_file.clone();
    let bearer = format!("Bearer {SECRET}");
    let ways: [(&[&str], Environment<'_>); 4] = [
        (&["--server", &url], &[("PLANFORGE_TOKEN", SECRET)]),
        (&[], &[("PLANFORGE_SERVER", &url), ("PLANFORGE_TOKEN_FILE", &file)]),
        (&["--token-file", &file], &[("PLANFORGE_SERVER", &url)]),
        (&["--server", &url, "--token", SECRET], &[]),
    ];
    for (flags, environment) in ways {
        clone.run(&[&["jobs"], flags].concat(), environment);
        let arrived = hostile.arrived();
        assert!(arrived.iter().any(|request| request.authorization.as_ref() == Some(&bearer)), "{arrived:#?}");
    }
    // Without any credential a project file's server is asked, as nobody.
    clone.world.write("planforge.toml", format!("server = \"{url}\"\n"));
    clone.run(&["jobs"], &[]);
    let arrived = hostile.arrived();
    assert!(arrived.iter().any(|request| request.path.ends_with("/ListJobs")), "{arrived:#?}");
    assert!(arrived.iter().all(|request| request.authorization.is_none()), "{arrived:#?}");
}

/// A coordinator that asks for tokens, ended with the test.
struct Coordinator {
    child: Child,
    url: String,
    token: String,
}

impl Coordinator {
    #[expect(clippy::disallowed_methods, reason = "looks at a foreign process until a deadline")]
    fn start(world: &World) -> Self {
        let said = world.root().join("coordinator.json");
        let mut command =
            world.command(&["coordinator", "--listen", "127.0.0.1:0", "--require-token", "--json", "--data"]);
        command.arg(world.root().join("farm")).current_dir(world.root());
        command.stdout(fs::File::create(&said).unwrap()).stderr(Stdio::null());
        let child = command.spawn().unwrap();
        let deadline = Instant::now() + LIMIT;
        let facts: Value = loop {
            match fs::read(&said).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()) {
                Some(facts) => break facts,
                None => thread::sleep(Duration::from_millis(20)),
            }
            assert!(Instant::now() < deadline, "the coordinator does not start");
        };
        let token = fs::read_to_string(facts["token_file"].as_str().unwrap()).unwrap().trim().to_owned();
        Self { child, url: facts["url"].as_str().unwrap().to_owned(), token }
    }
}

impl Drop for Coordinator {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn with_input(mut command: Command, input: &str) -> Output {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn after_a_login_a_project_file_needs_no_variable_and_no_other_server_gets_the_token() {
    let hostile = Hostile::start();
    let clone = Clone::new("");
    let farm = Coordinator::start(&clone.world);
    let show = |output: &Output| transcript(clone.world.root(), output);
    let project = |server: &str| {
        clone.world.write("planforge.toml", format!("server = \"{server}\"\nlog = \"trace\"\n"));
    };
    let kept = clone.world.root().join("home/.config/planforge/credentials.toml");

    // What does not work is not kept.
    let wrong = with_input(clone.world.command(&["login", &farm.url]), "pf_wrong\n");
    assert_eq!(wrong.status.code(), Some(5), "{}", show(&wrong));
    let none = clone.run(&["login", &farm.url], &[("PLANFORGE_TOKEN", SECRET)]);
    assert_eq!(none.status.code(), Some(2), "{}", show(&none));
    assert!(!kept.exists());

    let login = with_input(clone.world.command(&["login", &farm.url, "--json"]), &format!("{}\n", farm.token));
    assert!(login.status.success(), "{}", show(&login));
    assert!(!said(&login).contains(&farm.token));
    let mode = |path: &std::path::Path| fs::metadata(path).unwrap().mode() & 0o777;
    assert_eq!((mode(&kept), mode(kept.parent().unwrap())), (0o600, 0o700));

    // Also where the environment holds a token for another server; and no log of whatever depth tells the secret.
    project(&farm.url);
    for environment in [&[][..], &[("PLANFORGE_TOKEN", SECRET), ("PLANFORGE_INSECURE", "1")]] {
        let listed = clone.run(&["jobs"], environment);
        assert!(listed.status.success(), "{}", show(&listed));
        assert!(!said(&listed).contains(&farm.token) && !said(&listed).contains(SECRET));
    }

    project(&hostile.url());
    clone.run(&["jobs"], &[]);
    let arrived = hostile.arrived();
    assert!(!arrived.is_empty());
    for request in arrived {
        assert!(request.authorization.is_none() && !request.all.contains(&farm.token), "{request:#?}");
    }

    project(&farm.url);
    fs::set_permissions(&kept, fs::Permissions::from_mode(0o644)).unwrap();
    let open = clone.run(&["jobs"], &[]);
    assert_eq!(open.status.code(), Some(5), "{}", show(&open));
    assert!(said(&open).contains(&format!("chmod 600 {}", kept.display())), "{}", show(&open));
    fs::set_permissions(&kept, fs::Permissions::from_mode(0o600)).unwrap();

    let out = clone.run(&["logout", &farm.url], &[]);
    assert!(out.status.success(), "{}", show(&out));
    // It runs as this user, whom it lets in without a token by its record; somebody else has none.
    assert_eq!(clone.run(&["jobs"], &[]).status.code(), Some(0));
    assert_eq!(clone.run(&["jobs"], &[("XDG_STATE_HOME", "/nowhere")]).status.code(), Some(5));
    assert_eq!(clone.run(&["logout", &farm.url], &[]).status.code(), Some(3));
}
