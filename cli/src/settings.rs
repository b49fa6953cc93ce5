//! Every setting that can come from outside a command line, declared once: the resolver, `planforge --help` and the
//! table in the README all read [`SETTINGS`].
//!
//! Precedence: flag, environment, project file (`planforge.toml` in this folder or above it), user file
//! (`$XDG_CONFIG_HOME/planforge/config.toml`), default.
//!
//! Whoever wrote a repository wrote its project file, so it may say what is built and where the farm is, and nothing
//! that decides whom this user trusts: [`Setting::not_in_project`] says which keys it cannot hold, and why.

use crate::failure::Failure;
use planforge_fleet::declaration::KEYS as DECLARED;
use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

/// Name of the project file, looked for from the current folder upwards.
pub const PROJECT_FILE: &str = "planforge.toml";

/// Largest configuration file that is read: a configuration is a page of text.
const CONFIG_MAX_BYTES: u64 = 1024 * 1024;

/// Largest size of an agent's cache that is not a mistake.
const AGENT_CACHE_MAX_GIB: f64 = 1_000_000.0;

/// Longest measurement that is not a mistake: a day.
const MEASURE_BUDGET_MAX_S: u64 = 86_400;

/// Name of the user file in [`config_folder`].
const USER_FILE: &str = "config.toml";

/// A setting's name in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    Server,
    Project,
    Token,
    TokenFile,
    Ca,
    Insecure,
    AllowReadable,
    Data,
    AgentCache,
    MeasureBudget,
    Skus,
    Store,
    Blobs,
    Log,
    LogFormat,
}

/// What this machine's agent was told to keep to; `None`: to what it usually does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AgentBounds {
    /// Of what it keeps between jobs.
    pub cache_bytes: Option<u64>,
    /// Of measuring one engine, even where comparisons need more.
    pub measure_budget_ms: Option<u64>,
}

/// What a setting's text means in a configuration file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Text,
    /// Relative paths in a configuration file start at that file's folder.
    Path,
    /// A path as above, or a URL.
    Place,
    /// A list of texts in a file, comma-separated elsewhere.
    List,
    /// `true` or `false`.
    Switch,
}

/// One row of the table.
#[derive(Debug)]
pub struct Setting {
    pub key: Key,
    /// Key in a configuration file.
    pub name: &'static str,
    /// The environment variable.
    pub env: &'static str,
    pub flag: &'static str,
    kind: Kind,
    /// What holds when nobody says anything, in words.
    pub default: &'static str,
    pub help: &'static str,
    /// What to do instead of writing it into a project file, where that is refused.
    pub not_in_project: Option<&'static str>,
}

