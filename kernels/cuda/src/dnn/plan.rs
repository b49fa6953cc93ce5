//! Engines that can run a pattern, and plans made of them.

use super::{
    descriptor::{Descriptor, DnnError, Result, check},
    graph::{Pattern, Uid},
    site::Site,
};
use crate::{calls::dnn as calls, device::Stream};
use cudarc::cudnn::sys::{
    cudnnBackendAttributeName_t as Name, cudnnBackendAttributeType_t as Type, cudnnBackendDescriptorType_t as Kind,
    cudnnBackendHeurMode_t as HeurMode,
};

/// Most engine configurations that one way of asking returns.
const MAX_ENGINES: usize = 64;
/// Most knobs and notes that are read back.
const MAX_KNOBS: usize = 32;
const MAX_NOTES: usize = 16;

/// `CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION`.
const RUNTIME_COMPILATION: u32 = 0;
/// `CUDNN_NUMERICAL_NOTE_TENSOR_CORE` and `_DOWN_CONVERT_INPUTS`: factors in f32 lose bits.
const ROUNDING: [u32; 2] = [0, 1];

/// One configured engine.
#[derive(Clone, Debug)]
pub struct Engine {
    config: Descriptor,
    /// Its number in the library, for this pattern.
    pub index: i64,
    /// Knobs by their type's number.
    pub knobs: Vec<(u32, i64)>,
    /// Compiles kernels when a plan is made of it: half a second to some seconds each.
    pub compiles: bool,
    /// Rounds factors that are stored in f32, to TF32 or less.
    pub rounds_f32: bool,
}

impl Engine {
    /// A short name that is stable for one library version: `eng7 k2=3 k17=1`.
    pub fn name(&self) -> String {
        let knobs: String = self.knobs.iter().map(|(kind, value)| format!(" k{kind}={value}")).collect();
        format!("eng{}{knobs}", self.index)
    }
}

impl Pattern {
    /// Engines that the library proposes, best guess first, each configuration once.
    pub fn engines(&self) -> Result<Vec<Engine>> {
        let mut engines: Vec<Engine> = Vec::new();
        for mode in [HeurMode::CUDNN_HEUR_MODE_A, HeurMode::CUDNN_HEUR_MODE_B, HeurMode::CUDNN_HEUR_MODE_FALLBACK] {
            // A mode that a version does not have for this pattern proposes nothing.
            let Ok(found) = self.proposed(mode) else { continue };
            for engine in found {
                if !engines.iter().any(|known| known.index == engine.index && known.knobs == engine.knobs) {
                    engines.push(engine);
                }
            }
        }
        Ok(engines)
    }

    fn proposed(&self, mode: HeurMode) -> Result<Vec<Engine>> {
        let heuristics = Descriptor::new(Kind::CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR)?;
        heuristics.set_parts(Name::CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, &[&self.graph])?;
        heuristics.set(Name::CUDNN_ATTR_ENGINEHEUR_MODE, Type::CUDNN_TYPE_HEUR_MODE, &[mode as u32])?;
        if let Site::Elsewhere(device) = &self.site {
            heuristics.set_parts(Name::CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, &[device.descriptor()])?;
        }
        heuristics.finalize("ask for engines")?;
        let kind = Kind::CUDNN_BACKEND_ENGINECFG_DESCRIPTOR;
        let configs = heuristics.get_parts(Name::CUDNN_ATTR_ENGINEHEUR_RESULTS, kind, MAX_ENGINES)?;
        configs.into_iter().map(Engine::read).collect()
    }

    /// One engine by its number, with the knobs given, the rest as the library has them.
    pub fn engine(&self, index: i64, knobs: &[(u32, i64)]) -> Result<Engine> {
        let engine = Descriptor::new(Kind::CUDNN_BACKEND_ENGINE_DESCRIPTOR)?;
        engine.set_parts(Name::CUDNN_ATTR_ENGINE_OPERATION_GRAPH, &[&self.graph])?;
        engine.set_i64(Name::CUDNN_ATTR_ENGINE_GLOBAL_INDEX, &[index])?;
        if let Site::Elsewhere(device) = &self.site {
            engine.set_parts(Name::CUDNN_ATTR_ENGINE_DEVICEPROP, &[device.descriptor()])?;
        }
        engine.finalize("choose an engine")?;
        let config = Descriptor::new(Kind::CUDNN_BACKEND_ENGINECFG_DESCRIPTOR)?;
        config.set_parts(Name::CUDNN_ATTR_ENGINECFG_ENGINE, &[&engine])?;
        let mut choices = Vec::new();
        for &(kind, value) in knobs {
            let choice = Descriptor::new(Kind::CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR)?;
            choice.set(Name::CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, Type::CUDNN_TYPE_KNOB_TYPE, &[kind])?;
            choice.set_i64(Name::CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, &[value])?;
            choice.finalize("set a knob")?;
            choices.push(choice);
        }
        if !choices.is_empty() {
            let parts: Vec<&Descriptor> = choices.iter().collect();
            config.set_parts(Name::CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, &parts)?;
        }
        config.finalize("configure an engine")?;
        Engine::read(config)
    }

    /// Makes a plan: loads or compiles the kernels. Of a pattern for a device that is elsewhere there is only its text.
    pub fn plan(&self, engine: &Engine) -> Result<Plan> {
        let Site::Here(handle) = &self.site else {
            let reason = "its device is elsewhere".to_owned();
            return Err(DnnError::Unsupported { what: "make a plan to run", reason });
        };
        Plan::of(handle, self.made(engine)?)
    }

