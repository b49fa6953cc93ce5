//! Where plans land on this machine.

use crate::{
    context::Context,
    failure::Failure,
    farm::Farm,
    plan_check::{self, Said},
    request::models,
    tables,
};
use planforge_client::web;
use planforge_proto::{ErrorCode, v1};
use planforge_types::Digest;
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Longest part of a model's name that a file name keeps.
const STEM_MAX_CHARS: usize = 80;

/// `resnet50.cpu-x86-64-v3.plan`, for a folder that holds this engine alone.
pub fn file_name(model: Option<&v1::Model>, sku: &str) -> String {
    format!("{}.{sku}.plan", stem(model))
}

/// `resnet50.98f308ca6200.cpu-x86-64-v3.plan`, for a folder that others' engines come into, too: two models may have one
/// name, and what is fetched later must not take the place of what is there.
pub fn shared_name(model: Option<&v1::Model>, sku: &str) -> String {
    let digest = model.map(|model| tables::short(&model.digest)).unwrap_or_default();
    format!("{}.{digest}.{sku}.plan", stem(model))
}

/// The model's name as a part of a file name.
fn stem(model: Option<&v1::Model>) -> String {
    let name = tables::model_name(model);
    let stem = name.strip_suffix(".onnx").unwrap_or(name);
    let plain = |c: char| if c.is_alphanumeric() || matches!(c, '.' | '-' | '_') { c } else { '_' };
    let stem: String = stem.chars().take(STEM_MAX_CHARS).map(plain).collect();
    let stem = stem.trim_start_matches('.');
    if stem.is_empty() { "model".into() } else { stem.to_owned() }
}

/// Where the plan of `wanted` goes: a folder gets a file of the usual name, anything else is the file itself.
pub fn destination(output: &Path, name: &str) -> PathBuf {
    let is_folder = output.is_dir() || output.as_os_str().as_encoded_bytes().ends_with(b"/");
    if is_folder { output.join(name) } else { output.to_owned() }
}

/// A file name that also tells engines of one model and SKU apart.
pub fn with_key(name: &str, engine_key: &str) -> String {
    let stem = name.strip_suffix(".plan").unwrap_or(name);
    format!("{stem}.{}.plan", tables::short(engine_key))
}

/// Keeps a job's plan under the data folder and says where: the same plan, the same path.
pub async fn keep(context: &Context<'_>, farm: &Farm, job: &v1::Job) -> Result<PathBuf, Failure> {
    let folder = context.settings.data_folder()?.join("plans").join(tables::short(&job.plan_digest));
    let path = folder.join(file_name(job.model.as_ref(), &job.sku));
    let digest = plan_digest(job)?;
    match farm.stored_blob(digest) {
        Some(blob) => {
            plan_check::hold(&blob, &Said::from(job)).await?;
            link(&blob, &path)?;
        }
        None if is_whole(&path, job) => {}
        None => download_plan(context, farm, digest, job.plan_bytes, &Said::from(job), &path).await?,
    }
    Ok(path)
}

/// Copies a job's plan to `path`, verified.
pub async fn copy(context: &Context<'_>, farm: &Farm, job: &v1::Job, path: PathBuf) -> Result<PathBuf, Failure> {
    download_plan(context, farm, plan_digest(job)?, job.plan_bytes, &Said::from(job), &path).await?;
    Ok(std::path::absolute(&path).unwrap_or(path))
}

/// Downloads a plan to `path`, where it appears only once it was found to be what it is said to be.
pub async fn download_plan(
    context: &Context<'_>,
    farm: &Farm,
    digest: Digest,
    bytes: u64,
    said: &Said,
    path: &Path,
) -> Result<(), Failure> {
    // A name that stays, so that an interrupted download is continued.
    let mut unchecked = path.as_os_str().to_owned();
    unchecked.push(".unchecked");
    let unchecked = PathBuf::from(unchecked);
    download(context, farm, digest, bytes, &unchecked).await?;
    settle(&unchecked, path, digest, said).await
}

/// As [`download_plan`], from a copy of a farm's blobs: a folder, or a URL below which it lies.
pub async fn take_plan(
    context: &Context<'_>,
    blobs: &str,
    digest: Digest,
    bytes: u64,
    said: &Said,
    path: &Path,
) -> Result<(), Failure> {
    make_parent(path)?;
    let mut unchecked = path.as_os_str().to_owned();
    // Another process may take the same one.
    unchecked.push(format!(".{}.unchecked", std::process::id()));
    let unchecked = PathBuf::from(unchecked);
    let hex = digest.to_string();
    let below = format!("sha256/{}/{hex}", &hex[..2]);
    if blobs.starts_with("http://") || blobs.starts_with("https://") {
        let url = format!("{}/{below}", blobs.trim_end_matches('/'));
        let bar = context.printer.transfer(&format!("fetching {}", path.display()), bytes);
        let result = web::download(&url, digest, &unchecked, &|done| bar.done(done)).await;
        bar.clear();
        result.map_err(|e| Failure::from(e).hint("the copy of the blobs is not what the lock names"))?;
    } else {
        let blob = Path::new(blobs).join(below);
        if !blob.is_file() {
            let message = format!("{} has no plan sha256:{digest}", Path::new(blobs).display());
            return Err(Failure::new(ErrorCode::NotFound, message)
                .hint("name the folder that holds sha256/, such as blobs/ of a coordinator's data folder"));
        }
        let copied = fs::copy(&blob, &unchecked).map_err(|e| Failure::io("write the plan", &unchecked, &e));
        let fine = copied.and_then(|_| Ok(models::hash(&unchecked)?.0 == hex));
        if !matches!(fine, Ok(true)) {
            let _ = fs::remove_file(&unchecked);
            fine?;
            let message = format!("{} is damaged: its SHA-256 is another than its name", blob.display());
            return Err(Failure::new(ErrorCode::Gone, message));
        }
    }
    settle(&unchecked, path, digest, said).await
}