/// The table.
pub const SETTINGS: [Setting; 15] = [
    Setting {
        key: Key::Server,
        name: "server",
        env: "PLANFORGE_SERVER",
        flag: "--server",
        kind: Kind::Text,
        default: "none: build on this machine",
        help: "URL of the coordinator",
        not_in_project: None,
    },
    Setting {
        key: Key::Project,
        name: "project",
        env: "PLANFORGE_PROJECT",
        flag: "--project",
        kind: Kind::Text,
        default: "the token's, else default",
        help: "project that jobs belong to",
        not_in_project: None,
    },
    Setting {
        key: Key::Token,
        name: "token",
        env: "PLANFORGE_TOKEN",
        flag: "--token",
        kind: Kind::Text,
        default: "none",
        help: "secret that says who you are to the coordinator",
        not_in_project: Some(
            "planforge login URL keeps a token for one server; PLANFORGE_TOKEN goes with PLANFORGE_SERVER",
        ),
    },
    Setting {
        key: Key::TokenFile,
        name: "token_file",
        env: "PLANFORGE_TOKEN_FILE",
        flag: "--token-file",
        kind: Kind::Path,
        default: "none",
        help: "file that holds the token",
        not_in_project: Some(
            "planforge login URL keeps a token for one server; PLANFORGE_TOKEN_FILE goes with PLANFORGE_SERVER",
        ),
    },
    Setting {
        key: Key::Ca,
        name: "ca",
        env: "PLANFORGE_CA",
        flag: "--ca",
        kind: Kind::Path,
        default: "none",
        help: "PEM file of the certificate authority that signed the coordinator's certificate",
        not_in_project: Some(
            "planforge login URL --ca FILE remembers it for one server; PLANFORGE_CA goes with PLANFORGE_SERVER",
        ),
    },
    Setting {
        key: Key::Insecure,
        name: "insecure",
        env: "PLANFORGE_INSECURE",
        flag: "--insecure",
        kind: Kind::Switch,
        default: "false",
        help: "allow http:// beyond this machine: tokens and plans travel in the clear",
        not_in_project: Some(
            "planforge login URL --insecure allows it for one server; PLANFORGE_INSECURE goes with PLANFORGE_SERVER",
        ),
    },
    Setting {
        key: Key::AllowReadable,
        name: "allow_readable_key",
        env: "PLANFORGE_ALLOW_READABLE_KEY",
        flag: "--allow-readable-key",
        kind: Kind::Switch,
        default: "false",
        help: "take token files and keys that other users can read",
        not_in_project: Some(
            "pass --allow-readable-key, set PLANFORGE_ALLOW_READABLE_KEY, or write it into the user file",
        ),
    },
    Setting {
        key: Key::Data,
        name: "data",
        env: "PLANFORGE_DATA",
        flag: "--data",
        kind: Kind::Path,
        default: "$XDG_DATA_HOME/planforge",
        help: "folder of the farm on this machine: jobs, engines, reports",
        // A data folder says which plugins workers load and which plans are the answer to a model.
        not_in_project: Some("pass --data DIR, set PLANFORGE_DATA, or write it into the user file"),
    },
    Setting {
        key: Key::AgentCache,
        name: "agent_cache",
        env: "PLANFORGE_AGENT_CACHE",
        flag: "--agent-cache",
        kind: Kind::Text,
        default: "8",
        help: "GiB that this machine's agent keeps of models and timing caches; the longest unused go",
        not_in_project: Some("pass --agent-cache GIB, set PLANFORGE_AGENT_CACHE, or write it into the user file"),
    },
    Setting {
        key: Key::MeasureBudget,
        name: "measure_budget_s",
        env: "PLANFORGE_MEASURE_BUDGET_S",
        flag: "--measure-budget-s",
        kind: Kind::Text,
        default: "20, or as long as comparisons need",
        help: "seconds that this machine's agent may measure one engine for, even where comparisons need more",
        not_in_project: Some(
            "pass --measure-budget-s S, set PLANFORGE_MEASURE_BUDGET_S, or write it into the user file",
        ),
    },
    Setting {
        key: Key::Skus,
        name: "skus",
        env: "PLANFORGE_SKUS",
        flag: "--sku",
        kind: Kind::List,
        default: "the best of each device of this machine",
        help: "device kinds to build for",
        not_in_project: None,
    },
    Setting {
        key: Key::Store,
        name: "store",
        env: "PLANFORGE_STORE",
        flag: "--store",
        kind: Kind::Text,
        default: "a database in the folder of the farm",
        help: "where up and coordinator keep the farm: postgres://USER@HOST/DATABASE",
        // It says which farm this is, and may hold a password.
        not_in_project: Some("set PLANFORGE_STORE, pass --store-file FILE, or write it into the user file"),
    },
    Setting {
        key: Key::Blobs,
        name: "blobs",
        env: "PLANFORGE_BLOBS",
        flag: "--blobs",
        kind: Kind::Place,
        default: "none",
        help: "copy of the farm's blobs, a folder or a URL, for locked engines while the coordinator is away",
        // What comes from there is what the lock names, or nothing; no credential goes there.
        not_in_project: None,
    },
    Setting {
        key: Key::Log,
        name: "log",
        env: "PLANFORGE_LOG",
        flag: "--log",
        kind: Kind::Text,
        default: "error; info for up, coordinator and agent",
        help: "log filter, such as info,planforge_agent=debug",
        not_in_project: None,
    },
    Setting {
        key: Key::LogFormat,
        name: "log_format",
        env: "PLANFORGE_LOG_FORMAT",
        flag: "--log-format",
        kind: Kind::Text,
        default: "text",
        help: "log lines on stderr as text or json",
        not_in_project: None,
    },
];

/// Where a value came from, strongest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    Flag,
    Environment,
    ProjectFile,
    UserFile,
}

/// A value and where it came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    pub text: String,
    pub origin: Origin,
}

/// Every value of every setting that somebody set.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Strongest first; never empty.
    values: BTreeMap<Key, Vec<Value>>,
}

/// Texts by setting, as one source gives them.
pub type Layer = BTreeMap<Key, String>;

