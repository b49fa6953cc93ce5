//! Style, scripts and icon, embedded, at addresses that change with their content so that browsers may keep them for ever.

use planforge_types::Digest;
use std::sync::LazyLock;

#[derive(Debug)]
pub struct Asset {
    stem: &'static str,
    extension: &'static str,
    pub media_type: &'static str,
    pub bytes: &'static [u8],
}

const SCRIPT: &str = "text/javascript; charset=utf-8";

static ASSETS: [Asset; 5] = [
    Asset {
        stem: "page",
        extension: "css",
        media_type: "text/css; charset=utf-8",
        bytes: include_bytes!("../assets/page.css"),
    },
    Asset { stem: "page", extension: "js", media_type: SCRIPT, bytes: include_bytes!("../assets/page.js") },
    Asset { stem: "icon", extension: "svg", media_type: "image/svg+xml", bytes: include_bytes!("../assets/icon.svg") },
    Asset { stem: "worker", extension: "js", media_type: SCRIPT, bytes: include_bytes!("../assets/worker.js") },
    Asset {
        stem: "charts",
        extension: "css",
        media_type: "text/css; charset=utf-8",
        bytes: planforge_charts::STYLE.as_bytes(),
    },
];

/// Paths of the assets, for templates.
#[derive(Debug)]
pub struct Paths {
    pub style: String,
    pub script: String,
    pub icon: String,
    pub worker: String,
    pub charts: String,
}

/// File names in the order of [`ASSETS`].
static NAMES: LazyLock<Vec<String>> = LazyLock::new(|| {
    ASSETS
        .iter()
        .map(|asset| format!("{}-{}.{}", asset.stem, Digest::of(asset.bytes).short(), asset.extension))
        .collect()
});

pub static PATHS: LazyLock<Paths> = LazyLock::new(|| {
    let path = |index: usize| format!("/assets/{}", NAMES[index]);
    Paths { style: path(0), script: path(1), icon: path(2), worker: path(3), charts: path(4) }
});

/// The asset of that file name.
pub fn find(name: &str) -> Option<&'static Asset> {
    NAMES.iter().position(|known| known == name).map(|index| &ASSETS[index])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scripts_stay_small() {
        let scripts: usize = ASSETS.iter().filter(|asset| asset.extension == "js").map(|asset| asset.bytes.len()).sum();
        assert!(scripts <= 20_000, "{scripts} bytes");
        assert!(find(PATHS.script.trim_start_matches("/assets/")).is_some() && find("page.js").is_none());
    }
}
