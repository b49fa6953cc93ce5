//! Pictures of every page, light, dark and on a phone, against a set that somebody looked at.
//!
//! They are of the farm in `fixtures/farm-51f5ee2.tar.zst`, whose figures never change; times are written over before a
//! picture is taken. Fonts are those of one package (`fixtures/pages/fonts.conf`). The browser itself holds a picture
//! against the one that is kept: less than one pixel in a hundred may differ. Browsers of another major version draw
//! otherwise: there the boxes of the layout are compared.
//!
//! `PLANFORGE_BLESS=1 cargo nextest run -p planforge-tests --test page_pictures` writes the set anew: look at each.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use planforge_tests::{
    browser::{Browser, SCREENS, Screen, Tab},
    farm::{Farm, Link},
    release::root,
};
use serde_json::{Map, Value, json};
use std::{
    fs::{self, File},
    path::{Path, PathBuf},
};

/// Parts of a hundred of a picture's pixels that may differ.
const DIFFERS_MAX: f64 = 1.0;
/// By how much a colour has to be another one to count, of 255: a step of a rounded edge is none.
const STEP: u32 = 48;
/// By how many pixels a box may be elsewhere or of another size under another browser.
const BOX_MAX: f64 = 12.0;
/// What is kept of a page begins at its top and is so high; and how much smaller it is kept.
const HEIGHT_MAX: f64 = 2_400.0;
const SCALE: f64 = 0.5;

const JOB: &str = "bb9ss30r6khp";
const ENGINE: &str = "be0fbe687630409512523dd698c40eda7d0201ffc3605e16ddcf0a406a0cf0a6";
const MODEL: &str = "98f308ca62001cf6efee6b5efe1d8bd07091964adcc84049fa32eeeb10a5bfd2";

fn pages() -> Vec<(&'static str, String)> {
    vec![
        ("coverage", "/".into()),
        ("jobs", "/jobs".into()),
        ("job", format!("/jobs/{JOB}")),
        ("job-failed", "/jobs/yb9vs5ywvtvz".into()),
        ("job-clone", format!("/jobs/{JOB}/clone")),
        ("request", "/requests/e292scemgcbv".into()),
        ("engines", "/engines".into()),
        ("engine", format!("/plans/{ENGINE}")),
        ("model", format!("/models/{MODEL}")),
        ("compare", format!("/compare?model={MODEL}")),
        ("devices", "/devices".into()),
        ("farm", "/farm".into()),
        ("activity", "/activity".into()),
        ("api", "/api".into()),
        ("missing", "/jobs/nothing".into()),
    ]
}

/// What differs from run to run is written over: times, the address of the coordinator, what is free on this disk, and
/// lines of the audit log, which are of this run.
const STILL: &str = r##"(() => {
  const words = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (const node of [...(function* () { while (words.nextNode()) yield words.currentNode; })()])
    node.nodeValue = node.nodeValue.replace(/127\.0\.0\.1:\d+/g, "farm.example")
      .replace(/2026-\d\d-\d\dT[\d:]+Z/g, "2026-01-31T12:00:00Z");
  for (const time of document.querySelectorAll("time")) time.textContent = "5 min ago";
  for (const row of document.querySelectorAll("#audit-rows tr")) row.remove();
  for (const row of document.querySelectorAll("[data-key='Room left'] td:last-child")) row.textContent = "48.6 GiB";
  document.getElementById("live").textContent = "live";
  document.getElementById("live").className = "live on";
  return document.fonts.ready.then(() => 1);
})()"##;

/// Boxes of what a page is made of, each with how it is called.
const BOXES: &str = r##"[...document.querySelectorAll("header, main, main h1, main h2, main [id], .tile, .card, .figure, footer")]
  .filter((part) => part.getClientRects().length && !part.closest("svg"))
  .map((part) => { const box = part.getBoundingClientRect();
    return [part.tagName.toLowerCase() + (part.id ? "#" + part.id : part.className ? "." + part.className.split(" ")[0] : ""),
      ...[box.x + scrollX, box.y + scrollY, box.width, box.height].map(Math.round)]; })"##;

/// How many of a hundred pixels of two pictures differ; all where they are of another size.
fn differing(kept: &str, now: &str) -> String {
    format!(
        r#"(async () => {{
  const read = async (text) => {{
    const image = new Image();
    image.src = "data:image/png;base64," + text;
    await image.decode();
    const canvas = new OffscreenCanvas(image.width, image.height), paper = canvas.getContext("2d");
    paper.drawImage(image, 0, 0);
    return paper.getImageData(0, 0, image.width, image.height);
  }};
  const [kept, now] = [await read("{kept}"), await read("{now}")];
  if (kept.width !== now.width || kept.height !== now.height) return 100;
  let differ = 0;
  for (let at = 0; at < kept.data.length; at += 4)
    if ([0, 1, 2].some((part) => Math.abs(kept.data[at + part] - now.data[at + part]) > {STEP})) differ++;
  return differ * 400 / kept.data.length;
}})()"#
    )
}