impl Settings {
    /// Lays the sources over each other.
    pub fn layered(flags: Layer, environment: Layer, project: Layer, user: Layer) -> Self {
        let mut values: BTreeMap<Key, Vec<Value>> = BTreeMap::new();
        let layers = [
            (Origin::Flag, flags),
            (Origin::Environment, environment),
            (Origin::ProjectFile, project),
            (Origin::UserFile, user),
        ];
        for (origin, layer) in layers {
            for (key, text) in layer {
                values.entry(key).or_default().push(Value { text, origin });
            }
        }
        Self { values }
    }

    /// Reads environment and files of this process and lays `flags` over them.
    pub fn of_process(flags: Layer) -> Result<Self, Failure> {
        let variable = |name: &str| std::env::var(name).ok().filter(|text| !text.is_empty());
        let environment = SETTINGS.iter().filter_map(|s| variable(s.env).map(|text| (s.key, text))).collect::<Layer>();
        let project = match std::env::current_dir().ok().and_then(|folder| find_project_file(&folder)) {
            Some(path) => read_layer(&path, Whose::Project)?,
            None => Layer::new(),
        };
        let user = match config_folder().map(|folder| folder.join(USER_FILE)) {
            Some(path) if path.is_file() => read_layer(&path, Whose::User)?,
            _ => Layer::new(),
        };
        Ok(Self::layered(flags, environment, project, user))
    }

    /// The strongest value, where anybody set one.
    pub fn get(&self, key: Key) -> Option<&str> {
        self.value(key).map(|value| value.text.as_str())
    }

    /// The strongest value with where it came from.
    pub fn value(&self, key: Key) -> Option<&Value> {
        self.values.get(&key)?.first()
    }

    /// What one source said, whether or not a stronger one said something else.
    pub fn said_by(&self, origin: Origin, key: Key) -> Option<&str> {
        self.values.get(&key)?.iter().find(|value| value.origin == origin).map(|value| value.text.as_str())
    }

    /// A comma-separated value as a list; empty when nobody set it.
    pub fn list(&self, key: Key) -> Vec<String> {
        let text = self.get(key).unwrap_or_default();
        text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect()
    }

    /// Whether a switch is on: `true`, `1` or `yes`.
    pub fn switch(&self, key: Key) -> Result<bool, Failure> {
        self.get(key).map_or(Ok(false), is_on)
    }

    /// What this machine's agent was told to keep to.
    pub fn agent_bounds(&self) -> Result<AgentBounds, Failure> {
        Ok(AgentBounds { cache_bytes: self.agent_cache_bytes()?, measure_budget_ms: self.measure_budget_ms()? })
    }

    fn agent_cache_bytes(&self) -> Result<Option<u64>, Failure> {
        const GIB: f64 = (1_u64 << 30) as f64;
        let Some(text) = self.get(Key::AgentCache) else { return Ok(None) };
        match text.trim().parse::<f64>() {
            Ok(gib) if (0.0..=AGENT_CACHE_MAX_GIB).contains(&gib) => Ok(Some((gib * GIB) as u64)),
            _ => Err(Failure::usage(format!("'{text}' is no size of an agent's cache"))
                .hint("say GiB as a number, such as 8 or 0.5")),
        }
    }

    fn measure_budget_ms(&self) -> Result<Option<u64>, Failure> {
        let Some(text) = self.get(Key::MeasureBudget) else { return Ok(None) };
        match text.trim().parse::<u64>() {
            Ok(asked_s) if (1..=MEASURE_BUDGET_MAX_S).contains(&asked_s) => Ok(Some(asked_s * 1000)),
            _ => Err(Failure::usage(format!("'{text}' is no time to measure for"))
                .hint(format!("say whole seconds from 1 to {MEASURE_BUDGET_MAX_S}"))),
        }
    }

    /// The folder of this machine's own farm.
    pub fn data_folder(&self) -> Result<PathBuf, Failure> {
        if let Some(folder) = self.get(Key::Data) {
            return std::path::absolute(folder).map_err(|e| Failure::io("resolve", Path::new(folder), &e));
        }
        let home = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        home("XDG_DATA_HOME")
            .filter(|path| path.is_absolute())
            .or_else(|| home("HOME").map(|path| path.join(".local/share")))
            .map(|path| path.join("planforge"))
            .ok_or_else(|| {
                Failure::usage("no folder for this machine's engines: neither XDG_DATA_HOME nor HOME is set")
                    .hint("name one with --data DIR or PLANFORGE_DATA")
            })
    }
}

