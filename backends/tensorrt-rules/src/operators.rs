//! Which operators a version's ONNX parser has: NVIDIA's own lists.
//!
//! The parser looks an operator up by its name alone, whatever the domain: first among its importers, then among the
//! plugins of the process. Importers are those of onnx-tensorrt (branches 8.2 to 10.1, `docs/operators.md` of 10.15) and
//! the parser changes in TensorRT's changelog up to 11.1; plugins those of TensorRT's own plugin library, 8.6 to 11.1.
//! What a listed version lacks is refused; what a newer one could have learned is a warning.

use crate::{model::ModelFacts, refusal::Refusal, version::Version};

/// Newest opset that a version documents, and the last version that is known to document no newer one.
const OPSETS: [(Version, Version, i64); 5] = [
    (Version::new(8, 0, 0), Version::new(8, 3, 99), 13),
    (Version::new(8, 4, 0), Version::new(8, 99, 99), 17),
    (Version::new(9, 0, 0), Version::new(9, 99, 99), 19),
    (Version::new(10, 0, 0), Version::new(10, 1, 99), 20),
    (Version::new(10, 15, 0), Version::new(11, 1, 99), 24),
];
/// Oldest opset, documented from 10.0 on.
const OLDEST_OPSET: (Version, i64) = (Version::new(10, 0, 0), 9);
/// The newest version whose lists are known.
const NEWEST_LISTED: Version = Version::new(11, 1, 99);

/// Importers that every version from 8.2 on has.
const ALWAYS: &str = "Abs Acos Acosh Add And ArgMax ArgMin Asin Asinh Atan Atanh AveragePool BatchNormalization Cast \
    Ceil Celu Clip Concat Constant ConstantOfShape Conv ConvTranspose Cos Cosh CumSum DepthToSpace DequantizeLinear Div \
    Dropout Einsum Elu Equal Erf Exp Expand EyeLike Flatten Floor Gather GatherElements GatherND Gemm \
    GlobalAveragePool GlobalLpPool GlobalMaxPool Greater GreaterOrEqual GRU HardSigmoid Identity If ImageScaler \
    InstanceNormalization IsNaN LeakyRelu Less LessOrEqual Log LogSoftmax Loop LpNormalization LpPool LRN LSTM MatMul \
    Max MaxPool Mean Min Mul Neg NonMaxSuppression Not Or Pad ParametricSoftplus Pow PRelu QuantizeLinear RandomUniform \
    RandomUniformLike Range Reciprocal ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin \
    ReduceProd ReduceSum ReduceSumSquare Relu Reshape Resize ReverseSequence RNN Round ScaledTanh Scan Scatter \
    ScatterElements ScatterND Selu Shape Sigmoid Sign Sin Sinh Size Slice Softmax Softplus Softsign SpaceToDepth Split \
    Sqrt Squeeze Sub Sum Tan Tanh ThresholdedRelu Tile TopK Transpose Unsqueeze Upsample Where";

/// Operators that a version learned.
const LEARNED: [(&str, Version); 34] = [
    ("HardSwish", Version::new(8, 4, 0)),
    ("Shrink", Version::new(8, 4, 0)),
    ("Xor", Version::new(8, 4, 0)),
    ("GridSample", Version::new(8, 5, 0)),
    ("MeanVarianceNormalization", Version::new(8, 5, 0)),
    ("Mod", Version::new(8, 5, 0)),
    ("NonZero", Version::new(8, 5, 0)),
    ("OneHot", Version::new(8, 5, 0)),
    ("RandomNormal", Version::new(8, 5, 0)),
    ("RandomNormalLike", Version::new(8, 5, 0)),
    ("RoiAlign", Version::new(8, 5, 0)),
    ("Trilu", Version::new(8, 5, 0)),
    ("GroupNormalization", Version::new(8, 6, 0)),
    ("IsInf", Version::new(8, 6, 0)),
    ("LayerNormalization", Version::new(8, 6, 0)),
    ("TRT_FP8QuantizeLinear", Version::new(8, 6, 0)),
    ("TRT_FP8DequantizeLinear", Version::new(8, 6, 0)),
    ("CastLike", Version::new(9, 1, 0)),
    ("Hardmax", Version::new(9, 2, 0)),
    ("Gelu", Version::new(10, 0, 0)),
    ("Mish", Version::new(10, 0, 0)),
    ("DeformConv", Version::new(10, 1, 0)),
    ("BlackmanWindow", Version::new(10, 4, 0)),
    ("HammingWindow", Version::new(10, 4, 0)),
    ("HannWindow", Version::new(10, 4, 0)),
    ("STFT", Version::new(10, 5, 0)),
    ("Attention", Version::new(10, 14, 0)),
    ("RMSNormalization", Version::new(10, 15, 0)),
    ("RotaryEmbedding", Version::new(10, 15, 0)),
    ("TensorScatter", Version::new(10, 15, 0)),
    ("DistCollective", Version::new(10, 16, 0)),
    ("Swish", Version::new(11, 0, 0)),
    ("TRT_MoE", Version::new(11, 0, 0)),
    ("TRT_KVCacheUpdate", Version::new(11, 0, 0)),
];

