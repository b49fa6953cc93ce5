//! Engines of varying shapes on small models: right inside the profile, a typed error outside, bounded and repeatable.

use super::{meter::SHAPES_KEPT, *};
use planforge_backend::{Cancel, CompileRequest, Compiler, Events, LoadOptions, Meter};
use planforge_device::{CpuLevel, cpu};
use planforge_graph::{interpreter, ir::Tensor};
use planforge_import::{
    import,
    testing::{TestModel, ints, numbers},
};
use planforge_onnx::proto::{tensor_shape_proto::dimension, type_proto};
use planforge_plan::signature::InputError;
use planforge_types::{
    BackendError, BuildSpec, Digest, DimRange, ElementType, HostTensor, NamedTensors, OptimizationLevel,
    OptimizationProfile, fingerprint::HostFacts,
};
use prost::Message as _;
use std::{collections::BTreeMap, fs, path::Path};

struct Silent;
impl Events for Silent {
    fn progress(&self, _phase: &str, _fraction: f32, _detail: &str) {}
    fn log(&self, _line: &str) {}
}

type Sizes = (u64, u64, u64);

fn profile(inputs: &[(&str, &[Sizes])]) -> OptimizationProfile {
    let dims = |dims: &[Sizes]| dims.iter().map(|&(min, opt, max)| DimRange { min, opt, max }).collect();
    OptimizationProfile { inputs: inputs.iter().map(|(name, sizes)| ((*name).to_owned(), dims(sizes))).collect() }
}

/// Leaves dimensions of the model's inputs open under these names.
fn open(mut model: TestModel, names: &[&[Option<&str>]]) -> TestModel {
    for (input, names) in model.graph().input.iter_mut().zip(names) {
        let value = input.r#type.as_mut().and_then(|ty| ty.value.as_mut());
        let Some(type_proto::Value::TensorType(tensor)) = value else { panic!("inputs are tensors") };
        for (dim, name) in tensor.shape.as_mut().unwrap().dim.iter_mut().zip(*names) {
            if let Some(name) = name {
                dim.value = Some(dimension::Value::DimParam((*name).to_owned()));
            }
        }
    }
    model
}

fn request(model: &TestModel, folder: &Path, profiles: Vec<OptimizationProfile>) -> CompileRequest {
    let path = folder.join("model.onnx");
    fs::write(&path, model.proto.encode_to_vec()).unwrap();
    CompileRequest {
        model: path,
        model_digest: Digest::of(b"model"),
        sku: CpuLevel::detect().last().unwrap().sku(),
        device: cpu::detect(&HostFacts::default()).0,
        toolchain: toolchain(),
        spec: BuildSpec {
            threads: Some(1),
            optimization_level: OptimizationLevel(0),
            profiles,
            ..BuildSpec::default()
        },
        scratch: folder.to_owned(),
        cache: None,
        calibration: None,
        plugins: Vec::new(),
    }
}

fn try_load(request: &CompileRequest, profile: usize) -> Result<CpuSession, BackendError> {
    let plan = CpuCompiler.compile(request, &Silent, &Cancel::default())?.path;
    CpuSession::load(&plan, &LoadOptions { profile, ..LoadOptions::default() })
}

/// A graph input's name and shape.
type Shaped<'a> = (&'a str, &'a [usize]);