/// Reads a switch's text.
pub fn is_on(text: &str) -> Result<bool, Failure> {
    match text {
        "false" | "0" | "no" => Ok(false),
        "true" | "1" | "yes" => Ok(true),
        other => Err(Failure::usage(format!("'{other}' is neither true nor false"))),
    }
}

/// The row of a setting.
pub fn row(key: Key) -> &'static Setting {
    SETTINGS.iter().find(|setting| setting.key == key).expect("every key has a row")
}

/// `planforge.toml` in `folder` or the nearest folder above it.
pub fn find_project_file(folder: &Path) -> Option<PathBuf> {
    folder.ancestors().map(|f| f.join(PROJECT_FILE)).find(|path| path.is_file())
}

/// The folder of this user's own files: configuration and credentials.
pub fn config_folder() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|text| !text.is_empty()).map(PathBuf::from);
    let config = variable("XDG_CONFIG_HOME")
        .filter(|path| path.is_absolute())
        .or_else(|| variable("HOME").map(|home| home.join(".config")))?;
    Some(config.join("planforge"))
}

/// Whose a configuration file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whose {
    /// Whoever wrote the repository.
    Project,
    /// Who runs this program.
    User,
}

fn read_layer(path: &Path, whose: Whose) -> Result<Layer, Failure> {
    let bytes = fs::metadata(path).map_err(|e| Failure::io("read", path, &e))?.len();
    if bytes > CONFIG_MAX_BYTES {
        return Err(Failure::usage(format!("{}: {bytes} bytes is too long for a configuration", path.display())));
    }
    let text = fs::read_to_string(path).map_err(|e| Failure::io("read", path, &e))?;
    parse_layer(&text, path, whose)
}

/// Reads one configuration file's text; `path` is for messages and for relative paths in it.
fn parse_layer(text: &str, path: &Path, whose: Whose) -> Result<Layer, Failure> {
    let at = |offset: usize| 1 + text.as_bytes()[..offset.min(text.len())].iter().filter(|b| **b == b'\n').count();
    let document = toml::de::DeTable::parse(text).map_err(|e| {
        let line = at(e.span().map_or(0, |span| span.start));
        Failure::usage(format!("{}:{line}: {}", path.display(), e.message()))
    })?;
    let mut layer = Layer::new();
    for (name, value) in document.into_inner() {
        let line = at(name.span().start);
        if whose == Whose::Project && DECLARED.contains(&name.get_ref().as_ref()) {
            continue;
        }
        let Some(setting) = SETTINGS.iter().find(|s| s.name == name.get_ref().as_ref()) else {
            let usable = SETTINGS.iter().filter(|s| whose == Whose::User || s.not_in_project.is_none());
            let declared = DECLARED.iter().filter(|_| whose == Whose::Project).copied();
            let known = usable.map(|s| s.name).chain(declared).collect::<Vec<_>>().join(", ");
            let message = format!("{}:{line}: unknown key '{}'", path.display(), name.get_ref());
            return Err(Failure::usage(message).hint(format!("keys are {known}")));
        };
        if let (Whose::Project, Some(instead)) = (whose, setting.not_in_project) {
            let message = format!(
                "{}:{line}: a project file cannot set '{}': whoever wrote this folder would decide whom you trust",
                path.display(),
                setting.name
            );
            return Err(Failure::usage(message).hint(format!("take the line out; {instead}")));
        }
        let text = value_text(setting.kind, value.get_ref(), path.parent()).ok_or_else(|| {
            let wanted = match setting.kind {
                Kind::List => "a list of texts",
                Kind::Switch => "true or false",
                Kind::Text | Kind::Path | Kind::Place => "a text",
            };
            Failure::usage(format!("{}:{line}: '{}' must be {wanted}", path.display(), setting.name))
        })?;
        if whose == Whose::Project && setting.key == Key::Server && text.starts_with("unix:") {
            let message = format!("{}:{line}: a project file cannot name a socket of this machine", path.display());
            return Err(Failure::usage(message).hint(format!(
                "a socket knows its callers by their user, without a token: take the line out; PLANFORGE_SERVER={text} says that you trust it"
            )));
        }
        layer.insert(setting.key, text);
    }
    Ok(layer)
}

