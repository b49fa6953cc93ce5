//! What a project declares and has locked: `planforge.toml` and `engines.lock`, and how the farm stands to them.

mod inputs;
pub mod kept;
mod survey;
pub mod view;

pub use inputs::Inputs;
pub use survey::{Fleet, Row, Survey, engine_of_plan, locked_as, report_of};

use crate::{
    context::Context,
    failure::Failure,
    settings::{self, Key, PROJECT_FILE},
};
use planforge_device::{CpuLevel, catalogue};
use planforge_fleet::{Boards, Declaration, Lock, LockError, schema::SettingKey};
use planforge_proto::ErrorCode;
use planforge_types::durable;
use std::{
    fs,
    io::{self, Read as _},
    path::{Path, PathBuf},
};

/// The lock lies beside the declaration.
pub const LOCK_FILE: &str = "engines.lock";

/// A project on this machine.
#[derive(Debug)]
pub struct Project {
    pub folder: PathBuf,
    pub declaration: Declaration,
    pub boards: Boards,
}

/// Device kinds that have a name.
fn boards() -> Boards {
    let gpus = catalogue::CATALOGUE.iter();
    let gpus = gpus.filter_map(|entry| Some((entry.sku.parse().ok()?, entry.compute_capability)));
    Boards::new(gpus, CpuLevel::ALL.map(CpuLevel::sku))
}

/// Settings that a project file may hold beside the declaration.
pub fn setting_keys() -> Vec<SettingKey<'static>> {
    let usable = settings::SETTINGS.iter().filter(|setting| setting.not_in_project.is_none());
    let key = |setting: &'static settings::Setting| SettingKey {
        name: setting.name,
        help: setting.help,
        is_list: setting.key == Key::Skus,
    };
    usable.map(key).collect()
}

impl Project {
    /// The project of the current folder; `None` where no `planforge.toml` lies in it or above.
    pub fn find() -> Result<Option<Self>, Failure> {
        let folder = std::env::current_dir().map_err(|e| Failure::io("find", Path::new("the current folder"), &e))?;
        let Some(file) = settings::find_project_file(&folder) else { return Ok(None) };
        let text = read_text(&file, planforge_fleet::declaration::MAX_BYTES)?.unwrap_or_default();
        let boards = boards();
        let settings: Vec<&str> = setting_keys().iter().map(|key| key.name).collect();
        let declaration = Declaration::parse(&text, &settings, &boards)
            .map_err(|error| Failure::usage(format!("{}:{error}", file.display())).hint(error.hint.clone()))?;
        let folder = file.parent().map(Path::to_owned).unwrap_or_default();
        Ok(Some(Self { folder, declaration, boards }))
    }

    /// The project of the current folder, which declares models.
    pub fn must() -> Result<Self, Failure> {
        let example = "for example: targets = [\"all-fleet\"], and below it [models.NAME] with path = \"FILE.onnx\"; \
                       planforge config schema says the rest";
        let project = Self::find()?.ok_or_else(|| {
            Failure::usage(format!("no {PROJECT_FILE} in this folder or above it declares models")).hint(example)
        })?;
        if project.declaration.models.is_empty() {
            let file = project.folder.join(PROJECT_FILE);
            return Err(Failure::usage(format!("{} declares no models", file.display())).hint(example));
        }
        Ok(project)
    }

    /// What the farm and people know the project by: as declared, else as its folder is called.
    pub fn name(&self) -> String {
        self.declaration.name.clone().unwrap_or_else(|| {
            let folder = fs::canonicalize(&self.folder).unwrap_or_else(|_| self.folder.clone());
            let folder = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
            planforge_fleet::declaration::plain_name(&folder)
        })
    }

    pub fn lock_path(&self) -> PathBuf {
        self.folder.join(LOCK_FILE)
    }

    /// The project's lock; `None` where there is none yet.
    pub fn lock(&self) -> Result<Option<Lock>, Failure> {
        let path = self.lock_path();
        match read_text(&path, planforge_fleet::lock::MAX_BYTES)? {
            Some(text) => parse_lock(&text, &path.display().to_string()).map(Some),
            None => Ok(None),
        }
    }

    /// Writes the lock where that changes it; whether it did.
    pub fn write_lock(&self, lock: &Lock) -> Result<bool, Failure> {
        let (path, text) = (self.lock_path(), lock.render());
        if read_text(&path, planforge_fleet::lock::MAX_BYTES)?.as_deref() == Some(&text) {
            return Ok(false);
        }
        durable::write(&path, text.as_bytes()).map_err(|e| Failure::io("write", &path, &e))?;
        Ok(true)
    }
}

/// Reads a lock's text; `name` says where it is from.
pub fn parse_lock(text: &str, name: &str) -> Result<Lock, Failure> {
    Lock::parse(text).map_err(|error| {
        let code = match error {
            LockError::Conflict { .. } | LockError::Duplicate { .. } => ErrorCode::Conflict,
            _ => ErrorCode::InvalidArgument,
        };
        Failure::new(code, format!("{name}:{error}")).hint(error.hint())
    })
}

/// A file's text; `None` where there is no such file.
pub fn read_text(path: &Path, most_bytes: usize) -> Result<Option<String>, Failure> {
    let failed = |e: io::Error| Failure::io("read", path, &e);
    let file = match fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let mut text = String::new();
    file.take(most_bytes as u64 + 1).read_to_string(&mut text).map_err(failed)?;
    if text.len() > most_bytes {
        return Err(Failure::usage(format!("{} is longer than {most_bytes} bytes", path.display())));
    }
    Ok(Some(text))
}

/// What a lock calls the farm that a command talks to.
pub fn farm_name(context: &Context<'_>) -> Result<String, Failure> {
    use crate::farm::Place;
    Ok(match Place::choose(&context.settings)? {
        Place::Server(endpoint) => endpoint.to_string(),
        Place::ThisMachine(_) => "local".to_owned(),
    })
}
