//! The status page in a real browser.

use planforge_tests::{
    farm::{Farm, Link, id_of},
    models, process,
};
use std::{path::Path, process::Command};

/// The page as the browser has it after its scripts ran for `budget_ms`.
fn dom(home: &Path, url: &str, budget_ms: u32) -> Option<String> {
    let browser = ["chromium", "chromium-browser", "google-chrome"]
        .into_iter()
        .find(|name| Command::new(name).arg("--version").output().is_ok_and(|o| o.status.success()))?;
    let mut command = Command::new(browser);
    command.args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]);
    command.args(["--disable-background-networking", "--disable-component-update", "--dump-dom"]);
    command.arg(format!("--user-data-dir={}", home.join("browser").display()));
    // A limit in real time: the page's event stream stays open, so the browser never finds the network idle.
    command.arg(format!("--timeout={budget_ms}")).arg(url);
    let output = process::run(command);
    assert!(output.status.success(), "{output:?}");
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn the_page_shows_jobs_devices_and_engines() {
    let farm = Farm::start(Link::Loopback);
    let Some(empty) = dom(&farm.home("empty"), &farm.url, 2000) else {
        panic!("no Chromium: install the package chromium, or run ./test.sh, which does");
    };
    assert!(empty.contains("planforge"), "an empty farm says the next command: {empty}");

    let _agent = farm.start_agent("one", "host", None);
    farm.wait_agents(1);
    let model = farm.path().join("<script>alert(1)<script>.onnx");
    models::convolutions(&model, 2, 16, 14, 7);
    let id = id_of(&farm.submit(&model, &["--sku", "cpu-x86-64-v2", "--threads", "1"])[0]);
    let job = farm.wait_ended(&id);
    assert_eq!(job["state"], "succeeded", "{job}");

    let page = dom(&farm.home("full"), &farm.url, 2000).expect("the browser was there");
    assert!(page.contains("cpu-x86-64-v2") && page.contains("succeeded"), "{page}");
    assert!(page.contains(&id[..8]), "{page}");
    assert!(!page.contains("<script>alert"), "names are escaped: {page}");

    let page = dom(&farm.home("job"), &format!("{}/jobs/{id}", farm.url), 2000).expect("the browser was there");
    let median = job["report"]["latency_ms"]["median"].as_f64();
    assert!(median.is_some() && page.contains("median"), "{page}");
    assert!(page.contains("planforge fetch"), "says how to fetch the engine: {page}");
}