fn value_text(kind: Kind, value: &toml::de::DeValue<'_>, folder: Option<&Path>) -> Option<String> {
    match kind {
        Kind::Text => value.as_str().map(str::to_owned),
        Kind::Path => {
            let path = value.as_str()?;
            Some(folder.map_or_else(|| path.to_owned(), |f| f.join(path).to_string_lossy().into_owned()))
        }
        Kind::Place => match value.as_str()? {
            url if url.starts_with("http://") || url.starts_with("https://") => Some(url.to_owned()),
            _ => value_text(Kind::Path, value, folder),
        },
        Kind::Switch => value.as_bool().map(|on| on.to_string()),
        Kind::List => {
            let items = value.as_array()?.iter().map(|item| item.get_ref().as_str());
            Some(items.collect::<Option<Vec<_>>>()?.join(","))
        }
    }
}

/// The table for `--help`.
pub fn help_text() -> String {
    let mut text =
        String::from("Settings (flag > environment > planforge.toml in this folder or above > user file > default):\n");
    for s in &SETTINGS {
        let own = if s.not_in_project.is_some() { "*" } else { "" };
        let name = format!("{}{own}", s.name);
        let _ = writeln!(text, "  {:<20} {:<28} {name:<19} {} [{}]", s.flag, s.env, s.help, s.default);
    }
    text.push_str("  * not in planforge.toml: a project's own files do not decide whom you trust.\n");
    text.push_str("  The user file is $XDG_CONFIG_HOME/planforge/config.toml. NO_COLOR turns colours off.\n");
    text
}

