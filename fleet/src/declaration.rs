//! `planforge.toml`: which models, for which devices, by which specs, within which gates, laid out how.
//!
//! The file holds settings too; their names are given and left alone here. Everything that is wrong is said with its line.

use crate::{
    CellId, DeclarationError,
    reader::{Said, Section, line_at},
    shapes,
    target::{Boards, Target, TargetError},
};
use planforge_report::compare::gate::{Figure, Limit};
use planforge_types::{
    BuildSpec, Digest, OptimizationLevel, Precision, Sku, ToolchainConstraint,
    spec::{MAX_THREADS, MAX_WORKSPACE_MIB},
};
use std::collections::{BTreeMap, BTreeSet};

/// The spec of models that name none, where none is declared.
pub const DEFAULT_SPEC: &str = "default";
/// Longest name of a model or spec: names become file names.
pub const NAME_MAX_BYTES: usize = 64;
/// Largest declaration that is read; a thousand models fit.
pub const MAX_BYTES: usize = 1024 * 1024;
/// Keys of gates, and the figure that each bounds.
pub(crate) const GATES: [(&str, Figure); 6] = [
    ("slower_percent", Figure::Median),
    ("p99_slower_percent", Figure::P99),
    ("throughput_lower_percent", Figure::Throughput),
    ("memory_more_percent", Figure::Memory),
    ("size_more_percent", Figure::Size),
    ("accuracy_lower_points", Figure::Accuracy),
];
/// Beside them: gates of single device kinds.
pub(crate) const GATES_OF_SKUS: &str = "skus";

/// Where fetched engines go, where nobody says otherwise.
const FOLDER: &str = "engines";
const FILE: &str = "{model}/{sku}/{spec}.plan";
const PLACEHOLDERS: [&str; 3] = ["{model}", "{sku}", "{spec}"];

/// Keys of the document that are no settings.
pub const KEYS: [&str; 6] = ["name", "targets", "models", "specs", "gates", "layout"];
const MODEL: [&str; 5] = ["path", "url", "sha256", "targets", "specs"];
const SPEC: [&str; 14] = [
    "precision",
    "toolchain",
    "shapes",
    "threads",
    "optimization_level",
    "workspace_mib",
    "hardware_compatibility",
    "version_compatible",
    "approximate_gelu",
    "strict",
    "calibration",
    "plugins",
    "options",
    "targets",
];

/// Where a model's bytes are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A path that starts at the declaration's folder.
    Path(String),
    /// One file, which is what its digest says or nothing.
    Url { url: String, sha256: Digest },
}

/// A model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    pub source: Source,
    pub targets: Vec<Target>,
    pub specs: Vec<String>,
    /// Of its table.
    pub line: usize,
}

/// What engines are asked for, by name.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    /// Without the files below, which are named by path here and by digest there.
    pub build: BuildSpec,
    pub toolchain: ToolchainConstraint,
    pub calibration: Option<String>,
    pub plugins: Vec<String>,
    /// Only for these of a model's targets; all, where there are none.
    pub targets: Vec<Target>,
    pub line: usize,
}

/// What may take the place of a locked engine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Gates {
    /// Against the engine that it replaces; none: not looked at.
    pub limits: Vec<Limit>,
}

/// Where fetched engines go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Starts at the declaration's folder.
    pub folder: String,
    /// With `{model}`, `{sku}` and `{spec}`.
    file: String,
}

impl Default for Layout {
    fn default() -> Self {
        Self { folder: FOLDER.into(), file: FILE.into() }
    }
}

impl Layout {
    /// The path of a cell's engine below the folder.
    pub fn file(&self, id: &CellId) -> String {
        let file = self.file.replace("{model}", &id.model).replace("{spec}", &id.spec);
        file.replace("{sku}", id.sku.as_str())
    }

    /// Two cells whose engines would be one file.
    pub fn collision<'a>(&self, cells: impl IntoIterator<Item = &'a CellId>) -> Option<(&'a CellId, &'a CellId)> {
        let mut taken: BTreeMap<String, &CellId> = BTreeMap::new();
        cells.into_iter().find_map(|id| Some((taken.insert(self.file(id), id)?, id)))
    }
}