fn inputs(shapes: &[Shaped<'_>]) -> NamedTensors {
    let tensor = |shape: &[usize]| {
        let values: Vec<f64> = numbers(shape.iter().product()).into_iter().map(f64::from).collect();
        HostTensor::of_values(ElementType::F32, shape.to_vec(), &values)
    };
    shapes.iter().map(|(name, shape)| ((*name).to_owned(), tensor(shape))).collect()
}

/// The engine's answers at `shapes` are those of the reference operators there.
fn assert_right(meter: &mut CpuSession, model: &TestModel, shapes: &[Shaped<'_>]) {
    let graph = import(&model.model(), Some(&OptimizationProfile::of_shapes(shapes.iter().copied()))).unwrap();
    let given = inputs(shapes);
    meter.bind(&given).unwrap();
    let answers = meter.run().unwrap();
    let given: BTreeMap<String, Tensor> =
        given.into_iter().map(|(name, tensor)| (name, Tensor::try_from(tensor).unwrap())).collect();
    for (name, wanted) in interpreter::execute(&graph, &given).unwrap() {
        let answer = Tensor::try_from(answers[&name].clone()).unwrap();
        assert_eq!((answer.shape(), answer.element()), (wanted.shape(), wanted.element()), "{name} at {shapes:?}");
        let (answer, wanted) = (answer.to_f64s(), wanted.to_f64s());
        let scale = wanted.iter().filter(|value| value.is_finite()).fold(1f64, |top, value| top.max(value.abs()));
        for (at, (got, want)) in answer.iter().zip(&wanted).enumerate() {
            let same = (got - want).abs() <= 1e-4 * scale || got == want || (got.is_nan() && want.is_nan());
            assert!(same, "{name}[{at}] at {shapes:?}: {got} is not {want}");
        }
    }
}

/// Convolution, flattening by a chain of shape operators, product, and a sum with the transpose of itself.
fn chained() -> TestModel {
    let model = TestModel::new(17)
        .input("x", &[2, 3, 8, 8])
        .input("y", &[2, 5])
        .floats("w", &[4, 3, 3, 3], &numbers(108))
        .floats("m", &[4, 5], &numbers(20))
        .longs("zero", &[0])
        .longs("minus", &[-1])
        .node("Conv", &["x", "w"], "c", vec![ints("pads", &[1; 4])])
        .node("Relu", &["c"], "r", vec![])
        .node("GlobalAveragePool", &["r"], "g", vec![])
        .node("Shape", &["x"], "s", vec![])
        .node("Gather", &["s", "zero"], "n", vec![])
        .node("Concat", &["n", "minus"], "flat", vec![planforge_import::testing::int("axis", 0)])
        .node("Reshape", &["g", "flat"], "h", vec![])
        .node("MatMul", &["h", "m"], "p", vec![])
        .node("Add", &["p", "y"], "z", vec![])
        .node("Softmax", &["z"], "out", vec![])
        .output("out")
        .output("r");
    open(model, &[&[Some("batch"), None, Some("height"), Some("width")], &[Some("batch"), None]])
}

fn wide() -> OptimizationProfile {
    let x: &[Sizes] = &[(1, 2, 40), (3, 3, 3), (4, 8, 11), (4, 8, 11)];
    profile(&[("x", x)])
}

#[test]
fn shapes_that_follow_from_shapes_are_right_everywhere() {
    let (model, folder) = (chained(), tempfile::tempdir().unwrap());
    let mut meter = try_load(&request(&model, folder.path(), vec![wide()]), 0).unwrap();
    let ports = meter.inputs();
    assert_eq!(ports[0].shape, [None, Some(3), None, None]);
    assert_eq!(ports[1].shape, [None, Some(5)]);
    assert_eq!(meter.outputs()[0].shape, [None, Some(5)]);
    assert_eq!(meter.outputs()[1].shape, [None, Some(4), None, None]);
    for (n, h, w) in [(2, 8, 8), (1, 4, 4), (40, 11, 11), (3, 5, 9), (1, 1 + 4, 4), (2, 8, 8), (7, 4, 11)] {
        assert_right(&mut meter, &model, &[("x", &[n, 3, h, w]), ("y", &[n, 5])]);
    }
}

#[test]
fn packed_weights_are_there_once() {
    let (model, folder) = (chained(), tempfile::tempdir().unwrap());
    let varying = request(&model, folder.path(), vec![wide(), wide()]);
    let plan = CpuCompiler.compile(&varying, &Silent, &Cancel::default()).unwrap().path;
    let manifest = plan::read(&plan).unwrap().manifest;
    let one = profile(&[("x", &[(2, 2, 2), (3, 3, 3), (8, 8, 8), (8, 8, 8)])]);
    let fixed = request(&model, folder.path(), vec![one]);
    let plan = CpuCompiler.compile(&fixed, &Silent, &Cancel::default()).unwrap().path;
    let alone = plan::read(&plan).unwrap().manifest;
    assert!(alone.dynamic.is_none());
    assert_eq!((manifest.profiles(), manifest.program.weight_bytes), (2, alone.program.weight_bytes));
    // A shape met at run time brings no packed weights of its own either.
    let mut meter = try_load(&varying, 0).unwrap();
    meter.bind(&inputs(&[("x", &[2, 3, 8, 8]), ("y", &[2, 5])])).unwrap();
    let before = meter.memory_bytes();
    meter.bind(&inputs(&[("x", &[1, 3, 8, 8]), ("y", &[1, 5])])).unwrap();
    assert_eq!(meter.memory_bytes(), before);
}

#[test]
fn few_shapes_are_kept_and_they_share_one_arena() {
    let (model, folder) = (chained(), tempfile::tempdir().unwrap());
    let mut meter = try_load(&request(&model, folder.path(), vec![wide()]), 0).unwrap();
    let bind = |meter: &mut CpuSession, n: usize| {
        meter.bind(&inputs(&[("x", &[n, 3, 8, 8]), ("y", &[n, 5])])).unwrap();
        meter.memory_bytes()
    };
    let largest = bind(&mut meter, 40);
    for n in 1..=40 {
        assert!(bind(&mut meter, n) <= largest, "batch {n} brought memory of its own");
        assert!(meter.shapes_ready() <= SHAPES_KEPT);
    }
    assert_eq!(meter.shapes_ready(), SHAPES_KEPT);
    for n in [40, 1, 40, 33] {
        assert_right(&mut meter, &model, &[("x", &[n, 3, 8, 8]), ("y", &[n, 5])]);
    }
}

#[test]
fn what_is_outside_of_the_profile_is_refused_at_once() {
    let (model, folder) = (chained(), tempfile::tempdir().unwrap());
    let mut meter = try_load(&request(&model, folder.path(), vec![wide()]), 0).unwrap();
    let wrong: [(&[Shaped<'_>], InputError); 4] = [
        (
            &[("x", &[41, 3, 8, 8]), ("y", &[41, 5])],
            InputError::Size { input: "x".into(), axis: 0, given: 41, min: 1, max: 40 },
        ),
        (
            &[("x", &[0, 3, 8, 8]), ("y", &[0, 5])],
            InputError::Size { input: "x".into(), axis: 0, given: 0, min: 1, max: 40 },
        ),
        (&[("x", &[1, 3, 8]), ("y", &[1, 5])], InputError::Rank { input: "x".into(), given: 3, wanted: 4 }),
        (
            &[("x", &[2, 3, 8, 8]), ("y", &[3, 5])],
            InputError::Symbol {
                symbol: "batch".into(),
                input: "y".into(),
                axis: 0,
                given: 3,
                first_input: "x".into(),
                first: 2,
            },
        ),
    ];
    for (shapes, wanted) in wrong {
        let error = meter.bind(&inputs(shapes)).unwrap_err();
        assert_eq!(error.message, wanted.to_string());
        assert_eq!(meter.shapes_ready(), 1, "something was made for a shape that is refused");
    }
}

#[test]
fn every_profile_has_its_own_range_and_program() {
    let (model, folder) = (chained(), tempfile::tempdir().unwrap());
    let small = profile(&[("x", &[(1, 1, 2), (3, 3, 3), (8, 8, 8), (8, 8, 8)])]);
    let large = profile(&[("x", &[(3, 6, 9), (3, 3, 3), (8, 8, 8), (8, 8, 8)])]);
    let request = request(&model, folder.path(), vec![small, large]);
    for (index, inside, outside) in [(0, [1, 2], 3), (1, [3, 9], 2)] {
        let mut meter = try_load(&request, index).unwrap();
        for n in inside {
            assert_right(&mut meter, &model, &[("x", &[n, 3, 8, 8]), ("y", &[n, 5])]);
        }
        assert!(meter.bind(&inputs(&[("x", &[outside, 3, 8, 8]), ("y", &[outside, 5])])).is_err());
    }
    let error = try_load(&request, 2).map(drop).unwrap_err();
    assert_eq!(error.message, "the plan has 2 profiles, so there is no profile 2");
    let mut meter = try_load(&request, 0).unwrap();
    for (index, inside, outside) in [(1, 9, 2), (0, 2, 3), (1, 6, 1)] {
        assert_eq!(meter.switch_profile(index).unwrap(), Some(()));
        assert!(meter.run().is_err(), "nothing is bound after a change");
        assert_right(&mut meter, &model, &[("x", &[inside, 3, 8, 8]), ("y", &[inside, 5])]);
        assert!(meter.bind(&inputs(&[("x", &[outside, 3, 8, 8]), ("y", &[outside, 5])])).is_err());
    }
    assert!(meter.switch_profile(2).is_err());
}

#[test]
fn profiles_that_do_not_suit_the_model_name_the_end_that_does_not() {
    // Rows are taken in pairs, so the smallest batch cannot be built.
    let model = TestModel::new(17)
        .input("x", &[4, 6])
        .longs("pairs", &[-1, 12])
        .node("Reshape", &["x", "pairs"], "y", vec![])
        .output("y");
    let model = open(model, &[&[Some("batch"), None]]);
    let folder = tempfile::tempdir().unwrap();
    let odd = request(&model, folder.path(), vec![profile(&[("x", &[(1, 4, 8), (6, 6, 6)])])]);
    let error = try_load(&odd, 0).map(drop).unwrap_err();
    assert!(error.message.contains("smallest shapes of profile 0"), "{}", error.message);
    // Inside the profile, where nobody looked, it is an error when it is asked for.
    let even = request(&model, folder.path(), vec![profile(&[("x", &[(2, 4, 8), (6, 6, 6)])])]);
    let mut meter = try_load(&even, 0).unwrap();
    let error = meter.bind(&inputs(&[("x", &[3, 6])])).unwrap_err();
    assert!(error.message.contains("Reshape"), "{}", error.message);
    assert!(meter.run().is_err(), "nothing is bound");
    assert_right(&mut meter, &model, &[("x", &[6, 6])]);
}

#[test]
fn the_same_cache_gives_the_same_plan_of_varying_shapes() {
    let (model, folder) = (chained(), tempfile::tempdir().unwrap());
    let mut request = request(&model, folder.path(), vec![wide()]);
    request.spec.optimization_level = OptimizationLevel::default();
    request.cache = Some(folder.path().join("cache"));
    let build = || fs::read(CpuCompiler.compile(&request, &Silent, &Cancel::default()).unwrap().path).unwrap();
    let first = build();
    assert!(build() == first, "a second build gave another plan");
}

#[test]
fn damage_to_the_model_inside_a_plan_is_noticed() {
    let (model, folder) = (chained(), tempfile::tempdir().unwrap());
    let plan =
        CpuCompiler.compile(&request(&model, folder.path(), vec![wide()]), &Silent, &Cancel::default()).unwrap().path;
    let whole = fs::read(&plan).unwrap();
    let damaged = folder.path().join("damaged.plan");
    let mut refused = 0;
    for at in (0..whole.len()).rev().step_by(509) {
        let mut bytes = whole.clone();
        bytes[at] ^= 4;
        fs::write(&damaged, bytes).unwrap();
        assert!(CpuSession::load(&damaged, &LoadOptions::default()).is_err(), "byte {at} was flipped unnoticed");
        refused += 1;
    }
    assert!(refused > 20);
}

#[test]
fn inspection_shows_profiles_tactics_fusions_and_lifetimes() {
    let (model, folder) = (chained(), tempfile::tempdir().unwrap());
    let small = profile(&[("x", &[(1, 1, 2), (3, 3, 3), (8, 8, 8), (8, 8, 8)])]);
    let mut request = request(&model, folder.path(), vec![wide(), small]);
    request.spec.optimization_level = OptimizationLevel::default();
    let plan = CpuCompiler.compile(&request, &Silent, &Cancel::default()).unwrap().path;
    let inspection = inspect(&plan).unwrap();
    let text = inspection.to_string();
    assert!(text.contains("profile 0: x:1..2..40x3x4..8..11x4..8..11, y:1..2..40x5;"), "{text}");
    assert!(text.contains("profile 1: x:1..1..2x3x8x8, y:1..1..2x5;"), "{text}");
    // Inputs, all steps with the candidates of the tuned ones, and a line for each buffer of the arena.
    let conv = inspection.steps.iter().find(|step| step.kind == "conv").unwrap();
    assert_eq!(conv.nodes, ["make c", "make r"], "the convolution and its activation are one step");
    assert!(conv.tried.len() > 1);
    for tried in &conv.tried {
        assert!(tried.best_us.is_some() && text.contains(&tried.name), "{}", tried.name);
    }
    assert_eq!(conv.kernel, conv.tried[0].name, "the winner comes first");
    assert!(inspection.passes.iter().any(|pass| !pass.changes.is_empty()));
    let arena: Vec<_> = inspection.memory.buffers.iter().filter(|buffer| buffer.place == "arena").collect();
    assert_eq!(text.lines().filter(|line| line.starts_with("buffer ")).count(), arena.len());
    let peak = arena.iter().map(|buffer| buffer.offset + buffer.bytes).max().unwrap();
    assert!(peak <= inspection.memory.arena_bytes && inspection.memory.arena_bytes < peak + 64);
    // Two buffers that live at the same time never share a byte.
    for (at, a) in arena.iter().enumerate() {
        for b in &arena[at + 1..] {
            let ([a0, a1], [b0, b1]) = (a.steps.unwrap(), b.steps.unwrap());
            let apart = a.offset + a.bytes <= b.offset || b.offset + b.bytes <= a.offset;
            assert!(a1 < b0 || b1 < a0 || apart, "{} and {} overlap", a.name, b.name);
        }
    }
    let json = serde_json::to_value(&inspection).unwrap();
    assert_eq!(json["profiles"][0]["inputs"][0]["dims"][0]["range"]["max"], 40);
    assert_eq!(json["profiles"][0]["inputs"][0]["dims"][0]["symbol"], "batch");
    assert_eq!(serde_json::from_value::<Inspection>(json).unwrap(), inspection);
}

/// Random graphs whose first dimension is a batch, run at random sizes of it.
mod random {
    use super::*;
    use planforge_import::testing::{float, int};
    use planforge_onnx::proto::AttributeProto;

    /// Graphs per run, and sizes of the batch that each is run at.
    const GRAPHS: u64 = 40;
    const SIZES: u64 = 5;
    const BATCH_MAX: u64 = 12;
    const STEPS_MAX: u64 = 10;

    /// splitmix64.
    struct Random(u64);

    impl Random {
        fn below(&mut self, end: u64) -> u64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut mixed = self.0;
            mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            (mixed ^ (mixed >> 31)) % end
        }
    }

    struct Made {
        model: TestModel,
        random: Random,
        /// Names, and shapes behind the batch.
        values: Vec<(String, Vec<usize>)>,
        names: usize,
    }

    impl Made {
        fn name(&mut self) -> String {
            self.names += 1;
            format!("v{}", self.names)
        }

        fn constant(&mut self, shape: &[usize]) -> String {
            let name = self.name();
            self.model = self.model.clone().floats(&name, shape, &numbers(shape.iter().product()));
            name
        }

        fn node(&mut self, op: &str, inputs: &[&str], attributes: Vec<AttributeProto>) -> String {
            let name = self.name();
            self.model = self.model.clone().node(op, inputs, &name, attributes);
            name
        }

        fn of_rank(&mut self, rank: usize) -> Option<(String, Vec<usize>)> {
            let fitting: Vec<_> = self.values.iter().filter(|(_, rest)| rest.len() == rank).cloned().collect();
            let count = fitting.len() as u64;
            (count > 0).then(|| fitting[self.random.below(count) as usize].clone())
        }

        /// Keeps every value small, so that long chains stay comparable.
        fn give(&mut self, name: &str, rest: &[usize]) {
            let name = self.node("Tanh", &[name], vec![]);
            self.values.push((name, rest.to_vec()));
        }

        fn step(&mut self) {
            match self.random.below(8) {
                0 | 1 => {
                    let Some((x, rest)) = self.of_rank(3) else { return };
                    let out = 1 + self.random.below(6) as usize;
                    let w = self.constant(&[out, rest[0], 3, 3]);
                    let y = self.node("Conv", &[&x, &w], vec![ints("pads", &[1; 4])]);
                    let y = if self.random.below(2) == 0 { self.node("Relu", &[&y], vec![]) } else { y };
                    self.give(&y, &[out, rest[1], rest[2]]);
                }
                2 => {
                    let Some((x, rest)) = self.of_rank(3) else { return };
                    let y = self.node("MaxPool", &[&x], vec![ints("kernel_shape", &[3, 3]), ints("pads", &[1; 4])]);
                    let y = self.node("Add", &[&x, &y], vec![]);
                    self.give(&y, &rest);
                }
                3 => {
                    // Flattened by a shape that is computed.
                    let Some((x, rest)) = self.of_rank(3) else { return };
                    let shape = self.node("Shape", &[&x], vec![]);
                    let count = self.node("Gather", &[&shape, "zero"], vec![int("axis", 0)]);
                    let flat = self.node("Concat", &[&count, "minus"], vec![int("axis", 0)]);
                    let y = self.node("Reshape", &[&x, &flat], vec![]);
                    self.give(&y, &[rest.iter().product()]);
                }
                4 | 5 => {
                    let Some((x, rest)) = self.of_rank(1) else { return };
                    let columns = 1 + self.random.below(40) as usize;
                    let (w, b) = (self.constant(&[rest[0], columns]), self.constant(&[columns]));
                    let y = self.node("MatMul", &[&x, &w], vec![]);
                    let y = self.node("Add", &[&y, &b], vec![]);
                    self.give(&y, &[columns]);
                }
                6 => {
                    // Every item meets every other: the batch is a dimension of a product.
                    let Some((x, rest)) = self.of_rank(1) else { return };
                    let turned = self.node("Transpose", &[&x], vec![ints("perm", &[1, 0])]);
                    let scores = self.node("MatMul", &[&x, &turned], vec![]);
                    let weights = self.node("Softmax", &[&scores], vec![]);
                    let y = self.node("MatMul", &[&weights, &x], vec![]);
                    self.give(&y, &rest);
                }
                _ => {
                    let Some((x, rest)) = self.of_rank(1) else { return };
                    let (scale, shift) = (self.constant(&rest), self.constant(&rest));
                    let attributes = vec![int("axis", -1), float("epsilon", 0.1)];
                    let y = self.node("LayerNormalization", &[&x, &scale, &shift], attributes);
                    self.give(&y, &rest);
                }
            }
        }
    }

    /// The model and the last dimensions of its input.
    fn made(seed: u64) -> (TestModel, [usize; 3]) {
        let mut random = Random(seed);
        let rest = [1 + random.below(4) as usize, 2 + random.below(5) as usize, 2 + random.below(5) as usize];
        let dims: Vec<i64> = [1].into_iter().chain(rest).map(|size| size as i64).collect();
        let model = TestModel::new(17).input("x", &dims).longs("zero", &[0]).longs("minus", &[-1]);
        let mut made = Made { model, random, values: vec![("x".into(), rest.to_vec())], names: 0 };
        for _ in 0..2 + made.random.below(STEPS_MAX) {
            made.step();
        }
        let last = made.values.last().cloned().unwrap_or_default().0;
        let last = made.node("Neg", &[&last], vec![]);
        (open(made.model.output(&last), &[&[Some("batch")]]), rest)
    }

    #[test]
    fn engines_equal_the_reference_at_every_size() {
        let folder = tempfile::tempdir().unwrap();
        for seed in 0..GRAPHS {
            let (model, rest) = made(seed);
            let mut random = Random(seed ^ 0xbeef);
            let opt = 1 + random.below(BATCH_MAX);
            let fixed = rest.map(|size| (size as u64, size as u64, size as u64));
            let dims: Vec<Sizes> = [(1, opt, BATCH_MAX)].into_iter().chain(fixed).collect();
            let profiles = vec![profile(&[("x", &dims)])];
            let mut meter = try_load(&request(&model, folder.path(), profiles), 0)
                .unwrap_or_else(|error| panic!("seed {seed}: {}", error.message));
            let shape = |size: u64| [size as usize, rest[0], rest[1], rest[2]];
            for _ in 0..SIZES {
                let size = 1 + random.below(BATCH_MAX);
                assert_right(&mut meter, &model, &[("x", &shape(size))]);
            }
            let outside = shape(BATCH_MAX + 1 + random.below(5));
            let error = meter.bind(&inputs(&[("x", &outside)])).unwrap_err();
            assert!(error.message.contains("the engine takes 1 to 12"), "seed {seed}: {}", error.message);
        }
    }
}
