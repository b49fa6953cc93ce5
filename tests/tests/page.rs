//! The status page in a real browser, and what a page of somebody else can do to the farm from there.

use planforge_tests::{
    browser::{Browser, SCREENS, Tab},
    farm::{Farm, Link, id_of},
    models, process,
    release::root,
};
use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpListener,
    path::Path,
    process::Command,
    sync::{Arc, Condvar, Mutex},
};

/// The page as the browser has it after its scripts ran for `budget_ms`; the browser keeps what it knows in `profile`.
fn dom(profile: &Path, url: &str, budget_ms: u32) -> String {
    let mut command = Command::new(Browser::program());
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

    let page = dom(&profile, &format!("{}/jobs", farm.url), 2000);
    assert!(page.contains("cpu-x86-64-v2") && page.contains("succeeded"), "{page}");
    assert!(page.contains(&id[..8]), "{page}");
    let page = dom(&profile, &farm.url, 2000);
    assert!(page.contains("cpu-x86-64-v2") && page.contains("href=\"/plans/"), "{page}");
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
    assert!(stranger.contains("Log in") && !stranger.contains("id=\"coverage\""), "{stranger}");
    let first = farm.home("first");
    let (page, link) = sign_in(&farm, &first);
    assert!(page.contains("id=\"coverage\"") && page.contains("admin (admin)") && page.contains("Log out"), "{page}");
    assert!(dom(&first, &farm.url, 2000).contains("id=\"coverage\""), "the browser stays signed in");
    let second = dom(&farm.home("second"), &link, 4000);
    assert!(second.contains("used already") && !second.contains("id=\"coverage\""), "{second}");
}

/// A browser that is signed in, with one tab.
fn signed_in(farm: &Farm) -> (Browser, Tab) {
    let mut browser = Browser::start(&farm.home("browser"));
    let tab = browser.tab();
    let link = farm.json(&["open"])["url"].as_str().expect("a link").to_owned();
    browser.open(&tab, &link);
    browser.until(&tab, "!!document.body && !!document.getElementById('coverage')");
    (browser, tab)
}

/// A farm with an engine, a job that failed, one that waits, and names that are markup; and the addresses of its pages.
fn lived_in() -> (Farm, process::Process, Vec<String>) {
    let farm = Farm::start(Link::Loopback);
    let agent = farm.start_agent("one", "host", None);
    farm.wait_agents(1);
    let model = farm.path().join("<b>nets & co<b>.onnx");
    models::convolutions(&model, 2, 16, 14, 7);
    let id = id_of(&farm.submit(&model, &["--sku", "cpu-x86-64-v2", "--threads", "1", "--tag", "night=1"])[0]);
    let job = farm.wait_ended(&id);
    assert_eq!(job["state"], "succeeded", "{job}");
    let waits = farm.submit(&model, &["--sku", "a100-sxm4-40gb", "--wait-for-device"]);
    let (plan, request) = (&job["plan_digest"], &job["request_id"]);
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_else(|| panic!("{job}")).to_owned();
    let mut paths = vec![
        "/".to_owned(),
        "/jobs".into(),
        format!("/jobs/{id}"),
        format!("/jobs/{}", id_of(&waits[0])),
        format!("/requests/{}", text(request)),
        "/engines".into(),
        format!("/plans/{}", text(plan)),
        format!("/models/{}", text(&job["model"]["digest"])),
        "/compare".into(),
        format!("/compare?of={id},{}&steps=differences", text(plan)),
        "/devices".into(),
        "/farm".into(),
        "/activity".into(),
        "/api".into(),
        "/jobs/nothing".into(),
        format!("/jobs/{id}/clone"),
        format!("/jobs/{id}?q=a"),
    ];
    for (of, name) in [(request, "--request"), (&job["model"]["digest"], "--model")] {
        let link = farm.json(&["share", "create", name, &text(of)])["url"].as_str().expect("a link").to_owned();
        paths.push(link.trim_start_matches(&farm.url).to_owned());
    }
    let shared = format!("{}/plans/{}", paths[paths.len() - 1], text(plan));
    paths.push(shared);
    (farm, agent, paths)
}