/// A whole declaration.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Declaration {
    /// What the project is called where others are, too; `None`: it does not say.
    pub name: Option<String>,
    pub models: BTreeMap<String, Model>,
    pub specs: BTreeMap<String, Spec>,
    pub gates: Gates,
    pub layout: Layout,
}

impl Declaration {
    /// Reads a declaration. `settings` are keys that others read.
    ///
    /// # Errors
    /// The first thing that is wrong, with its line.
    pub fn parse(text: &str, settings: &[&str], boards: &Boards) -> Result<Self, DeclarationError> {
        if text.len() > MAX_BYTES {
            return Err(DeclarationError::new(1, format!("{} bytes are too long for a declaration", text.len())));
        }
        let document = toml::de::DeTable::parse(text).map_err(|error| {
            let line = line_at(text, error.span().map_or(0, |span| span.start));
            DeclarationError::new(line, error.message().to_owned())
        })?;
        let document = Section::document(text, document.get_ref());
        document.only(&[settings, &KEYS].concat())?;
        let name = document.text("name")?;
        if let Some(Said { value, line }) = &name {
            is_name("repository", value, *line)?;
        }
        let targets = read_targets(&document, boards)?;
        let mut specs = BTreeMap::new();
        for (name, section) in document.section("specs")?.map_or(Ok(Vec::new()), |specs| specs.sections())? {
            is_name("spec", &name, section.line)?;
            specs.insert(name, read_spec(&section, boards)?);
        }
        if specs.is_empty() {
            specs.insert(DEFAULT_SPEC.to_owned(), plain_spec());
        }
        let mut models = BTreeMap::new();
        for (name, section) in document.section("models")?.map_or(Ok(Vec::new()), |models| models.sections())? {
            is_name("model", &name, section.line)?;
            let model = read_model(&section, targets.as_deref(), &specs, boards)?;
            models.insert(name, model);
        }
        let (gates, layout) = (read_gates(&document)?, read_layout(&document)?);
        Ok(Self { name: name.map(|said| said.value), models, specs, gates, layout })
    }

    /// The cells that the declaration comes to on a farm that has the device kinds of `fleet`, in their order.
    ///
    /// # Errors
    /// A class of which the farm has none.
    pub fn cells(&self, fleet: &BTreeSet<Sku>, boards: &Boards) -> Result<Vec<CellId>, TargetError> {
        let mut cells = BTreeSet::new();
        for (name, model) in &self.models {
            let skus = boards.expand(&model.targets, fleet)?;
            for spec_name in &model.specs {
                let spec = &self.specs[spec_name];
                let meant = if spec.targets.is_empty() { skus.clone() } else { boards.expand(&spec.targets, fleet)? };
                for sku in skus.intersection(&meant) {
                    cells.insert(CellId { model: name.clone(), sku: sku.clone(), spec: spec_name.clone() });
                }
            }
        }
        Ok(cells.into_iter().collect())
    }

    /// The first of a model's targets that means the cell's device kind on a farm that has the device kinds of `fleet`.
    pub fn target_of(&self, id: &CellId, fleet: &BTreeSet<Sku>, boards: &Boards) -> Option<&Target> {
        let means = |target: &&Target| {
            let meant = boards.expand(std::slice::from_ref(*target), fleet);
            meant.is_ok_and(|skus| skus.contains(&id.sku))
        };
        self.models.get(&id.model)?.targets.iter().find(means)
    }

    /// Whether its cells can be told without asking a farm.
    pub fn names_every_sku(&self) -> bool {
        let models = self.models.values().flat_map(|model| &model.targets);
        let mut all = models.chain(self.specs.values().flat_map(|spec| &spec.targets));
        all.all(|target| matches!(target, Target::Sku(_)))
    }
}

fn plain_spec() -> Spec {
    Spec {
        build: BuildSpec::default(),
        toolchain: ToolchainConstraint::default(),
        calibration: None,
        plugins: Vec::new(),
        targets: Vec::new(),
        line: 1,
    }
}