/// Operators of the standard that no listed version has.
const NEVER: &str = "AffineGrid Bernoulli BitCast BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor CenterCropPad \
    Col2Im Compress ConcatFromSequence ConvInteger CumProd DFT Det DynamicQuantizeLinear ImageDecoder MatMulInteger \
    MaxRoiPool MaxUnpool MelWeightMatrix Multinomial NegativeLogLikelihoodLoss Optional OptionalGetElement \
    OptionalHasElement QLinearConv QLinearMatMul RegexFullMatch SequenceAt SequenceConstruct SequenceEmpty \
    SequenceErase SequenceInsert SequenceLength SequenceMap SoftmaxCrossEntropyLoss SplitToSequence StringConcat \
    StringNormalizer StringSplit TfIdfVectorizer Unique";

/// Plugins of TensorRT's own library whose names do not say so.
const PLUGINS: &str = "CoordConvAC CropAndResize CropAndResizeDynamic CustomEmbLayerNormPluginDynamic \
    CustomFCPluginDynamic CustomGeluPluginDynamic CustomQKVToContextPluginDynamic CustomSkipLayerNormPluginDynamic \
    DecodeBbox3DPlugin GroupNormalizationPlugin ModulatedDeformConv2d PillarScatterPlugin Proposal ScatterElements \
    ScatterND TopkLastDim VoxelGeneratorPlugin";

/// Whose operators the parser would have to have itself: the standard's, and those that ONNX Runtime's optimizer puts
/// into a model.
const OWN_DOMAINS: [&str; 3] = ["", "ai.onnx.ml", "com.microsoft"];

/// From here on functions that a model defines are unfolded.
const FUNCTIONS_SINCE: Version = Version::new(9, 0, 0);

fn among(list: &str, name: &str) -> bool {
    list.split_ascii_whitespace().any(|word| word == name)
}

/// A plugin of TensorRT's own library, or named as all of its makers' are.
fn is_own_plugin(name: &str) -> bool {
    among(PLUGINS, name) || name.ends_with("_TRT") || name.starts_with("TRT_")
}

fn shown(domain: &str, operator: &str) -> String {
    if domain.is_empty() { operator.to_owned() } else { format!("{domain}::{operator}") }
}

/// Refuses operators that `version` lacks, unless the spec brings `plugins`; says what is uncertain.
pub(crate) fn check(version: Version, model: &ModelFacts, plugins: bool) -> Result<Vec<String>, Refusal> {
    let release = version.release();
    let mut warnings = Vec::new();
    let mut missing = Vec::new();
    for (domain, operator) in model.operators.keys() {
        let name = shown(domain, operator);
        if model.functions.contains(&(domain.clone(), operator.clone())) {
            if release < FUNCTIONS_SINCE {
                missing.push((name, "9.0 and newer unfold functions of a model".to_owned()));
            }
        } else if let Some((_, since)) = LEARNED.iter().find(|(name, _)| name == operator) {
            if release < *since {
                missing.push((name, format!("{}.{} and newer do", since.major, since.minor)));
            }
        } else if among(ALWAYS, operator) {
        } else if is_own_plugin(operator) {
            if !plugins {
                warnings.push(format!("operator {name} needs a plugin that TensorRT {version} brings along"));
            }
        } else if OWN_DOMAINS.contains(&domain.as_str()) {
            let standard = among(NEVER, operator) && domain.is_empty();
            if release > NEWEST_LISTED {
                warnings.push(format!("operator {name} was unknown up to TensorRT 11.1, and {version} may lack it"));
            } else if standard {
                missing.push((name, "no version up to 11.1 does".to_owned()));
            } else if domain.is_empty() {
                missing.push((
                    name,
                    "the ONNX standard has no such operator, and no version a plugin of that name".into(),
                ));
            } else {
                missing.push((name, "no version up to 11.1 has an importer or a plugin of that name".to_owned()));
            }
        } else if !plugins {
            warnings.push(format!("operator {name} needs a plugin that TensorRT {version} brings along"));
        }
    }
    // A plugin library may bring any operator.
    if plugins {
        warnings.extend(missing.drain(..).map(|(name, _)| format!("operator {name} must come from a plugin library")));
    }
    if let Some((_, able)) = missing.first() {
        let names: Vec<_> = missing.iter().map(|(name, _)| name.as_str()).collect();
        let kind = if names.len() == 1 { "operator" } else { "operators" };
        return Err(Refusal::Version {
            what: format!("{kind} {}", names.join(", ")),
            version,
            able: able.clone(),
            hint: "ask for a newer toolchain, replace the operator in the model, or bring a plugin that has it".into(),
        });
    }
    warnings.extend(opset(version, model.opset));
    Ok(warnings)
}