fn decoded(picture: &str) -> Vec<u8> {
    STANDARD.decode(picture).expect("the browser writes base64")
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/pages")
}

/// A farm on the folder of the fixture.
fn farm() -> Farm {
    Farm::start_on(Link::Loopback, &[], |data| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/farm-51f5ee2.tar.zst");
        let bytes = ruzstd::decoding::StreamingDecoder::new(File::open(path).expect("the fixture is there"));
        let unpacked = data.with_file_name("unpacked");
        tar::Archive::new(bytes.expect("the fixture is zstd")).unpack(&unpacked).expect("the fixture is a tar");
        fs::rename(unpacked.join("farm"), data).expect("its folder becomes the coordinator's");
    })
}

struct Look<'a> {
    browser: Browser,
    tab: Tab,
    farm: &'a Farm,
    wrong: Vec<String>,
}

impl Look<'_> {
    /// A page as it is now: its picture, and the boxes of its layout.
    fn at(&mut self, path: &str, screen: Screen) -> (String, Value) {
        self.browser.look_as(&self.tab, screen);
        self.browser.open(&self.tab, &format!("{}{path}", self.farm.url));
        self.browser.eval(&self.tab, STILL);
        let boxes = self.browser.eval(&self.tab, BOXES);
        (self.browser.part_of_picture(&self.tab, f64::from(screen.width), HEIGHT_MAX, SCALE), boxes)
    }

    fn compare_boxes(&mut self, name: &str, kept: &Value, now: &Value) {
        let rows = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let (kept, now) = (rows(kept), rows(now));
        let names = |rows: &[Value]| rows.iter().map(|row| row[0].clone()).collect::<Vec<_>>();
        if names(&kept) != names(&now) {
            self.wrong.push(format!("{name}: made of other parts: {:?} were {:?}", names(&now), names(&kept)));
            return;
        }
        for (kept, now) in kept.iter().zip(&now) {
            let far = (1..5).any(|at| {
                let (was, is) = (kept[at].as_f64().unwrap_or(0.0), now[at].as_f64().unwrap_or(0.0));
                // What is long may be a line longer under other widths of letters.
                (was - is).abs() > BOX_MAX.max(was * 0.02)
            });
            if far {
                self.wrong.push(format!("{name}: {now} was {kept}"));
            }
        }
    }
}

#[test]
fn every_page_looks_as_it_was_looked_at() {
    let fonts = folder().join("fonts.conf");
    let farm = farm();
    let mut browser = Browser::start_with(&farm.home("browser"), &[("FONTCONFIG_FILE", &fonts)]);
    // Pictures are held against each other where no policy of the page forbids to read them.
    let (paper, tab) = (browser.tab(), browser.tab());
    let link = farm.json(&["open"])["url"].as_str().expect("a link").to_owned();
    browser.open(&tab, &link);
    browser.until(&tab, "!!document.body && !!document.getElementById('coverage')");
    let major = browser.major();
    let bless = std::env::var_os("PLANFORGE_BLESS").is_some();
    let file = folder().join("layout.json");
    let kept: Value = match fs::read(&file) {
        Ok(bytes) => serde_json::from_slice(&bytes).expect("the kept layout is JSON"),
        Err(_) => json!({}),
    };
    // Pictures that differ, for whoever looks why.
    let told = root().join("target/page-pictures");
    fs::create_dir_all(&told).expect("a folder for pictures");
    let is_same_browser = kept["chromium"] == major;
    let mut layout = Map::new();
    let mut look = Look { browser, tab, farm: &farm, wrong: Vec::new() };
    for (page, path) in pages() {
        for screen in &SCREENS[..3] {
            let name = format!("{page}-{}", screen.name);
            let (picture, boxes) = look.at(&path, *screen);
            let picture_file = folder().join(format!("{name}.png"));
            if bless {
                fs::write(&picture_file, decoded(&picture)).expect("a picture is written");
            } else if is_same_browser {
                let before =
                    fs::read(&picture_file).unwrap_or_else(|error| panic!("{name} was never looked at: {error}"));
                let script = differing(&STANDARD.encode(&before), &picture);
                let differ = look.browser.eval(&paper, &script).as_f64().unwrap_or(100.0);
                if differ >= DIFFERS_MAX {
                    let now = told.join(format!("{name}.png"));
                    fs::write(&now, decoded(&picture)).expect("a picture is written");
                    look.wrong.push(format!("{name}: {differ:.2} % of its pixels differ: see {}", now.display()));
                }
            } else {
                look.compare_boxes(&name, &kept["pages"][&name], &boxes);
            }
            layout.insert(name, boxes);
        }
    }
    if bless {
        let pages: Vec<String> = layout.iter().map(|(name, boxes)| format!("\"{name}\":{boxes}")).collect();
        let text = format!("{{\"chromium\":\"{major}\",\"pages\":{{\n{}\n}}}}\n", pages.join(",\n"));
        fs::write(file, text).expect("the layout is written");
    }
    assert!(look.wrong.is_empty(), "{}", look.wrong.join("\n"));
}