/// Whether a text can be the name of a model or spec: it becomes a part of file names.
pub(crate) fn is_plain_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    !name.is_empty()
        && name.len() <= NAME_MAX_BYTES
        && name.bytes().all(plain)
        && name.as_bytes()[0].is_ascii_alphanumeric()
}

/// A text made one that can be a name: `my shop` is `my-shop`.
pub fn plain_name(text: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_') { c } else { '-' };
    let name: String =
        text.chars().map(plain).skip_while(|c| !c.is_ascii_alphanumeric()).take(NAME_MAX_BYTES).collect();
    if name.is_empty() { "project".into() } else { name }
}

fn is_name(what: &str, name: &str, line: usize) -> Result<(), DeclarationError> {
    if is_plain_name(name) {
        return Ok(());
    }
    let name: String = name.chars().take(80).collect();
    let message = format!(
        "'{name}' cannot be the name of a {what}: letters, digits, '.', '-' and '_', a letter or digit first, at most {NAME_MAX_BYTES}"
    );
    Err(DeclarationError::new(line, message))
}

fn read_targets(section: &Section<'_>, boards: &Boards) -> Result<Option<Vec<Target>>, DeclarationError> {
    let Some(texts) = section.texts("targets")? else { return Ok(None) };
    let mut targets = Vec::with_capacity(texts.len());
    for Said { value, line } in texts {
        let target =
            boards.target(&value).map_err(|error| DeclarationError::new(line, error.to_string()).hint(error.hint()))?;
        if targets.contains(&target) {
            return Err(DeclarationError::new(line, format!("the target '{target}' stands twice")));
        }
        targets.push(target);
    }
    Ok(Some(targets))
}

fn read_model(
    section: &Section<'_>,
    usual: Option<&[Target]>,
    specs: &BTreeMap<String, Spec>,
    boards: &Boards,
) -> Result<Model, DeclarationError> {
    section.only(&MODEL)?;
    let line = section.line;
    let source = match (section.text("path")?, section.text("url")?, section.text("sha256")?) {
        (Some(path), None, None) if !path.value.is_empty() => Source::Path(path.value),
        (None, Some(url), Some(digest)) => {
            if !["https://", "http://"].iter().any(|scheme| url.value.starts_with(scheme)) {
                return Err(DeclarationError::new(url.line, "a model's url begins with https:// or http://"));
            }
            let sha256 = digest
                .value
                .parse()
                .map_err(|error| DeclarationError::new(digest.line, format!("the model's sha256: {error}")))?;
            Source::Url { url: url.value, sha256 }
        }
        (None, Some(url), None) => {
            return Err(DeclarationError::new(url.line, "a model by url needs its sha256")
                .hint("sha256 = \"...\", as sha256sum prints it: whatever else the URL brings is refused"));
        }
        (Some(path), None, Some(_)) => {
            return Err(DeclarationError::new(path.line, "sha256 belongs to a url; a file is looked at as it is"));
        }
        _ => {
            return Err(DeclarationError::new(line, "a model has either a path, or a url and its sha256"));
        }
    };
    let targets = match (read_targets(section, boards)?, usual) {
        (Some(own), _) => own,
        (None, Some(usual)) => usual.to_vec(),
        (None, None) => {
            return Err(DeclarationError::new(line, "the model has no targets")
                .hint("targets = [\"all-fleet\"] at the top of the file holds for every model that names none"));
        }
    };
    if targets.is_empty() {
        return Err(DeclarationError::new(line, "the model's list of targets is empty"));
    }
    let names = match section.texts("specs")? {
        None => specs.keys().cloned().collect(),
        Some(names) => {
            let mut known = Vec::with_capacity(names.len());
            for Said { value, line } in names {
                if !specs.contains_key(&value) {
                    let all = specs.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
                    let message = format!("no spec is called '{value}'");
                    return Err(DeclarationError::new(line, message).hint(format!("specs are {all}")));
                }
                if !known.contains(&value) {
                    known.push(value);
                }
            }
            known
        }
    };
    if names.is_empty() {
        return Err(DeclarationError::new(line, "the model's list of specs is empty"));
    }
    Ok(Model { source, targets, specs: names, line })
}