/// The parser tries opsets that it does not know, so they are worth a warning only.
fn opset(version: Version, opset: Option<i64>) -> Option<String> {
    let opset = opset?;
    let release = version.release();
    let documented = OPSETS.iter().find(|(since, until, _)| *since <= release && release <= *until);
    if let Some((.., newest)) = documented.filter(|(.., newest)| opset > *newest) {
        return Some(format!("the model has opset {opset}; TensorRT {version} documents opsets up to {newest}"));
    }
    (release >= OLDEST_OPSET.0 && opset < OLDEST_OPSET.1)
        .then(|| format!("the model has opset {opset}; TensorRT {version} documents opsets from {} on", OLDEST_OPSET.1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Edge;

    fn model(operators: &[(&str, &str)], opset: i64) -> ModelFacts {
        let operators = operators.iter().map(|(d, o)| (((*d).to_owned(), (*o).to_owned()), 1)).collect();
        let inputs = vec![Edge { name: "x".into(), element: Some("fp32"), dims: vec![Some(1), Some(3)] }];
        ModelFacts { opset: Some(opset), operators, inputs, ..ModelFacts::default() }
    }

    fn checked(version: &str, model: &ModelFacts) -> Result<Vec<String>, Refusal> {
        check(version.parse().unwrap(), model, false)
    }

    #[test]
    fn operators_a_version_lacks_are_refused_with_those_that_have_them() {
        let norm = model(&[("", "LayerNormalization"), ("", "Relu")], 17);
        let refusal = checked("8.5.3", &norm).unwrap_err().to_string();
        assert_eq!(refusal, "TensorRT 8.5.3 does not support operator LayerNormalization; 8.6 and newer do");
        assert_eq!(checked("8.6.1", &norm), Ok(vec![]));
        let qlinear = model(&[("", "QLinearConv")], 13);
        assert!(checked("10.1.0", &qlinear).is_err() && checked("11.1.0", &qlinear).is_err());
        assert!(checked("11.2.0", &qlinear).unwrap()[0].contains("may lack it"));
        let attention = model(&[("", "Attention")], 23);
        assert!(checked("10.13.0", &attention).unwrap_err().to_string().ends_with("10.14 and newer do"));
        assert_eq!(checked("10.15.0", &attention), Ok(vec![]));
    }

    #[test]
    fn operators_that_nobody_has_are_named() {
        for (domain, operator, name) in [
            ("", "Frobnicate", "operator Frobnicate"),
            ("com.microsoft", "FusedMatMul", "operator com.microsoft::FusedMatMul"),
            ("ai.onnx.ml", "TreeEnsembleRegressor", "operator ai.onnx.ml::TreeEnsembleRegressor"),
        ] {
            let model = model(&[(domain, operator)], 17);
            for version in ["8.6.1", "10.3.0", "11.1.0"] {
                let refusal = checked(version, &model).unwrap_err().to_string();
                assert!(refusal.contains(name), "{refusal}");
            }
            // A library may bring it, and a newer parser may have learned it.
            assert!(check("10.3.0".parse().unwrap(), &model, true).unwrap()[0].contains(name));
            assert!(checked("11.4.0", &model).unwrap()[0].contains(name));
        }
        // The parser does not ask whose it is: what it has an importer or a plugin for, it takes.
        assert_eq!(
            checked("10.3.0", &model(&[("com.microsoft", "Gelu"), ("com.microsoft", "QuantizeLinear")], 17)),
            Ok(vec![])
        );
        for plugin in ["EfficientNMS_TRT", "CustomQKVToContextPluginDynamic"] {
            assert!(checked("10.3.0", &model(&[("", plugin)], 17)).unwrap()[0].contains(plugin));
        }
    }

    #[test]
    fn what_is_uncertain_is_a_warning() {
        assert!(checked("8.6.1", &model(&[("", "Relu")], 18)).unwrap()[0].contains("opsets up to 17"));
        assert_eq!(checked("11.1.0", &model(&[("", "Relu")], 24)), Ok(vec![]));
        assert!(checked("11.1.0", &model(&[("", "Relu")], 25)).unwrap()[0].contains("up to 24"));
        // Nothing is known of the versions between.
        assert_eq!(checked("10.8.0", &model(&[("", "Relu")], 22)), Ok(vec![]));
        assert!(checked("10.3.0", &model(&[("", "Relu")], 8)).unwrap()[0].contains("from 9 on"));
        assert!(checked("10.3.0", &model(&[("my.ops", "Swirl")], 17)).unwrap()[0].contains("my.ops::Swirl"));
        let mut own = model(&[("local", "Block")], 17);
        own.functions.insert(("local".into(), "Block".into()));
        assert_eq!(checked("9.3.0", &own), Ok(vec![]));
        assert!(checked("8.6.1", &own).is_err());
    }

    #[test]
    fn no_operator_stands_on_two_lists() {
        let learned = LEARNED.iter().map(|(name, _)| *name);
        let all: Vec<&str> =
            ALWAYS.split_ascii_whitespace().chain(NEVER.split_ascii_whitespace()).chain(learned).collect();
        let mut once = all.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once.len(), all.len());
    }
}
