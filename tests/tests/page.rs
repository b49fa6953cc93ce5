//! The status page in a real browser, and what a page of somebody else can do to the farm from there.

use planforge_tests::{
    farm::{Farm, Link, id_of},
    models, process,
};
use std::{
    io::{Read as _, Write as _},
    net::TcpListener,
    path::Path,
    process::Command,
    sync::{Arc, Condvar, Mutex},
};

/// The page as the browser has it after its scripts ran for `budget_ms`; the browser keeps what it knows in `profile`.
fn dom(profile: &Path, url: &str, budget_ms: u32) -> String {
    let browser = ["chromium", "chromium-browser", "google-chrome"]
        .into_iter()
        .find(|name| Command::new(name).arg("--version").output().is_ok_and(|o| o.status.success()));
    let Some(browser) = browser else {
        panic!("no Chromium: install the package chromium, or run ./test.sh, which does");
    };
    let mut command = Command::new(browser);
    command.args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]);
    command.args(["--disable-background-networking", "--disable-component-update", "--dump-dom"]);
    command.arg(format!("--user-data-dir={}", profile.join("browser").display()));
    // A limit in real time: the page's event stream stays open, so the browser never finds the network idle.
    command.arg(format!("--timeout={budget_ms}")).arg(url);
    let output = process::run(command);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Signs the browser of a profile in, by a link that is good once; the page that it comes to, and the link.
fn sign_in(farm: &Farm, profile: &Path) -> (String, String) {
    let link = farm.json(&["open"])["url"].as_str().expect("a link").to_owned();
    (dom(profile, &link, 4000), link)
}

#[test]
fn the_page_shows_jobs_devices_and_engines() {
    let farm = Farm::start(Link::Loopback);
    let profile = farm.home("browser");
    let (empty, _) = sign_in(&farm, &profile);
    assert!(empty.contains("planforge testmodel"), "an empty farm says the next command: {empty}");

    let _agent = farm.start_agent("one", "host", None);
    farm.wait_agents(1);
    let model = farm.path().join("<script>alert(1)<script>.onnx");
    models::convolutions(&model, 2, 16, 14, 7);
    let id = id_of(&farm.submit(&model, &["--sku", "cpu-x86-64-v2", "--threads", "1"])[0]);
    let job = farm.wait_ended(&id);
    assert_eq!(job["state"], "succeeded", "{job}");

    let page = dom(&profile, &farm.url, 2000);
    assert!(page.contains("cpu-x86-64-v2") && page.contains("succeeded"), "{page}");
    assert!(page.contains(&id[..8]), "{page}");
    assert!(!page.contains("<script>alert"), "names are escaped: {page}");

    let page = dom(&profile, &format!("{}/jobs/{id}", farm.url), 2000);
    let median = job["report"]["latency_ms"]["median"].as_f64();
    assert!(median.is_some() && page.contains("median"), "{page}");
    assert!(page.contains("planforge fetch"), "says how to fetch the engine: {page}");
}

#[test]
fn a_link_signs_one_browser_in_once() {
    let farm = Farm::start(Link::Loopback);
    let stranger = dom(&farm.home("stranger"), &farm.url, 2000);
    assert!(stranger.contains("Log in") && !stranger.contains("id=\"jobs\""), "{stranger}");
    let first = farm.home("first");
    let (page, link) = sign_in(&farm, &first);
    assert!(page.contains("id=\"jobs\"") && page.contains("admin (admin)") && page.contains("Log out"), "{page}");
    assert!(dom(&first, &farm.url, 2000).contains("id=\"jobs\""), "the browser stays signed in");
    let second = dom(&farm.home("second"), &link, 4000);
    assert!(second.contains("used already") && !second.contains("id=\"jobs\""), "{second}");
}