fn read_spec(section: &Section<'_>, boards: &Boards) -> Result<Spec, DeclarationError> {
    section.only(&SPEC)?;
    let line = section.line;
    let mut build = BuildSpec::default();
    if let Some(Said { value, line }) = section.text("precision")? {
        build.precision = serde_json::from_value::<Precision>(value.clone().into()).map_err(|_| {
            let message = format!("'{value}' is not a precision: fp32, tf32, fp16, bf16, int8, fp8 or best");
            DeclarationError::new(line, message)
        })?;
    }
    for Said { value, line } in section.texts("shapes")?.unwrap_or_default() {
        build.profiles.push(shapes::parse(&value).map_err(|why| DeclarationError::new(line, why))?);
    }
    let threads = section.integer("threads", 1, MAX_THREADS.into())?;
    build.threads = threads.and_then(|threads| threads.try_into().ok());
    if let Some(level) = section.integer("optimization_level", 0, 5)? {
        build.optimization_level = OptimizationLevel(level as u8);
    }
    build.workspace_mib = section.integer("workspace_mib", 1, MAX_WORKSPACE_MIB)?;
    build.hardware_compatibility = section.text("hardware_compatibility")?.map(|said| said.value);
    build.version_compatible = section.switch("version_compatible")?.unwrap_or_default();
    build.approximate_gelu = section.switch("approximate_gelu")?.unwrap_or_default();
    build.strict = section.switch("strict")?.unwrap_or_default();
    if let Some(options) = section.section("options")? {
        build.options = options.pairs()?;
    }
    let build = build.canonical();
    build.validate().map_err(|error| DeclarationError::new(line, error.to_string()))?;
    let toolchain = match section.text("toolchain")? {
        None => ToolchainConstraint::default(),
        Some(Said { value, line }) => value.parse().map_err(|error| DeclarationError::new(line, format!("{error}")))?,
    };
    Ok(Spec {
        build,
        toolchain,
        calibration: section.text("calibration")?.map(|said| said.value),
        plugins: section.texts("plugins")?.unwrap_or_default().into_iter().map(|said| said.value).collect(),
        targets: read_targets(section, boards)?.unwrap_or_default(),
        line,
    })
}

fn read_gates(document: &Section<'_>) -> Result<Gates, DeclarationError> {
    let Some(section) = document.section("gates")? else { return Ok(Gates::default()) };
    let names = GATES.map(|(name, _)| name);
    section.only(&[&names[..], &[GATES_OF_SKUS]].concat())?;
    let mut limits = read_limits(&section, None)?;
    for (name, own) in section.section(GATES_OF_SKUS)?.map_or(Ok(Vec::new()), |skus| skus.sections())? {
        own.only(&names)?;
        let sku = name.parse::<Sku>().map_err(|error| DeclarationError::new(own.line, error.to_string()))?;
        limits.extend(read_limits(&own, Some(sku))?);
    }
    Ok(Gates { limits })
}

fn read_limits(section: &Section<'_>, sku: Option<Sku>) -> Result<Vec<Limit>, DeclarationError> {
    let limit = |(name, figure): (&str, Figure)| {
        let said = section.number(name, figure.most_percent())?;
        Ok(said.map(|said| Limit { sku: sku.clone(), figure, allowed_percent: said.value }))
    };
    GATES.into_iter().filter_map(|gate| limit(gate).transpose()).collect()
}

/// Whether a text leads to a place below where it starts.
fn leads_below(path: &str) -> bool {
    !path.is_empty()
        && !path.starts_with('/')
        && path.split('/').all(|part| !part.is_empty() && part != "." && part != "..")
        && !path.contains(|c: char| c.is_control() || c == '\\')
}