    /// The text of a plan, for the same library version on the pattern's device; see [`Plan::to_json`].
    pub fn plan_text(&self, engine: &Engine) -> Result<String> {
        text_of(&self.made(engine)?)
    }

    fn made(&self, engine: &Engine) -> Result<Descriptor> {
        let plan = Descriptor::new(Kind::CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)?;
        match &self.site {
            Site::Here(handle) => {
                plan.set(Name::CUDNN_ATTR_EXECUTION_PLAN_HANDLE, Type::CUDNN_TYPE_HANDLE, &[handle.raw()])?;
            }
            Site::Elsewhere(device) => {
                plan.set_parts(Name::CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, &[device.descriptor()])?;
            }
        }
        plan.set_parts(Name::CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, &[&engine.config])?;
        plan.finalize("make a plan")?;
        Ok(plan)
    }
}

impl Engine {
    fn read(config: Descriptor) -> Result<Self> {
        let engine = config
            .get_parts(Name::CUDNN_ATTR_ENGINECFG_ENGINE, Kind::CUDNN_BACKEND_ENGINE_DESCRIPTOR, 1)?
            .pop()
            .expect("a configuration has one engine");
        let index = engine.get::<i64>(Name::CUDNN_ATTR_ENGINE_GLOBAL_INDEX, Type::CUDNN_TYPE_INT64, 1)?;
        let notes = engine
            .get::<u32>(Name::CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, Type::CUDNN_TYPE_BEHAVIOR_NOTE, MAX_NOTES)
            .unwrap_or_default();
        let numerics = engine
            .get::<u32>(Name::CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, Type::CUDNN_TYPE_NUMERICAL_NOTE, MAX_NOTES)
            .unwrap_or_default();
        let kind = Kind::CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR;
        let mut knobs = Vec::new();
        for choice in config.get_parts(Name::CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, kind, MAX_KNOBS).unwrap_or_default() {
            let kind = choice.get::<u32>(Name::CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, Type::CUDNN_TYPE_KNOB_TYPE, 1)?;
            let value = choice.get::<i64>(Name::CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, Type::CUDNN_TYPE_INT64, 1)?;
            if let (Some(kind), Some(value)) = (kind.first(), value.first()) {
                knobs.push((*kind, *value));
            }
        }
        knobs.sort_unstable();
        Ok(Self {
            config,
            index: index.first().copied().unwrap_or(-1),
            knobs,
            compiles: notes.contains(&RUNTIME_COMPILATION),
            rounds_f32: numerics.iter().any(|note| ROUNDING.contains(note)),
        })
    }
}

/// A pattern made ready to run by one engine.
#[derive(Debug)]
pub struct Plan {
    handle: super::Handle,
    plan: Descriptor,
    pub workspace_bytes: usize,
}

/// Which memory each tensor of a pattern is, kept so that it is described once.
#[derive(Debug)]
pub struct Binding(Descriptor);

impl Plan {
    fn of(handle: &super::Handle, plan: Descriptor) -> Result<Self> {
        let bytes = plan.get::<i64>(Name::CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, Type::CUDNN_TYPE_INT64, 1)?;
        let workspace_bytes = usize::try_from(bytes.first().copied().unwrap_or(0))?;
        Ok(Self { handle: handle.clone(), plan, workspace_bytes })
    }

    /// A plan from what [`Plan::to_json`] gave on a device of the same kind and with the same library version; the
    /// library refuses others.
    pub fn from_json(handle: &super::Handle, text: &str) -> Result<Self> {
        let plan = Descriptor::new(Kind::CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)?;
        plan.set_text(Name::CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, text)?;
        plan.set(Name::CUDNN_ATTR_EXECUTION_PLAN_HANDLE, Type::CUDNN_TYPE_HANDLE, &[handle.raw()])?;
        plan.finalize("load a plan")?;
        Self::of(handle, plan)
    }

    /// Names memory for every tensor of the pattern; a tensor by value gets the address of its host value.
    pub fn bind(&self, tensors: &[(Uid, u64)], workspace: u64) -> Result<Binding> {
        let pack = Descriptor::new(Kind::CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR)?;
        let uids: Vec<Uid> = tensors.iter().map(|(uid, _)| *uid).collect();
        let addresses: Vec<u64> = tensors.iter().map(|(_, address)| *address).collect();
        pack.set_i64(Name::CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, &uids)?;
        pack.set_addresses(Name::CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, &addresses)?;
        pack.set_addresses(Name::CUDNN_ATTR_VARIANT_PACK_WORKSPACE, &[workspace])?;
        pack.finalize("bind memory")?;
        Ok(Binding(pack))
    }

    /// Queues the plan.
    ///
    /// # Safety
    /// The binding is of this plan, and its addresses lead to memory as the pattern describes it, alive until it is done.
    pub unsafe fn run(&self, stream: &Stream, binding: &Binding) -> Result<()> {
        self.handle.use_stream(stream)?;
        // SAFETY: all objects are alive; the rest is the caller's word.
        check("run a plan", unsafe { calls::cudnnBackendExecute(self.handle.raw(), self.plan.raw(), binding.0.raw()) })
    }

    /// The plan as text that the same library version can load again; what it compiled is inside.
    pub fn to_json(&self) -> Result<String> {
        text_of(&self.plan)
    }
}

fn text_of(plan: &Descriptor) -> Result<String> {
    plan.get_text(Name::CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION)
}
