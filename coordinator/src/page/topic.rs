//! Which page: the address that a browser shows, and that it asks for updates by.

use axum::extract::Query;
use axum::http::Uri;
use planforge_page::format::encoded;
use planforge_proto::{ApiError, ErrorCode};
use std::collections::BTreeMap;

/// Longest address that is taken for a page.
const ADDRESS_MAX_BYTES: usize = 2_048;

/// A page: its kind, what it is of, and what narrows its list.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Topic {
    pub(super) kind: Kind,
    /// Id or digest; empty for lists.
    pub(super) of: String,
    pub(super) query: BTreeMap<String, String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Home,
    Jobs,
    Job,
    Clone,
    Request,
    Engines,
    Plan,
    Model,
    Compare,
    Devices,
    Farm,
    Activity,
    Api,
}

impl Kind {
    /// Names of what may narrow it.
    fn filters(self) -> &'static [&'static str] {
        match self {
            Self::Home => &["model", "sku", "project", "by", "from", "row"],
            Self::Jobs => &["state", "model", "sku", "tag", "project", "sort", "cursor"],
            Self::Job => &["q", "layers", "from", "find"],
            Self::Plan => &["layers", "from", "find"],
            Self::Compare => &["of", "baseline", "model", "request", "steps"],
            Self::Engines => &["model", "sku", "project", "cursor"],
            Self::Devices => &["from", "agents"],
            Self::Activity => &["actor", "what", "project", "cursor"],
            _ => &[],
        }
    }

    fn folder(self) -> &'static str {
        match self {
            Self::Home => "",
            Self::Jobs | Self::Job | Self::Clone => "jobs",
            Self::Request => "requests",
            Self::Engines => "engines",
            Self::Plan => "plans",
            Self::Model => "models",
            Self::Compare => "compare",
            Self::Devices => "devices",
            Self::Farm => "farm",
            Self::Activity => "activity",
            Self::Api => "api",
        }
    }
}

/// A page, and how it is asked for.
pub(super) struct Asked {
    pub(super) topic: Topic,
    pub(super) wants_json: bool,
}

impl Topic {
    /// # Errors
    /// For an address of no page, and for filters that the page does not have: a misspelt one would show everything.
    pub(super) fn read(uri: &Uri) -> Result<Asked, ApiError> {
        let unknown = || ApiError::new(ErrorCode::NotFound, "no page has this address");
        let invalid = |message: String| ApiError::new(ErrorCode::InvalidArgument, message);
        if uri.to_string().len() > ADDRESS_MAX_BYTES {
            return Err(invalid("the address is too long".into()));
        }
        let mut steps = uri.path().trim_matches('/').splitn(2, '/');
        let (folder, of) = (steps.next().unwrap_or_default(), steps.next().unwrap_or_default());
        let kind = match (folder, of.is_empty()) {
            ("", true) => Kind::Home,
            ("jobs", true) => Kind::Jobs,
            ("jobs", false) if of.ends_with("/clone") => Kind::Clone,
            ("jobs", false) => Kind::Job,
            ("requests", false) => Kind::Request,
            ("engines", true) => Kind::Engines,
            ("plans", false) => Kind::Plan,
            ("models", false) => Kind::Model,
            ("compare", true) => Kind::Compare,
            ("devices", true) => Kind::Devices,
            ("farm", true) => Kind::Farm,
            ("activity", true) => Kind::Activity,
            ("api", true) => Kind::Api,
            _ => return Err(unknown()),
        };
        let of = if kind == Kind::Clone { of.trim_end_matches("/clone") } else { of };
        let Query(pairs) =
            Query::<Vec<(String, String)>>::try_from_uri(uri).map_err(|rejection| invalid(rejection.body_text()))?;
        let (mut query, mut wants_json) = (BTreeMap::new(), false);
        for (name, value) in pairs {
            match (name.as_str(), value.as_str()) {
                ("format", "json") => wants_json = true,
                ("format", "html") => wants_json = false,
                ("format", _) => return Err(invalid("formats are html and json".into())),
                // An empty field of a form narrows nothing.
                (name, value) if kind.filters().contains(&name) => {
                    if !value.trim().is_empty() {
                        query.insert(name.to_owned(), value.trim().to_owned());
                    }
                }
                (name, _) => {
                    let message = format!("this page has no filter '{}'", name.escape_debug());
                    let known = kind.filters().join(", ");
                    return Err(invalid(message).with_hint(match known.is_empty() {
                        true => "it has none".into(),
                        false => format!("its filters are {known}"),
                    }));
                }
            }
        }
        Ok(Asked { topic: Self { kind, of: of.to_owned(), query }, wants_json })
    }

    pub(super) fn get(&self, name: &str) -> &str {
        self.query.get(name).map_or("", String::as_str)
    }

    /// Where it stands; what follows is read as it was written.
    pub(super) fn address(&self) -> String {
        let mut address = format!("/{}", self.kind.folder());
        if !self.of.is_empty() {
            address.push('/');
            address.push_str(&self.of);
        }
        if self.kind == Kind::Clone {
            address.push_str("/clone");
        }
        for (at, (name, value)) in self.query.iter().enumerate() {
            address.push(if at == 0 { '?' } else { '&' });
            address.push_str(name);
            address.push('=');
            address.push_str(&encoded(value));
        }
        address
    }

    pub(super) fn with(&self, name: &str, value: &str) -> String {
        let address = self.address();
        let joint = if address.contains('?') { '&' } else { '?' };
        format!("{address}{joint}{name}={}", encoded(value))
    }

    pub(super) fn json_address(&self) -> String {
        self.with("format", "json")
    }

    /// The same page without one of its filters.
    pub(super) fn without(&self, name: &str) -> Self {
        let mut here = self.clone();
        here.query.remove(name);
        here
    }

    /// A filter that counts; 0 where it is not there.
    pub(super) fn number(&self, name: &str) -> Result<usize, ApiError> {
        match self.get(name) {
            "" => Ok(0),
            text => text.parse().map_err(|_| {
                let message = format!("'{}' is no number", text.escape_debug());
                ApiError::new(ErrorCode::InvalidArgument, message).with_hint(format!("{name} counts, from 0"))
            }),
        }
    }

    /// The page that begins at a cursor; empty without one.
    pub(super) fn next(&self, cursor: &str) -> String {
        if cursor.is_empty() {
            return String::new();
        }
        self.without("cursor").with("cursor", cursor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(address: &str) -> Result<Asked, ApiError> {
        Topic::read(&address.parse().unwrap())
    }

    #[test]
    fn addresses_are_read_as_they_were_written() {
        for address in [
            "/",
            "/jobs",
            "/jobs/01abc",
            "/jobs/01abc?q=a%20b",
            "/jobs/01abc/clone",
            "/jobs?model=a%3Cb%3E%26c&state=queued,running",
            "/farm",
        ] {
            let asked = read(address).unwrap();
            assert_eq!(asked.topic.address(), address);
            assert!(!asked.wants_json && read(&asked.topic.json_address()).unwrap().wants_json);
        }
        let page = read("/engines?sku=t4&cursor=1.a.b&model=").unwrap().topic;
        assert_eq!(page.next("2.c.d"), "/engines?sku=t4&cursor=2.c.d");
        assert_eq!((page.next("").as_str(), page.get("model")), ("", ""));
    }

    #[test]
    fn what_is_no_page_or_no_filter_is_refused() {
        for bad in ["/nothing", "/engines/x", "/jobs?sate=queued", "/?skus=t4", "/jobs?format=xml"] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