fn read_layout(document: &Section<'_>) -> Result<Layout, DeclarationError> {
    let Some(section) = document.section("layout")? else { return Ok(Layout::default()) };
    section.only(&["folder", "file"])?;
    let mut layout = Layout::default();
    if let Some(Said { value, line }) = section.text("folder")? {
        if !leads_below(&value) {
            return Err(DeclarationError::new(line, format!("'{value}' is no folder below this file's"))
                .hint("planforge fetch -o DIR puts engines anywhere else"));
        }
        layout.folder = value;
    }
    if let Some(Said { value, line }) = section.text("file")? {
        let rest = PLACEHOLDERS.iter().fold(value.clone(), |text, word| text.replace(word, ""));
        if rest.contains(['{', '}']) || !leads_below(&value) {
            let message = format!("'{value}' is no file name: write a path with {}", PLACEHOLDERS.join(", "));
            return Err(DeclarationError::new(line, message));
        }
        layout.file = value;
    }
    Ok(layout)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::tests::boards;

    const WHOLE: &str = r#"
name = "shop"
server = "https://farm.example"
targets = ["cpu-x86-64-v2", "hopper"]

[models.digits]
path = "models/digits.onnx"

[models.bert]
url = "https://models.example/bert.onnx"
sha256 = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
targets = ["all-fleet"]
specs = ["fast"]

[specs.default]

[specs.fast]
precision = "fp16"
toolchain = "tensorrt>=10.3,<11"
shapes = ["ids:1..4..8x128"]
workspace_mib = 1024
optimization_level = 4
hardware_compatibility = "ampere+"
version_compatible = true
approximate_gelu = true
strict = true
calibration = "scales"
plugins = ["a.so"]
options = { tactic_sources = "-CUDNN" }
targets = ["gpu"]

[gates]
slower_percent = 5

[layout]
folder = "out"
file = "{model}-{sku}-{spec}.plan"
"#;

    fn parse(text: &str) -> Result<Declaration, DeclarationError> {
        Declaration::parse(text, &["server"], &boards())
    }

    #[test]
    fn a_whole_declaration_is_read() {
        let declared = parse(WHOLE).unwrap();
        assert_eq!(declared.models["digits"].specs, ["default", "fast"]);
        assert_eq!(declared.models["bert"].targets, [Target::AllFleet]);
        let fast = &declared.specs["fast"];
        assert_eq!(fast.toolchain.to_string(), "tensorrt>=10.3,<11");
        assert_eq!((fast.build.precision, fast.build.optimization_level.0), (Precision::Fp16, 4));
        assert_eq!((fast.build.workspace_mib, fast.build.version_compatible && fast.build.strict), (Some(1024), true));
        assert_eq!(fast.build.options["tactic_sources"], "-CUDNN");
        assert_eq!(fast.build.profiles.len(), 1);
        assert_eq!(declared.specs["default"].build, BuildSpec::default(), "a spec that says nothing is the default");
        assert_eq!(declared.gates.limits, [Limit::of_median(5.0)]);
        assert_eq!(declared.name.as_deref(), Some("shop"));
        assert!(!declared.names_every_sku());
        let fleet = ["h100-sxm", "cpu-x86-64-v2"].iter().map(|name| name.parse().unwrap()).collect();
        let cells = declared.cells(&fleet, &boards()).unwrap();
        let names: Vec<String> = cells.iter().map(ToString::to_string).collect();
        assert_eq!(
            names,
            [
                "bert / h100-sxm / fast",
                "digits / cpu-x86-64-v2 / default",
                "digits / h100-sxm / default",
                "digits / h100-sxm / fast",
            ],
            "a spec's own targets leave the others out"
        );
        assert_eq!(declared.layout.file(&cells[0]), "bert-h100-sxm-fast.plan");
        let targets: Vec<String> =
            cells.iter().map(|id| declared.target_of(id, &fleet, &boards()).unwrap().to_string()).collect();
        assert_eq!(targets, ["all-fleet", "cpu-x86-64-v2", "hopper", "hopper"], "the word that means the kind");
    }

    #[test]
    fn any_folder_gives_a_name_that_may_be_declared() {
        let long = "x".repeat(300);
        for (folder, name) in
            [("shop", "shop"), ("my shop", "my-shop"), ("..a/b", "a-b"), ("", "project"), ("§", "project")]
        {
            assert_eq!(plain_name(folder), name);
        }
        for folder in [long.as_str(), "-x", "ünï", "a b"] {
            assert!(is_plain_name(&plain_name(folder)), "{folder}");
        }
    }

    #[test]
    fn without_specs_there_is_the_default_one() {
        let declared = parse("targets = [\"t4\"]\n[models.a]\npath = \"a.onnx\"\n").unwrap();
        assert_eq!(declared.models["a"].specs, [DEFAULT_SPEC]);
        assert!(declared.names_every_sku());
        assert!(parse("server = \"u\"\n").unwrap().models.is_empty(), "settings alone declare nothing");
    }

    #[test]
    fn gates_are_limits_of_figures_and_of_device_kinds() {
        let text = "[gates]\nslower_percent = 5\nsize_more_percent = 0\n[gates.skus.t4]\np99_slower_percent = 20\n";
        let expected: Vec<Limit> = ["5", "size=0", "t4:p99=20"].iter().map(|text| text.parse().unwrap()).collect();
        assert_eq!(parse(text).unwrap().gates.limits, expected);
    }

    #[test]
    fn mistakes_have_their_line() {
        for (text, said) in [
            ("name = \"my shop\"\n", "1: 'my shop' cannot be the name of a repository"),
            ("\nmodles = 1\n", "2: unknown key 'modles'"),
            ("[models.a]\npath = \"a\"\nsha = \"x\"\n", "3: unknown key 'models.a.sha'"),
            ("[models.a]\npath = 3\n", "2: 'models.a.path' must be a text"),
            ("[models.a]\n", "1: a model has either a path"),
            ("\n[models.a]\nurl = \"https://x\"\n", "3: a model by url needs its sha256"),
            ("[models.a]\nurl = \"ftp://x\"\nsha256 = \"00\"\n", "2: a model's url begins with https://"),
            ("[models.a]\nurl = \"https://x\"\nsha256 = \"00\"\n", "3: the model's sha256"),
            ("[models.a]\npath = \"a\"\n", "1: the model has no targets"),
            ("targets = [\"t4\", \"t44\"]\n", "1: 't44' is neither a device kind nor a class"),
            ("targets = [\"t4\",\n \"t4\"]\n", "2: the target 't4' stands twice"),
            ("targets = [\"t4\"]\n[models.a]\npath = \"a\"\nspecs = [\"x\"]\n", "4: no spec is called 'x'"),
            ("targets = [\"t4\"]\n[models.\"../a\"]\npath = \"a\"\n", "2: '../a' cannot be the name of a model"),
            ("[specs.s]\nprecision = \"fp17\"\n", "2: 'fp17' is not a precision"),
            ("[specs.s]\nshapes = [\"x:0\"]\n", "2: '0' in 'x:0' is out of range"),
            ("[specs.s]\nthreads = 0\n", "2: 'specs.s.threads' must be a whole number from 1"),
            ("[specs.s]\ntoolchain = \">=10\"\n", "2: '>=10' is not a toolchain constraint"),
            ("\n[specs.s]\nhardware_compatibility = \"turing\"\n", "2: hardware compatibility 'turing' is unknown"),
            ("[specs.s]\noptions = { a = 1 }\n", "2: 'specs.s.options.a' must be a text"),
            ("[gates]\nslower_percent = -1\n", "2: 'gates.slower_percent' must be a number from 0 to 1000"),
            ("[gates.skus.t44x]\nfaster_percent = 1\n", "2: unknown key 'gates.skus.t44x.faster_percent'"),
            ("[gates.skus.\"a b\"]\nslower_percent = 1\n", "1: "),
            ("[layout]\nfolder = \"../x\"\n", "2: '../x' is no folder below"),
            ("[layout]\nfile = \"{key}.plan\"\n", "2: '{key}.plan' is no file name"),
            ("x = \n", "1: "),
        ] {
            let error = parse(text).expect_err(text).to_string();
            assert!(error.starts_with(said), "{text}: {error}");
        }
    }

    #[test]
    fn engines_that_would_be_one_file_are_found() {
        let id =
            |model: &str, spec: &str| CellId { model: model.into(), sku: "t4".parse().unwrap(), spec: spec.into() };
        let cells = [id("a", "x"), id("a", "y"), id("b", "x")];
        assert_eq!(Layout::default().collision(&cells), None);
        let layout = Layout { file: "{model}.plan".into(), ..Layout::default() };
        assert_eq!(layout.collision(&cells), Some((&cells[0], &cells[1])));
    }
}
