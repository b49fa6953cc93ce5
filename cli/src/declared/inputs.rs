//! The bytes behind a declaration: model files, those of the web among them, and what specs name.

use super::Project;
use crate::{
    context::Context,
    failure::Failure,
    plans,
    request::{
        LocalFiles,
        models::{self, LocalModel},
    },
};
use planforge_client::web::{self, WebError};
use planforge_fleet::declaration::{Source, Spec};
use planforge_proto::ErrorCode;
use planforge_types::{BuildSpec, Digest};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

/// What the declaration's names stand for now.
#[derive(Clone, Debug, Default)]
pub struct Inputs {
    /// By name; of models of the web what is declared.
    pub models: BTreeMap<String, Digest>,
    /// Models that lie on this machine.
    local: BTreeMap<String, LocalModel>,
    /// Complete but for threads.
    pub specs: BTreeMap<String, BuildSpec>,
    /// What specs name.
    files: LocalFiles,
}

impl Inputs {
    /// Identifies every model and file that the project names; downloads nothing.
    pub fn of(context: &Context<'_>, project: &Project) -> Result<Self, Failure> {
        let mut inputs = Self::default();
        for (name, model) in &project.declaration.models {
            let digest = match &model.source {
                Source::Url { sha256, .. } => *sha256,
                Source::Path(path) => {
                    let local = models::identify(&context.settings, &project.folder.join(path))?;
                    let digest = parse(&local.model.digest)?;
                    inputs.local.insert(name.clone(), local);
                    digest
                }
            };
            inputs.models.insert(name.clone(), digest);
        }
        for (name, spec) in &project.declaration.specs {
            let spec = inputs.complete(&project.folder, spec)?;
            inputs.specs.insert(name.clone(), spec);
        }
        Ok(inputs)
    }

    /// The spec with its files by digest.
    fn complete(&mut self, folder: &Path, spec: &Spec) -> Result<BuildSpec, Failure> {
        let mut build = spec.build.clone();
        build.calibration = spec.calibration.as_deref().map(|path| self.add(folder, path)).transpose()?;
        build.plugins = spec.plugins.iter().map(|path| self.add(folder, path)).collect::<Result<_, _>>()?;
        Ok(build.canonical())
    }

    /// A file that is sent as it is, whatever it holds: it has to be the project's own.
    fn add(&mut self, folder: &Path, path: &str) -> Result<Digest, Failure> {
        let full = folder.join(path);
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |e: std::io::Error| Failure::io("read", &path, &e)
        };
        let (real, root) =
            (fs::canonicalize(&full).map_err(failed(&full))?, fs::canonicalize(folder).map_err(failed(folder))?);
        if !real.starts_with(&root) {
            let message =
                format!("{path} lies outside of {}: whoever wrote this folder would have it sent away", root.display());
            return Err(Failure::usage(message)
                .hint("copy the file into the project, or submit it yourself with planforge submit"));
        }
        let (text, _) = models::hash(&real)?;
        let digest = parse(&text)?;
        self.files.insert(text, real);
        Ok(digest)
    }

    /// The model with its files on this machine, downloaded first where it is one of the web.
    pub async fn local(
        &mut self,
        context: &Context<'_>,
        project: &Project,
        name: &str,
    ) -> Result<(LocalModel, LocalFiles), Failure> {
        if !self.local.contains_key(name) {
            let local = match project.declaration.models.get(name).map(|model| &model.source) {
                Some(Source::Url { url, sha256 }) => from_web(context, url, *sha256).await?,
                _ => return Err(Failure::new(ErrorCode::Internal, format!("the model {name} was not identified"))),
            };
            self.local.insert(name.to_owned(), local);
        }
        let local = self.local[name].clone();
        let mut files = self.files.clone();
        files.extend(local.files.clone());
        Ok((local, files))
    }
}

fn parse(digest: &str) -> Result<Digest, Failure> {
    digest.parse().map_err(|e| Failure::new(ErrorCode::Internal, format!("a digest of this program's own: {e}")))
}

/// A model of the web, kept under this user's data folder by its digest.
async fn from_web(context: &Context<'_>, url: &str, sha256: Digest) -> Result<LocalModel, Failure> {
    let path = context.settings.data_folder()?.join("models").join(format!("{sha256}.onnx"));
    if models::hash(&path).map_or(true, |(found, _)| found != sha256.to_string()) {
        plans::make_parent(&path)?;
        let bar = context.printer.transfer(&format!("downloading {url}"), 0);
        let result = web::download(url, sha256, &path, &|done| bar.done(done)).await;
        bar.clear();
        result?;
    }
    let mut local = models::identify(&context.settings, &path)?;
    if local.model.digest != sha256.to_string() {
        let message = format!("the model at {url} keeps its weights in other files, which a URL does not bring");
        return Err(Failure::usage(message).hint("declare it by path, with the files beside it"));
    }
    // As people know it, not as it is kept here.
    let name = url.split(['?', '#']).next().and_then(|url| url.rsplit('/').next()).filter(|name| !name.is_empty());
    if let (Some(name), [file]) = (name, local.model.files.as_mut_slice()) {
        name.clone_into(&mut local.model.name);
        name.clone_into(&mut file.name);
    }
    Ok(local)
}

/// Where a declared model's file is; `None` for one of the web.
pub(super) fn path_of(project: &Project, name: &str) -> Option<PathBuf> {
    match &project.declaration.models.get(name)?.source {
        Source::Path(path) => Some(project.folder.join(path)),
        Source::Url { .. } => None,
    }
}

impl From<WebError> for Failure {
    fn from(error: WebError) -> Self {
        let message = error.to_string();
        match error {
            WebError::Tls { source, .. } => Self::usage(format!("{message}: {source}")),
            WebError::Unreachable { .. } => Self::new(ErrorCode::Unavailable, message),
            WebError::WrongDigest { .. } => {
                Self::usage(message).hint("if the model was meant to change, write its new sha256 into planforge.toml")
            }
            WebError::Disk(error) => error.into(),
        }
    }
}