/// Runs the rules of axe in a tab; what it finds, one line each.
const FINDINGS: &str =
    "axe.run(document, { resultTypes: ['violations'] }).then((found) => found.violations.flatMap((rule) =>
    rule.nodes.map((node) => rule.id + ' (' + rule.impact + '): ' + node.html.slice(0, 200))).join('\\n'))";

/// What is wrong with the pages at these addresses on any screen.
fn findings(farm: &Farm, paths: &[String]) -> Vec<String> {
    let axe = fs::read_to_string(root().join("target/axe-package/axe_playwright_python/axe.min.js"));
    if axe.is_err() {
        assert!(std::env::var_os("CI").is_none(), "test.sh installs axe");
        planforge_skipped::skipped("axe is not installed: ./test.sh installs it");
    }
    let pictures = std::env::var_os("PLANFORGE_PAGE_PICTURES");
    let (mut browser, tab) = signed_in(farm);
    let mut wrong = Vec::new();
    for (number, path) in paths.iter().enumerate() {
        for screen in SCREENS {
            browser.look_as(&tab, screen);
            browser.open(&tab, &format!("{}{path}", farm.url));
            if let Some(folder) = &pictures {
                let name = format!("{}-{number}-{}.png.base64", paths.len(), screen.name);
                fs::write(Path::new(folder).join(name), browser.picture(&tab)).expect("a picture");
            }
            let wide = browser.eval(&tab, "document.documentElement.scrollWidth").as_i64().unwrap_or(0);
            if wide > i64::from(screen.width) {
                wrong.push(format!("{path} {}: {wide} pixels wide", screen.name));
            }
            if let Ok(axe) = &axe {
                browser.eval(&tab, axe);
                let found = browser.eval(&tab, FINDINGS);
                wrong.extend(
                    found.as_str().unwrap_or("?").lines().map(|line| format!("{path} {}: {line}", screen.name)),
                );
            }
        }
    }
    let expected = |complaint: &String| complaint.contains("/jobs/nothing");
    wrong.extend(browser.complaints(&tab).into_iter().filter(|complaint| !expected(complaint)));
    wrong
}