/// A web site on another port of this machine. Its page sends what a page may send without asking anybody, and says
/// when it is done; pages and frames of other ports of one host share their cookies.
fn foreign_site(target: &str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address");
    let page = format!(
        r#"<!doctype html><body><p>trying</p><iframe name="frame"></iframe><img src="/wait"><script>
(async () => {{
  const farm = "{target}";
  const types = ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "application/grpc",
                 "application/grpc+proto", "application/json"];
  // name = "evil", role = "admin", in a gRPC frame.
  const message = [10, 4, 101, 118, 105, 108, 18, 5, 97, 100, 109, 105, 110];
  const frame = new Uint8Array([0, 0, 0, 0, message.length, ...message]);
  const bodies = {{
    "/planforge.v1.Farm/CreateToken": frame,
    "/planforge.v1.Farm/AllowPlugin": new Uint8Array([0, 0, 0, 0, 66, 10, 64, ...new Array(64).fill(48)]),
    "/api/v1/blobs/scrub": "{{}}",
    "/v1/uploads": JSON.stringify({{ digest: "0".repeat(64), size_bytes: 1 }}),
    "/logout": "",
  }};
  let read = 0;
  for (const [path, body] of Object.entries(bodies)) for (const mode of ["no-cors", "cors"]) for (const type of types) {{
    const options = {{ method: "POST", mode, credentials: "include", headers: {{ "content-type": type }}, body }};
    try {{ await fetch(farm + path, options); read++; }} catch {{}}
    try {{ await fetch(farm + path, {{ method: "POST", mode, credentials: "include", body: new Blob([body]) }}); }} catch {{}}
  }}
  try {{ if ((await fetch(farm + "/api/v1/jobs", {{ credentials: "include" }})).ok) read++; }} catch {{}}
  const form = document.createElement("form");
  Object.assign(form, {{ method: "post", action: farm + "/logout", target: "frame" }});
  document.body.append(form);
  const answered = new Promise((resume) => document.querySelector("iframe").addEventListener("load", resume));
  form.submit();
  await Promise.race([answered, new Promise((resume) => setTimeout(resume, 5000))]);
  document.querySelector("p").textContent = "done read=" + read;
  await fetch("/done");
}})();
</script>"#
    );
    // The browser shows the page once all of it has loaded: its picture comes when the page is done.
    let done = Arc::new((Mutex::new(false), Condvar::new()));
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let (page, done) = (page.clone(), done.clone());
            std::thread::spawn(move || {
                let mut request = [0; 8192];
                let count = stream.read(&mut request).unwrap_or(0);
                let request = String::from_utf8_lossy(&request[..count]).into_owned();
                let (is_done, changed) = &*done;
                if request.starts_with("GET /done") {
                    *is_done.lock().expect("no test panics here") = true;
                    changed.notify_all();
                }
                if request.starts_with("GET /wait") {
                    let waiting = is_done.lock().expect("no test panics here");
                    drop(changed.wait_while(waiting, |done| !*done));
                }
                let head = "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\n";
                let _ = write!(stream, "{head}Content-Length: {}\r\n\r\n{page}", page.len());
            });
        }
    });
    format!("http://{address}/")
}

#[test]
fn a_foreign_page_changes_nothing_in_a_browser_that_is_signed_in() {
    let farm = Farm::start(Link::Loopback);
    let profile = farm.home("browser");
    let (page, _) = sign_in(&farm, &profile);
    assert!(page.contains("id=\"jobs\""), "{page}");
    let before = [farm.json(&["token", "list"])["tokens"].clone(), farm.json(&["plugins", "list"])];

    let seen = dom(&profile, &foreign_site(&farm.url), 20_000);
    assert!(seen.contains("done read=0"), "it tried, and got no answer to read: {seen}");
    let metrics = farm.page("metrics");
    let posts = |status: &str| -> u64 {
        let of_status =
            |line: &&str| line.contains("method=\"POST\"") && line.contains(&format!("status=\"{status}\""));
        let counted = metrics.lines().filter(|line| line.contains("http_requests_total")).filter(of_status);
        counted.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
    };
    assert!(posts("403") >= 20, "the browser sent them, and the coordinator refused: {metrics}");

    let after = [farm.json(&["token", "list"])["tokens"].clone(), farm.json(&["plugins", "list"])];
    let names = |tokens: &serde_json::Value| -> Vec<String> {
        tokens.as_array().into_iter().flatten().map(|t| format!("{} {}", t["id"], t["revoked"])).collect()
    };
    assert_eq!(names(&before[0]), names(&after[0]));
    assert_eq!(before[1], after[1]);
    let uploads = std::fs::read_dir(farm.data().join("blobs/staging")).expect("the folder of uploads");
    assert_eq!(uploads.count(), 0, "no upload was begun");
    assert!(dom(&profile, &farm.url, 2000).contains("Log out"), "nor could it sign the browser out");
}
