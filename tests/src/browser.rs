//! Headless Chromium, driven over its own pipe: several tabs, phones, dark pages, and what scripts there say.

use serde_json::{Value, json};
use std::{
    collections::VecDeque,
    io::{BufRead as _, BufReader, Write as _},
    os::unix::process::CommandExt as _,
    path::Path,
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    thread,
    time::Duration,
};

use crate::{DEADLINE, eventually, pause};

/// A browser with a profile of its own.
#[derive(Debug)]
pub struct Browser {
    process: Child,
    input: ChildStdin,
    messages: Receiver<Value>,
    /// That came while something else was waited for.
    events: VecDeque<Value>,
    last_id: u64,
}

/// How a page is looked at.
#[derive(Clone, Copy, Debug)]
pub struct Screen {
    pub name: &'static str,
    pub width: u32,
    pub height: u32,
    /// `light` or `dark`.
    pub scheme: &'static str,
    /// The system's own few colours take the place of the page's.
    pub forced_colors: bool,
    /// Everything is so many times as large, on a screen that is no larger.
    pub zoom: u32,
    /// As it is on paper.
    pub printed: bool,
}

const USUAL: Screen =
    Screen { name: "light", width: 1280, height: 900, scheme: "light", forced_colors: false, zoom: 1, printed: false };

pub const SCREENS: [Screen; 5] = [
    USUAL,
    Screen { name: "dark", scheme: "dark", ..USUAL },
    Screen { name: "phone", width: 390, height: 844, ..USUAL },
    Screen { name: "forced-colors", forced_colors: true, ..USUAL },
    Screen { name: "zoomed", width: 640, height: 450, zoom: 2, ..USUAL },
];

/// Paper, from a machine whose screen is dark.
pub const PAPER: Screen = Screen { name: "paper", scheme: "dark", printed: true, ..USUAL };

/// A tab.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tab {
    target: String,
    session: String,
}

