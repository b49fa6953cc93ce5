//! What cuDNN compiled for a step, kept as the library's own text: loading it again takes a millisecond, compiling a
//! second.

use super::Device;
use crate::{
    program::{Program, Tactic, Work},
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

/// Of `texts` those that the tactics of a program's steps take.
pub(crate) fn plans_of(program: &Program, texts: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let keys = program.steps.iter().filter_map(|step| match &step.tactic {
        Some(Tactic::Dnn { engine, knobs, .. }) => Some(plan_key(program, &step.work, *engine, knobs)),
        _ => None,
    });
    keys.filter_map(|key| texts.get_key_value(&key)).map(|(key, text)| (key.clone(), text.clone())).collect()
}

impl Device {
    /// Texts that a plan or a cache brought along.
    pub fn add_library_plans(&self, texts: impl IntoIterator<Item = (String, String)>) {
        self.plans.borrow_mut().texts.extend(texts);
    }

    /// All texts there are.
    pub(crate) fn all_library_plans(&self) -> BTreeMap<String, String> {
        self.plans.borrow().texts.clone()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        program::{ProductWork, Step},
        view::{BufferId, Kind, View},
    };

    #[test]
    fn a_plan_takes_along_what_its_steps_are_computed_by() {
        let step = |name: &str, columns: u64, engine: i64| {
            let rows = |dims: &[u64]| View::rows(BufferId(0), Kind::F16, dims);
            let (a, b, y) = (rows(&[1, 8, 16]), rows(&[1, 16, columns]), rows(&[1, 8, columns]));
            let product = ProductWork { a, b, bias: None, residual: None, y, alpha: 1.0, activation: None, norm: None };
            let tactic = Tactic::Dnn { engine, knobs: vec![(1, 2)], workspace_bytes: 0, waits: None };
            let (name, work) = (name.to_owned(), Work::Product(product));
            Step { name, origins: Vec::new(), work, tactic: Some(tactic), stream: 0, flops: 0, bytes: 0 }
        };
        let buffer =
            crate::program::Buffer { name: "all".into(), bytes: 1 << 10, place: crate::program::Place::Arena(0) };
        let steps = vec![step("first", 16, 5), step("alike", 16, 5), step("other", 24, 6)];
        let program = Program { buffers: vec![buffer], steps, ..Program::default() };
        let key = |step: &Step, engine: i64| plan_key(&program, &step.work, engine, &[(1, 2)]);
        let [first, tried] = [5, 9].map(|engine| key(&program.steps[0], engine));
        // The other's engine does not compile, and has no text.
        let texts = BTreeMap::from([(first.clone(), "first".to_owned()), (tried, "tried".to_owned())]);
        assert_eq!(plans_of(&program, &texts), BTreeMap::from([(first, "first".to_owned())]));
    }
}