#[test]
fn no_page_has_a_finding_of_axe_or_an_error_or_is_wider_than_its_screen() {
    let (farm, _agent, paths) = lived_in();
    let wrong = findings(&farm, &paths);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn nor_has_a_page_of_a_farm_where_nothing_is() {
    let farm = Farm::start(Link::Loopback);
    let paths = ["/", "/jobs", "/engines", "/compare", "/devices", "/farm", "/activity"].map(str::to_owned);
    let wrong = findings(&farm, &paths);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn nothing_that_is_painted_moves_however_late_the_script_comes() {
    let (farm, _agent, paths) = lived_in();
    let (mut browser, tab) = signed_in(&farm);
    // The queue and the job that succeeded: times, and commands to copy.
    for path in &paths[1..3] {
        assert_eq!(browser.moved_by_a_late_script(&tab, &format!("{}{path}", farm.url)), 0.0, "{path}");
    }
}

#[test]
fn an_update_brings_rows_and_leaves_focus_and_selection_alone() {
    let (farm, _agent, _) = lived_in();
    let (mut browser, tab) = signed_in(&farm);
    browser.open(&tab, &format!("{}/jobs", farm.url));
    browser.until(&tab, "document.getElementById('live').textContent === 'live'");
    browser.eval(&tab, "document.querySelector('#jobs-rows a').focus(); getSelection().selectAllChildren(document.querySelector('#jobs-rows td.wide')); window.before = document.querySelector('#jobs-rows tr'); 1");
    let model = farm.path().join("later.onnx");
    models::convolutions(&model, 1, 8, 8, 3);
    farm.submit(&model, &["--sku", "a100-sxm4-40gb", "--wait-for-device"]);
    browser.until(&tab, "document.getElementById('jobs-rows').textContent.includes('later.onnx')");
    let kept = "document.querySelector('#jobs-rows tr') === window.before && document.activeElement.closest('tr') === window.before && getSelection().toString().includes('nets & co')";
    assert_eq!(browser.eval(&tab, kept), true);
    // A slash goes to the search.
    browser.eval(&tab, "document.activeElement.blur(); document.body.dispatchEvent(new KeyboardEvent('keydown', { key: '/', bubbles: true })); 1");
    assert_eq!(browser.eval(&tab, "document.activeElement.name"), "model");
    assert_eq!(browser.complaints(&tab), Vec::<String>::new());
}

#[test]
fn tabs_share_one_stream_and_hidden_ones_have_none() {
    let (farm, _agent, _) = lived_in();
    let (mut browser, first) = signed_in(&farm);
    let second = browser.tab();
    let watchers = |what: &str, count: u64| {
        planforge_tests::eventually(what, || {
            let metrics = farm.page("metrics");
            let line = metrics
                .lines()
                .find(|line| line.starts_with("planforge") && line.contains("watchers"))
                .unwrap_or("none")
                .to_owned();
            if line.ends_with(&format!(" {count}")) { Ok(()) } else { Err(line) }
        });
    };
    browser.open(&first, &format!("{}/jobs", farm.url));
    browser.open(&second, &format!("{}/engines", farm.url));
    for tab in [&first, &second] {
        // A tab that nobody brought to the front is hidden to its page, where the browser says so.
        browser.eval(tab, "Object.defineProperty(document, 'hidden', { get: () => !!window.isAway, configurable: true }); document.dispatchEvent(new Event('visibilitychange')); 1");
        browser.until(tab, "document.getElementById('live').textContent === 'live'");
    }
    watchers("both pages are followed", 2);
    let connections = browser.eval(
        &second,
        "performance.getEntriesByType('resource').filter((entry) => entry.name.includes('/events')).length",
    );
    assert_eq!(connections, 0, "the stream is the worker's, not the tab's");
    browser.eval(&first, "window.isAway = true; document.dispatchEvent(new Event('visibilitychange')); 1");
    watchers("a hidden tab is not followed", 1);
    browser.eval(&second, "window.isAway = true; document.dispatchEvent(new Event('visibilitychange')); 1");
    watchers("nor is any", 0);
    browser.eval(&first, "window.isAway = false; document.dispatchEvent(new Event('visibilitychange')); 1");
    watchers("what is seen again is followed", 1);
    let model = farm.path().join("later.onnx");
    models::convolutions(&model, 1, 8, 8, 3);
    farm.submit(&model, &["--sku", "a100-sxm4-40gb", "--wait-for-device"]);
    browser.until(&first, "document.getElementById('jobs-rows').textContent.includes('later.onnx')");
}

#[test]
fn a_person_cancels_and_repeats_a_job_by_its_buttons() {
    let (farm, _agent, paths) = lived_in();
    let (mut browser, tab) = signed_in(&farm);
    browser.open(&tab, &format!("{}{}", farm.url, paths[3]));
    browser.eval(&tab, "document.querySelector('form.act button').click(); 1");
    browser.until(&tab, "!!document.querySelector('#job-head .pill.off')");
    browser.eval(&tab, "document.querySelector('form.act button').click(); 1");
    browser.until(&tab, &format!("location.pathname.startsWith('/jobs/') && location.pathname !== '{}'", paths[3]));
    // The copy waits: it is made more urgent, and cloned with a change.
    browser.eval(&tab, "document.querySelector('input[name=priority]').value = '9'; document.querySelector('form[action=\"/do/priority\"] button').click(); 1");
    browser.until(&tab, "document.querySelector('input[name=priority]')?.getAttribute('value') === '9'");
    let copy = browser.eval(&tab, "location.pathname").as_str().expect("a path").to_owned();
    browser.open(&tab, &format!("{}{copy}/clone", farm.url));
    browser.eval(&tab, "document.querySelector('input[name=tags]').value = 'again'; document.querySelector('#clone button').click(); 1");
    let cloned = format!("location.pathname.startsWith('/jobs/') && !location.pathname.startsWith('{copy}')");
    browser.until(&tab, &cloned);
    browser.open(&tab, &format!("{}/devices", farm.url));
    browser.eval(&tab, "document.querySelector('form[action=\"/do/drain\"] button').click(); 1");
    browser.until(&tab, "!!document.querySelector('form[action=\"/do/resume\"] button')");
    assert_eq!(browser.complaints(&tab), Vec::<String>::new());
}

#[test]
fn a_page_is_live_again_after_its_coordinator_was_started_again() {
    let mut farm = Farm::start(Link::Loopback);
    let model = farm.path().join("before.onnx");
    models::convolutions(&model, 1, 8, 8, 3);
    farm.submit(&model, &["--sku", "a100-sxm4-40gb", "--wait-for-device"]);
    let (mut browser, tab) = signed_in(&farm);
    browser.open(&tab, &format!("{}/jobs", farm.url));
    let live = "document.getElementById('live').textContent === 'live'";
    browser.until(&tab, live);
    browser.eval(&tab, "window.before = document.querySelector('#jobs-rows tr'); document.querySelector('input[name=model]').value = 'typed'; 1");
    farm.kill_coordinator();
    browser.until(&tab, "document.getElementById('live').textContent === 'reconnecting'");
    farm.restart_coordinator();
    browser.until(&tab, live);
    // The same page, and what comes now comes to it.
    let later = farm.path().join("later.onnx");
    models::convolutions(&later, 1, 8, 8, 3);
    farm.submit(&later, &["--sku", "a100-sxm4-40gb", "--wait-for-device"]);
    browser.until(&tab, "document.getElementById('jobs-rows').textContent.includes('later.onnx')");
    let kept = "document.querySelector('#jobs-rows tr') === window.before && document.querySelector('input[name=model]').value === 'typed'";
    assert_eq!(browser.eval(&tab, kept), true);
    assert_eq!(browser.complaints(&tab), Vec::<String>::new());
}

#[test]
fn a_page_says_that_its_log_in_ended_and_keeps_what_was_typed() {
    let farm = Farm::start(Link::Loopback);
    let model = farm.path().join("net.onnx");
    models::convolutions(&model, 1, 8, 8, 3);
    let id = id_of(&farm.submit(&model, &["--sku", "a100-sxm4-40gb", "--wait-for-device"])[0]);
    let made = farm.json(&["token", "create", "ann", "--role", "admin"]);
    let (secret, ann) = (made["secret"].as_str().expect("a secret"), made["id"].as_str().expect("an id"));
    let mut browser = Browser::start(&farm.home("browser"));
    let tab = browser.tab();
    let clone = format!("/jobs/{id}/clone");
    browser.open(&tab, &format!("{}{clone}", farm.url));
    assert_eq!(browser.eval(&tab, "location.pathname"), "/login");
    browser.eval(&tab, &format!("document.getElementById('token').value = '{secret}'; document.querySelector('form.panel').requestSubmit(); 1"));
    browser.until(
        &tab,
        &format!("location.pathname === '{clone}' && document.getElementById('live')?.textContent === 'live'"),
    );
    browser.eval(&tab, "document.querySelector('input[name=tags]').value = 'typed-by-hand'; 1");
    farm.json(&["token", "revoke", ann]);
    browser.until(&tab, "document.getElementById('live').textContent.includes('signed out')");
    let way = "document.querySelector('#live a').target + ' ' + document.querySelector('#live a').getAttribute('href')";
    assert_eq!(browser.eval(&tab, way), format!("_blank /login?next={}", clone.replace('/', "%2F")));
    // Nothing is sent that would be lost.
    browser.eval(&tab, "document.querySelector('#clone button').click(); 1");
    let kept = format!(
        "location.pathname === '{clone}' && document.querySelector('input[name=tags]').value === 'typed-by-hand' && document.activeElement === document.querySelector('#live a')"
    );
    assert_eq!(browser.eval(&tab, &kept), true);
    // Signed in again in another tab, this one goes on where it was.
    let second = browser.tab();
    let link = farm.json(&["open"])["url"].as_str().expect("a link").to_owned();
    browser.open(&second, &link);
    browser.until(&second, "!!document.body && !!document.getElementById('coverage')");
    browser.show(&tab);
    browser.eval(&tab, "dispatchEvent(new Event('focus')); 1");
    browser.until(&tab, "document.getElementById('live').textContent === 'live'");
    browser.eval(&tab, "document.querySelector('#clone button').click(); 1");
    browser
        .until(&tab, &format!("location.pathname.startsWith('/jobs/') && !location.pathname.startsWith('/jobs/{id}')"));
    assert!(browser.eval(&tab, "document.body.textContent").as_str().unwrap_or_default().contains("typed-by-hand"));
    assert_eq!(browser.complaints(&tab), Vec::<String>::new());
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
    assert!(page.contains("id=\"coverage\""), "{page}");
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