impl Browser {
    /// The name under which Chromium is here.
    pub fn program() -> &'static str {
        let here = ["chromium", "chromium-browser", "google-chrome"]
            .into_iter()
            .find(|name| Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success()));
        here.unwrap_or_else(|| panic!("no Chromium: install the package chromium, or run ./test.sh, which does"))
    }

    pub fn start(profile: &Path) -> Self {
        Self::start_with(profile, &[])
    }

    /// The same with more in its environment.
    pub fn start_with(profile: &Path, environment: &[(&str, &Path)]) -> Self {
        // The browser reads commands from descriptor 3 and writes to descriptor 4.
        let mut command = Command::new("sh");
        command.args(["-c", "exec \"$@\" 3<&0 4>&1 >/dev/null 2>&1 </dev/null", "sh", Self::program()]);
        command.args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]);
        command.args(["--disable-sync", "--disable-background-networking", "--disable-component-update"]);
        command.args(["--remote-debugging-pipe", "--hide-scrollbars", "about:blank"]);
        command.arg(format!("--user-data-dir={}", profile.join("browser").display()));
        command.envs(environment.iter().copied());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        let mut process = command.spawn().expect("a browser starts");
        let input = process.stdin.take().expect("a pipe to the browser");
        let output = process.stdout.take().expect("a pipe from the browser");
        let (to, messages) = channel();
        thread::spawn(move || {
            let mut output = BufReader::new(output);
            let mut message = Vec::new();
            while output.read_until(0, &mut message).is_ok_and(|count| count > 0) {
                message.pop();
                let Ok(value) = serde_json::from_slice(&message) else { continue };
                if to.send(value).is_err() {
                    return;
                }
                message.clear();
            }
        });
        Self { process, input, messages, events: VecDeque::new(), last_id: 0 }
    }

    fn next(&self) -> Value {
        match self.messages.recv_timeout(DEADLINE) {
            Ok(message) => message,
            Err(RecvTimeoutError::Timeout) => panic!("the browser says nothing"),
            Err(RecvTimeoutError::Disconnected) => panic!("the browser went away"),
        }
    }

    /// Calls a method of the browser, or of a tab, and waits for its answer.
    pub fn call(&mut self, tab: Option<&Tab>, method: &str, params: Value) -> Value {
        self.ask(tab, method, params).unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    fn ask(&mut self, tab: Option<&Tab>, method: &str, params: Value) -> Result<Value, Value> {
        self.last_id += 1;
        let mut message = json!({ "id": self.last_id, "method": method, "params": params });
        if let Some(tab) = tab {
            message["sessionId"] = tab.session.clone().into();
        }
        self.input.write_all(format!("{message}\0").as_bytes()).expect("the browser listens");
        loop {
            let answer = self.next();
            if answer["id"] == self.last_id {
                return match &answer["error"] {
                    Value::Null => Ok(answer["result"].clone()),
                    error => Err(error.clone()),
                };
            }
            if answer["id"].is_null() {
                self.events.push_back(answer);
            }
        }
    }

    /// A new tab that shows nothing yet.
    pub fn tab(&mut self) -> Tab {
        let target = self.call(None, "Target.createTarget", json!({ "url": "about:blank" }));
        let target = target["targetId"].as_str().expect("a tab").to_owned();
        let attached = self.call(None, "Target.attachToTarget", json!({ "targetId": target, "flatten": true }));
        let tab = Tab { target, session: attached["sessionId"].as_str().expect("a session").to_owned() };
        for domain in ["Page", "Runtime", "Log"] {
            self.call(Some(&tab), &format!("{domain}.enable"), json!({}));
        }
        tab
    }

    pub fn close(&mut self, tab: &Tab) {
        self.call(None, "Target.closeTarget", json!({ "targetId": tab.target }));
    }

    /// Brings a tab to the front: the others are hidden then.
    pub fn show(&mut self, tab: &Tab) {
        self.call(Some(tab), "Page.bringToFront", json!({}));
    }

    pub fn look_as(&mut self, tab: &Tab, screen: Screen) {
        let size = json!({ "width": screen.width, "height": screen.height, "deviceScaleFactor": screen.zoom,
                           "mobile": screen.width < 600 });
        self.call(Some(tab), "Emulation.setDeviceMetricsOverride", size);
        let forced = if screen.forced_colors { "active" } else { "none" };
        let media = if screen.printed { "print" } else { "" };
        let features = json!({ "media": media, "features": [{ "name": "prefers-color-scheme", "value": screen.scheme },
                                            { "name": "forced-colors", "value": forced }] });
        self.call(Some(tab), "Emulation.setEmulatedMedia", features);
    }

    /// Opens an address and waits until all of it is there.
    pub fn open(&mut self, tab: &Tab, url: &str) {
        let went = self.call(Some(tab), "Page.navigate", json!({ "url": url }));
        assert!(went["errorText"].is_null(), "{url}: {went}");
        eventually("the page is loaded", || match self.look(tab, "document.readyState + ' ' + location.href") {
            Value::String(state) if state.starts_with("complete") && !state.ends_with("about:blank") => Ok(()),
            other => Err(other.to_string()),
        });
    }

    /// Opens an address whose script comes half a second late, and tells by how much what was painted has moved since.
    pub fn moved_by_a_late_script(&mut self, tab: &Tab, url: &str) -> f64 {
        let scripts = json!({ "patterns": [{ "resourceType": "Script" }] });
        self.call(Some(tab), "Fetch.enable", scripts);
        // What is kept already is not asked for.
        self.call(Some(tab), "Network.enable", json!({}));
        self.call(Some(tab), "Network.setCacheDisabled", json!({ "cacheDisabled": true }));
        self.call(Some(tab), "Page.navigate", json!({ "url": url }));
        let paused = self.event(tab, "Fetch.requestPaused");
        pause(Duration::from_millis(500));
        let request = json!({ "requestId": paused["params"]["requestId"] });
        self.call(Some(tab), "Fetch.continueRequest", request);
        self.until(tab, "document.readyState === 'complete'");
        self.call(Some(tab), "Fetch.disable", json!({}));
        // Told once what was painted last has been looked at.
        let moved = "new Promise((tell) => { let sum = 0;
            new PerformanceObserver((list) => { for (const shift of list.getEntries()) sum += shift.value; })
                .observe({ type: 'layout-shift', buffered: true });
            setTimeout(() => tell(sum), 500); })";
        self.eval(tab, moved).as_f64().expect("a sum")
    }

    /// The next event of a name in a tab, or one that came already.
    fn event(&mut self, tab: &Tab, method: &str) -> Value {
        let is_it = |event: &Value| event["method"] == method && event["sessionId"] == tab.session;
        if let Some(at) = self.events.iter().position(is_it) {
            return self.events.remove(at).expect("it is there");
        }
        loop {
            let event = self.next();
            if is_it(&event) {
                return event;
            }
            self.events.push_back(event);
        }
    }

    /// What an expression comes to in a tab; promises are waited for.
    pub fn eval(&mut self, tab: &Tab, expression: &str) -> Value {
        let answer = self.ask(Some(tab), "Runtime.evaluate", evaluation(expression));
        let answer = answer.unwrap_or_else(|error| panic!("{expression}: {error}"));
        assert!(answer["exceptionDetails"].is_null(), "{answer}");
        answer["result"]["value"].clone()
    }

    /// The same, or nothing while the tab goes from one page to the next: what is looked at again.
    fn look(&mut self, tab: &Tab, expression: &str) -> Value {
        match self.ask(Some(tab), "Runtime.evaluate", evaluation(expression)) {
            Ok(answer) if answer["exceptionDetails"].is_null() => answer["result"]["value"].clone(),
            Ok(answer) => panic!("{answer}"),
            Err(error) if error["message"].as_str().is_some_and(|why| why.contains("navigated")) => Value::Null,
            Err(error) => panic!("{expression}: {error}"),
        }
    }

    /// Waits until an expression is true in a tab.
    pub fn until(&mut self, tab: &Tab, expression: &str) {
        eventually(expression, || match self.look(tab, expression) {
            Value::Bool(true) => Ok(()),
            other => Err(format!("{other}: {}", self.look(tab, "document.body ? document.body.innerText : ''"))),
        });
    }

    /// The whole page as a picture.
    pub fn picture(&mut self, tab: &Tab) -> String {
        let params = json!({ "format": "png", "captureBeyondViewport": true });
        self.call(Some(tab), "Page.captureScreenshot", params)["data"].as_str().unwrap_or_default().to_owned()
    }

    /// The top of a page as a picture, drawn at `scale`.
    pub fn part_of_picture(&mut self, tab: &Tab, width: f64, height_max: f64, scale: f64) -> String {
        let size = self.call(Some(tab), "Page.getLayoutMetrics", json!({}));
        let height = size["cssContentSize"]["height"].as_f64().unwrap_or(height_max).min(height_max);
        let clip = json!({ "x": 0, "y": 0, "width": width, "height": height, "scale": scale });
        let params = json!({ "format": "png", "captureBeyondViewport": true, "clip": clip });
        self.call(Some(tab), "Page.captureScreenshot", params)["data"].as_str().unwrap_or_default().to_owned()
    }

    /// Its major version.
    pub fn major(&mut self) -> String {
        let version = self.call(None, "Browser.getVersion", json!({}));
        let product = version["product"].as_str().unwrap_or_default();
        product.split('/').next_back().and_then(|number| number.split('.').next()).unwrap_or_default().to_owned()
    }

    /// What scripts and the browser complained of in a tab so far.
    pub fn complaints(&mut self, tab: &Tab) -> Vec<String> {
        // Everything that was said before has come once this is answered.
        self.eval(tab, "1");
        let of_tab = |event: &&Value| event["sessionId"] == tab.session;
        let said = |event: &Value| match event["method"].as_str() {
            Some("Runtime.exceptionThrown") => Some(event["params"]["exceptionDetails"].to_string()),
            Some("Log.entryAdded") if event["params"]["entry"]["level"] == "error" => {
                Some(event["params"]["entry"].to_string())
            }
            _ => None,
        };
        self.events.iter().filter(of_tab).filter_map(said).collect()
    }
}

fn evaluation(expression: &str) -> Value {
    json!({ "expression": expression, "awaitPromise": true, "returnByValue": true })
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Its helpers are of its group.
        let group = nix::unistd::Pid::from_raw(self.process.id().cast_signed());
        let _ = nix::sys::signal::killpg(group, nix::sys::signal::Signal::SIGKILL);
        let _ = self.process.wait();
    }
}