/// The table for the README.
#[cfg(test)]
fn markdown() -> String {
    let mut text = String::from("| flag | environment | key in a file | meaning | default |\n|---|---|---|---|---|\n");
    for s in &SETTINGS {
        let own = if s.not_in_project.is_some() { " (user file only)" } else { "" };
        let _ = writeln!(text, "| `{}` | `{}` | `{}`{own} | {} | {} |", s.flag, s.env, s.name, s.help, s.default);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(texts: &[(Key, &str)]) -> Layer {
        texts.iter().map(|(key, text)| (*key, (*text).to_owned())).collect()
    }

    #[test]
    fn the_strongest_source_wins_key_by_key() {
        let settings = Settings::layered(
            layer(&[(Key::Server, "flag")]),
            layer(&[(Key::Server, "env"), (Key::Ca, "env")]),
            layer(&[(Key::Server, "project"), (Key::Skus, "project")]),
            layer(&[(Key::Skus, "user"), (Key::Project, "user")]),
        );
        let found = |key| settings.value(key).map(|value| (value.text.as_str(), value.origin)).unwrap();
        assert_eq!(found(Key::Server), ("flag", Origin::Flag));
        assert_eq!(found(Key::Ca), ("env", Origin::Environment));
        assert_eq!(found(Key::Skus), ("project", Origin::ProjectFile));
        assert_eq!(found(Key::Project), ("user", Origin::UserFile));
        assert_eq!(settings.get(Key::Log), None);
        assert_eq!(settings.said_by(Origin::UserFile, Key::Skus), Some("user"));
        assert_eq!(settings.said_by(Origin::Environment, Key::Skus), None);
    }

    #[test]
    fn a_project_file_cannot_say_whom_its_user_trusts() {
        let path = Path::new("p/planforge.toml");
        let refused = [
            ("token", "\"secret\""),
            ("token_file", "\"/home/me/.ssh/id_rsa\""),
            ("ca", "\"ca.pem\""),
            ("insecure", "true"),
            ("insecure", "false"),
            ("allow_readable_key", "true"),
            ("data", "\"farm\""),
            ("agent_cache", "\"8\""),
        ];
        for (name, value) in refused {
            let text = format!("server = \"https://farm\"\n{name} = {value}\n");
            let failure = parse_layer(&text, path, Whose::Project).unwrap_err();
            assert_eq!(failure.exit_code, 2);
            let start = format!("p/planforge.toml:2: a project file cannot set '{name}'");
            assert!(failure.to_string().starts_with(&start), "{failure}");
            assert!(
                failure.hint.contains("planforge login")
                    || ["data", "allow_readable_key", "agent_cache"].contains(&name),
                "{}",
                failure.hint
            );
            assert!(parse_layer(&text, path, Whose::User).is_ok(), "{name}");
        }
        let socket = parse_layer("\nserver = \"unix:x.sock\"\n", path, Whose::Project).unwrap_err();
        assert_eq!(socket.to_string(), "p/planforge.toml:2: a project file cannot name a socket of this machine");
        let kept = "project = \"p\"\nskus = [\"a\"]\nlog = \"info\"\nlog_format = \"json\"\n";
        assert_eq!(parse_layer(kept, path, Whose::Project).unwrap().len(), 4);
    }

    #[test]
    fn files_are_read_relative_to_themselves() {
        let text = "server = \"https://farm:8443\"\nca = \"tls/ca.pem\"\nskus = [\"a\", \"b\"]\n";
        let layer = parse_layer(text, Path::new("/p/config.toml"), Whose::User).unwrap();
        assert_eq!(layer[&Key::Server], "https://farm:8443");
        assert_eq!(layer[&Key::Ca], "/p/tls/ca.pem");
        assert_eq!(layer[&Key::Skus], "a,b");
        let blobs = |text: &str| {
            let text = format!("blobs = \"{text}\"\n");
            parse_layer(&text, Path::new("/p/planforge.toml"), Whose::Project).unwrap()[&Key::Blobs].clone()
        };
        assert_eq!(blobs("mirror/blobs"), "/p/mirror/blobs");
        assert_eq!(blobs("https://mirror/blobs"), "https://mirror/blobs");
        let settings = Settings::layered(Layer::new(), Layer::new(), layer, Layer::new());
        assert_eq!(settings.list(Key::Skus), ["a", "b"]);
    }

    #[test]
    fn mistakes_in_files_are_named_by_file_and_line() {
        let message = |text| parse_layer(text, Path::new("p/planforge.toml"), Whose::Project).unwrap_err().to_string();
        assert_eq!(message("# x\n\nsevrer = \"u\"\n"), "p/planforge.toml:3: unknown key 'sevrer'");
        assert_eq!(message("\nserver = 3\n"), "p/planforge.toml:2: 'server' must be a text");
        assert_eq!(message("skus = \"a\"\n"), "p/planforge.toml:1: 'skus' must be a list of texts");
        assert!(message("server = \n").starts_with("p/planforge.toml:1: "));
    }

    #[test]
    fn what_a_project_declares_is_none_of_the_settings_business() {
        let text = "server = \"https://farm\"\ntargets = 1\n[models.a]\n[layout]\n";
        let read = |whose| parse_layer(text, Path::new("p.toml"), whose);
        assert_eq!(read(Whose::Project).unwrap().len(), 1);
        assert!(read(Whose::User).unwrap_err().to_string().contains(": unknown key '"));
    }

    #[test]
    fn an_agents_cache_has_a_size() {
        let bytes = |text| {
            let layer = layer(&[(Key::AgentCache, text)]);
            Settings::layered(layer, Layer::new(), Layer::new(), Layer::new()).agent_cache_bytes()
        };
        assert_eq!(bytes("0.5").unwrap(), Some(512 << 20));
        assert_eq!(bytes("0").unwrap(), Some(0));
        for bad in ["-1", "much", "NaN", "inf", ""] {
            assert_eq!(bytes(bad).unwrap_err().exit_code, 2, "{bad}");
        }
    }

    #[test]
    fn a_measurement_takes_whole_seconds() {
        let budget_ms = |text| {
            let layer = layer(&[(Key::MeasureBudget, text)]);
            let settings = Settings::layered(layer, Layer::new(), Layer::new(), Layer::new());
            settings.agent_bounds().map(|bounds| bounds.measure_budget_ms)
        };
        assert_eq!(budget_ms("1").unwrap(), Some(1000));
        assert_eq!(budget_ms("86400").unwrap(), Some(86_400_000));
        for bad in ["0", "-1", "0.5", "86401", "long", ""] {
            assert_eq!(budget_ms(bad).unwrap_err().exit_code, 2, "{bad}");
        }
        assert_eq!(Settings::default().agent_bounds().unwrap(), AgentBounds::default());
    }

    #[test]
    fn the_project_file_is_found_upwards() {
        let root = tempfile::tempdir().unwrap();
        let deep = root.path().join("a/b");
        fs::create_dir_all(&deep).unwrap();
        fs::write(root.path().join(PROJECT_FILE), "").unwrap();
        assert_eq!(find_project_file(&deep), Some(root.path().join(PROJECT_FILE)));
    }

    #[test]
    fn the_readme_has_this_table() {
        assert!(include_str!("../../README.md").contains(&markdown()), "put this into README.md:\n{}", markdown());
    }

    #[test]
    fn every_setting_has_names_of_its_own() {
        for (index, setting) in SETTINGS.iter().enumerate() {
            assert!(setting.env.starts_with("PLANFORGE_") && setting.flag.starts_with("--"));
            let same =
                |other: &&Setting| other.key == setting.key || other.name == setting.name || other.env == setting.env;
            assert_eq!(SETTINGS.iter().position(|other| same(&other)), Some(index));
        }
    }
}