/// Gives a plan whose bytes are verified its name, once it was found to be what it is said to be.
async fn settle(unchecked: &Path, path: &Path, digest: Digest, said: &Said) -> Result<(), Failure> {
    let held = plan_check::hold(unchecked, said).await;
    // Another process that fetches the same may have put the file in its place meanwhile.
    let overtaken = || !unchecked.exists() && models::hash(path).is_ok_and(|(found, _)| found == digest.to_string());
    if let Err(failure) = held {
        if overtaken() {
            return Ok(());
        }
        // What it leaves behind is named as what it is.
        let _ = fs::remove_file(unchecked);
        return Err(failure);
    }
    match fs::rename(unchecked, path) {
        Err(error) if !overtaken() => Err(Failure::io("write the plan", path, &error)),
        _ => Ok(()),
    }
}

/// Downloads a blob to `path`: verified while it streams, there whole or not at all.
pub async fn download(
    context: &Context<'_>,
    farm: &Farm,
    digest: Digest,
    bytes: u64,
    path: &Path,
) -> Result<(), Failure> {
    make_parent(path)?;
    let bar = context.printer.transfer(&format!("fetching {}", path.display()), bytes);
    let result = farm.blobs().download_with(digest, path, &|done| bar.done(done)).await;
    bar.clear();
    result?;
    Ok(())
}

fn plan_digest(job: &v1::Job) -> Result<Digest, Failure> {
    job.plan_digest.parse().map_err(|e| {
        Failure::new(ErrorCode::Internal, format!("the plan of job {} is named by something else: {e}", job.id))
    })
}

/// Whether the plan was brought here before and is still what it was.
fn is_whole(path: &Path, job: &v1::Job) -> bool {
    let same_size = fs::metadata(path).is_ok_and(|facts| facts.is_file() && facts.len() == job.plan_bytes);
    same_size && models::hash(path).is_ok_and(|(digest, _)| digest == job.plan_digest)
}

/// Makes `path` a link to the stored blob, which nobody can change; replaces whatever lies there at once.
fn link(blob: &Path, path: &Path) -> Result<(), Failure> {
    if fs::read_link(path).is_ok_and(|target| target == blob) {
        return Ok(());
    }
    make_parent(path)?;
    let staged = path.with_extension(format!("{}.tmp", std::process::id()));
    let failed = |e: std::io::Error| Failure::io("link the plan to", path, &e);
    match fs::remove_file(&staged) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(failed(e)),
        _ => {}
    }
    std::os::unix::fs::symlink(blob, &staged).map_err(failed)?;
    fs::rename(&staged, path).map_err(failed)
}

/// Makes the folder that `path` lies in.
pub fn make_parent(path: &Path) -> Result<(), Failure> {
    match path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        Some(parent) => fs::create_dir_all(parent).map_err(|e| Failure::io("create the folder", parent, &e)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_are_called_after_model_and_sku() {
        let model = |name: &str| v1::Model { name: name.into(), digest: "ab".repeat(32), ..Default::default() };
        assert_eq!(file_name(Some(&model("resnet50.onnx")), "l4"), "resnet50.l4.plan");
        assert_eq!(file_name(Some(&model("../a b/c.onnx")), "l4"), "_a_b_c.l4.plan");
        assert_eq!(file_name(Some(&model("")), "l4"), "abababababab.l4.plan");
        assert_eq!(file_name(Some(&model("...")), "l4"), "model.l4.plan");
        assert_eq!(shared_name(Some(&model("resnet50.onnx")), "l4"), "resnet50.abababababab.l4.plan");
        let other = v1::Model { digest: "cd".repeat(32), ..model("resnet50.onnx") };
        assert_ne!(shared_name(Some(&other), "l4"), shared_name(Some(&model("resnet50.onnx")), "l4"));
    }

    #[test]
    fn a_link_is_replaced_at_once() {
        let root = tempfile::tempdir().unwrap();
        let (one, two) = (root.path().join("1"), root.path().join("2"));
        fs::write(&one, "one").unwrap();
        fs::write(&two, "two").unwrap();
        let path = root.path().join("deep/a.plan");
        link(&one, &path).unwrap();
        link(&one, &path).unwrap();
        link(&two, &path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "two");
        assert_eq!(fs::read_dir(root.path().join("deep")).unwrap().count(), 1);
    }

    #[test]
    fn engines_of_one_model_and_sku_are_told_apart() {
        assert_eq!(with_key("a.l4.plan", &"ab".repeat(32)), "a.l4.abababababab.plan");
    }

    #[test]
    fn a_folder_gets_a_file_of_the_usual_name() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(destination(root.path(), "a.plan"), root.path().join("a.plan"));
        assert_eq!(destination(Path::new("new/"), "a.plan"), Path::new("new/a.plan"));
        assert_eq!(destination(Path::new("b.plan"), "a.plan"), Path::new("b.plan"));
    }
}
