//! Style, script and icon, embedded, at addresses that change with their content so that browsers may keep them for ever.

use axum::{
    extract::Path,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use planforge_types::Digest;
use std::sync::LazyLock;

struct Asset {
    stem: &'static str,
    extension: &'static str,
    media_type: &'static str,
    bytes: &'static [u8],
}

static ASSETS: [Asset; 3] = [
    Asset {
        stem: "page",
        extension: "css",
        media_type: "text/css; charset=utf-8",
        bytes: include_bytes!("../../assets/page.css"),
    },
    Asset {
        stem: "page",
        extension: "js",
        media_type: "text/javascript; charset=utf-8",
        bytes: include_bytes!("../../assets/page.js"),
    },
    Asset {
        stem: "icon",
        extension: "svg",
        media_type: "image/svg+xml",
        bytes: include_bytes!("../../assets/icon.svg"),
    },
];

/// Paths of the assets, for templates.
#[derive(Debug)]
pub(super) struct Paths {
    pub(super) style: String,
    pub(super) script: String,
    pub(super) icon: String,
}

/// File names in the order of [`ASSETS`].
static NAMES: LazyLock<Vec<String>> = LazyLock::new(|| {
    ASSETS
        .iter()
        .map(|asset| format!("{}-{}.{}", asset.stem, Digest::of(asset.bytes).short(), asset.extension))
        .collect()
});

pub(super) static PATHS: LazyLock<Paths> = LazyLock::new(|| {
    let path = |index: usize| format!("/assets/{}", NAMES[index]);
    Paths { style: path(0), script: path(1), icon: path(2) }
});

pub(super) async fn serve(Path(name): Path<String>) -> Response {
    let Some(asset) = NAMES.iter().position(|known| *known == name).map(|index| &ASSETS[index]) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(asset.media_type)),
        (header::CACHE_CONTROL, HeaderValue::from_static("public, max-age=31536000, immutable")),
    ];
    (headers, asset.bytes).into_response()
}
