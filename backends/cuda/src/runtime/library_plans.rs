//! What cuDNN compiled for a step, kept as the library's own text: loading it again takes a millisecond, compiling a
//! second.

use super::Device;
use crate::{
    program::{Program, Work},
    signature::signature,
};
use planforge_kernels_cuda::{
    dnn::{Engine, Handle, Plan},
    libraries::libraries,
};
use sha2::{Digest as _, Sha256};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    rc::{Rc, Weak},
};

/// Texts by everything that decides them, which of them were used, and plans that a step has ready: the same does for every
/// step that is computed alike, with other memory.
#[derive(Clone, Debug, Default)]
pub struct LibraryPlans {
    pub texts: BTreeMap<String, String>,
    used: BTreeSet<String>,
    ready: BTreeMap<String, Weak<Plan>>,
}

/// Digest of a step, one engine for it, and the library's version.
pub(crate) fn plan_key(program: &Program, work: &Work, engine: i64, knobs: &[(u32, i64)]) -> String {
    let version = libraries().dnn.as_ref().map(|found| found.version.clone()).unwrap_or_default();
    let text = format!("{version} {engine} {knobs:?} {}", signature(program, work));
    Sha256::digest(text).iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

impl Device {
    /// Texts that a plan or a cache brought along.
    pub fn add_library_plans(&self, texts: impl IntoIterator<Item = (String, String)>) {
        self.plans.borrow_mut().texts.extend(texts);
    }

    /// Texts of the plans that were made ready since the device was opened.
    pub fn used_library_plans(&self) -> BTreeMap<String, String> {
        let plans = self.plans.borrow();
        let used = plans.texts.iter().filter(|(key, _)| plans.used.contains(*key));
        used.map(|(key, text)| (key.clone(), text.clone())).collect()
    }

    /// Keeps the text of a plan that took compiling.
    pub(crate) fn remember_plan(&self, program: &Program, work: &Work, engine: &Engine, plan: &Plan) {
        if !engine.compiles {
            return;
        }
        match plan.to_json() {
            Ok(text) => {
                self.plans.borrow_mut().texts.insert(plan_key(program, work, engine.index, &engine.knobs), text);
            }
            Err(error) => tracing::debug!(%error, "a compiled plan cannot be kept"),
        }
    }

    pub(crate) fn has_library_plan(&self, key: &str) -> bool {
        self.plans.borrow().texts.contains_key(key)
    }

    /// Like [`Device::recalled_plan`], without counting as used.
    pub(crate) fn kept_plan(&self, handle: &Handle, program: &Program, work: &Work, engine: &Engine) -> Option<Plan> {
        let key = plan_key(program, work, engine.index, &engine.knobs);
        self.plans.borrow().texts.get(&key).and_then(|text| Plan::from_json(handle, text).ok())
    }

    /// The plan of an engine that another step has ready, or from its text, where there is one that loads.
    pub(super) fn recalled_plan(
        &self,
        handle: &Handle,
        program: &Program,
        work: &Work,
        engine: i64,
        knobs: &[(u32, i64)],
    ) -> Option<Rc<Plan>> {
        let key = plan_key(program, work, engine, knobs);
        let mut plans = self.plans.borrow_mut();
        if let Some(plan) = plans.ready.get(&key).and_then(Weak::upgrade) {
            plans.used.insert(key);
            return Some(plan);
        }
        let text = plans.texts.get(&key)?;
        match Plan::from_json(handle, text) {
            Ok(plan) => {
                let plan = Rc::new(plan);
                plans.ready.insert(key.clone(), Rc::downgrade(&plan));
                plans.used.insert(key);
                Some(plan)
            }
            Err(error) => {
                tracing::info!(%error, "a kept plan does not load and is made again");
                plans.texts.remove(&key);
                None
            }
        }
    }

    /// Notes that a plan which was just made is used, with its text where it took compiling.
    pub(super) fn use_plan(&self, program: &Program, work: &Work, engine: &Engine, plan: Plan) -> Rc<Plan> {
        if engine.compiles {
            self.remember_plan(program, work, engine, &plan);
        }
        let (key, plan) = (plan_key(program, work, engine.index, &engine.knobs), Rc::new(plan));
        let mut plans = self.plans.borrow_mut();
        plans.ready.insert(key.clone(), Rc::downgrade(&plan));
        plans.used.insert(key);
        plan
    }
}
