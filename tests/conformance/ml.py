#!/usr/bin/env python3
"""Writes cases of `ai.onnx.ml` with what ONNX Runtime answers.

    ml.py [FOLDER]     backends/cpu/tests/onnx_cases/ml by default

Two kinds of models: small ones of every operator and form, drawn from a seed, and models of scikit-learn, XGBoost and
LightGBM, trained on generated data and exported by their converters. The layout is that of generate.py. The committed
cases are of onnxruntime 1.31.1, onnx 1.23.2, numpy 2.4.6, scikit-learn 1.9.1, skl2onnx 1.20.0, onnxmltools 1.16.0,
xgboost 3.2.0 and lightgbm 4.7.0. The converter refuses the histogram boosting of this scikit-learn.
"""

import json
import os
import shutil
import sys
import warnings

import numpy as np
import onnxruntime
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper

HERE = os.path.dirname(os.path.abspath(__file__))
FOLDER = sys.argv[1] if len(sys.argv) > 1 else os.path.join(HERE, "../../backends/cpu/tests/onnx_cases/ml")
RNG = np.random.default_rng(23)
CASES = []
# No exported model may be larger.
MOST_BYTES = 100_000


def write(name, model, inputs, answers, atol):
    data = os.path.join(FOLDER, name, "test_data_set_0")
    os.makedirs(data)
    serialized = model.SerializeToString()
    assert len(serialized) <= MOST_BYTES, (name, len(serialized))
    with open(os.path.join(FOLDER, name, "model.onnx"), "wb") as out:
        out.write(serialized)
    for stem, values in (("input", inputs), ("output", answers)):
        for index, value in enumerate(values):
            with open(os.path.join(data, f"{stem}_{index}.pb"), "wb") as out:
                out.write(numpy_helper.from_array(np.asarray(value)).SerializeToString())
    operators = sorted({node.op_type for node in model.graph.node})
    CASES.append({"name": name, "rtol": 1e-4, "atol": atol, "opset": 17, "default_domain": False, "expanded": False,
                  "exotic": False, "operators": operators, "data_sets": 1})


def add(name, model, inputs, atol=1e-5):
    """Maps that ZipMap would make are left out: the answers are those of the tensor it takes."""
    names = [value.name for value in model.graph.input]
    for value, array in zip(model.graph.input, inputs):
        for dim, size in zip(value.type.tensor_type.shape.dim, array.shape):
            dim.dim_value = size
    asked = h.make_model(model.graph, opset_imports=model.opset_import)
    asked.ir_version = model.ir_version
    zipped = {node.output[0]: node.input[0] for node in asked.graph.node if node.op_type == "ZipMap"}
    for output in asked.graph.output:
        if output.name in zipped:
            output.CopyFrom(h.make_tensor_value_info(zipped[output.name], T.FLOAT, None))
    for node in [node for node in asked.graph.node if node.op_type == "ZipMap"]:
        asked.graph.node.remove(node)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(asked.SerializeToString(), options, providers=["CPUExecutionProvider"])
    write(name, model, inputs, session.run(None, dict(zip(names, inputs))), atol)


def case(name, op, inputs, outputs=1, version=3, **attributes):
    names = [f"i{index}" for index in range(len(inputs))]
    results = [f"o{index}" for index in range(outputs)]
    attributes = {key: value for key, value in attributes.items() if value is not None}
    node = h.make_node(op, names, results, name=op, domain="ai.onnx.ml", **attributes)
    infos = [h.make_tensor_value_info(name, h.np_dtype_to_tensor_dtype(value.dtype), value.shape) for name, value in zip(names, inputs)]
    graph = h.make_graph([node], name, infos, [h.make_empty_tensor_value_info(result) for result in results])
    model = h.make_model(graph, opset_imports=[h.make_opsetid("", 17), h.make_opsetid("ai.onnx.ml", version)], producer_name="")
    model.ir_version = 10
    add(name, model, inputs, 2e-6)


def f(*shape):
    return (RNG.standard_normal(shape) * 0.7).astype(np.float32)


MODES = ["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ"]


def forest(stem, trees, depth, features, modes, targets, weight, tracks=False, whole=False):
    """Attributes of random trees; `targets(tree)` are those of its leaves. Thresholds are on a grid, as the rows are."""
    nodes = {key: [] for key in ("treeids", "nodeids", "featureids", "modes", "values", "truenodeids", "falsenodeids", "missing_value_tracks_true")}
    leaves = {key: [] for key in ("treeids", "nodeids", "ids", "weights")}

    def grow(tree, level):
        own = grow.next
        grow.next += 1
        leaf = level == depth or (level > 1 and RNG.random() < 0.2)
        place = len(nodes["treeids"])
        for key, value in (("treeids", tree), ("nodeids", own), ("featureids", 0 if leaf else int(RNG.integers(features))),
                           ("modes", "LEAF" if leaf else str(RNG.choice(modes))), ("values", 0.0 if leaf else float(RNG.integers(-4, 5)) / 4),
                           ("truenodeids", 0), ("falsenodeids", 0), ("missing_value_tracks_true", int(RNG.integers(2)) if tracks and not leaf else 0)):
            nodes[key].append(value)
        if leaf:
            for target in targets(tree):
                for key, value in (("treeids", tree), ("nodeids", own), ("ids", target), ("weights", weight())):
                    leaves[key].append(value)
            return own
        nodes["truenodeids"][place] = grow(tree, level + 1)
        nodes["falsenodeids"][place] = grow(tree, level + 1)
        return own

    for tree in range(trees):
        grow.next = 0
        grow(tree, 0)
    attributes = {f"nodes_{key}": value for key, value in nodes.items()}
    if not tracks:
        del attributes["nodes_missing_value_tracks_true"]
    attributes.update({f"{stem}_{key}": value for key, value in leaves.items()})
    return attributes


def grid(rows, features, missing=False):
    values = (RNG.integers(-6, 7, (rows, features)) / 4).astype(np.float32)
    if missing:
        values[RNG.random(values.shape) < 0.2] = np.nan
    return values


def mixed():
    return float(np.float32(RNG.standard_normal()))


def positive():
    return float(np.float32(RNG.random() / 4))


def tree_cases():
    one = lambda tree: [0]
    for mode in MODES:
        case(f"tree_{mode.lower()}", "TreeEnsembleRegressor", [grid(33, 4)], n_targets=1, **forest("target", 4, 4, 4, [mode], one, mixed))
    case("tree_all_modes", "TreeEnsembleRegressor", [grid(40, 4)], n_targets=1, **forest("target", 6, 5, 4, MODES, one, mixed))
    case("tree_missing", "TreeEnsembleRegressor", [grid(40, 4, True)], n_targets=1, **forest("target", 6, 5, 4, MODES, one, mixed, tracks=True))
    case("tree_missing_untracked", "TreeEnsembleRegressor", [grid(40, 4, True)], n_targets=1, **forest("target", 6, 5, 4, MODES, one, mixed))
    for function in ("SUM", "AVERAGE", "MIN", "MAX"):
        case(f"tree_{function.lower()}", "TreeEnsembleRegressor", [grid(20, 4)], n_targets=3, aggregate_function=function, base_values=[0.5, -1.0, 2.0],
             **forest("target", 5, 4, 4, MODES[:2], lambda tree: [0, 1, 2], mixed))
        case(f"tree_{function.lower()}_one", "TreeEnsembleRegressor", [grid(20, 4)], n_targets=1, aggregate_function=function, base_values=[0.25],
             **forest("target", 5, 4, 4, MODES[:2], one, mixed))
        case(f"tree_{function.lower()}_sparse", "TreeEnsembleRegressor", [grid(20, 4)], n_targets=3, aggregate_function=function,
             **forest("target", 4, 3, 4, MODES[:1], lambda tree: [int(RNG.integers(3))], mixed))
    for transform in ("LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO", "PROBIT"):
        weight = (lambda: float(np.float32(0.01 + RNG.random() / 40))) if transform == "PROBIT" else mixed
        case(f"tree_transform_{transform.lower()}", "TreeEnsembleRegressor", [grid(20, 4)], n_targets=3, post_transform=transform,
             **forest("target", 4, 3, 4, MODES[:1], lambda tree: [0, 1, 2], weight))
    case("tree_one_row", "TreeEnsembleRegressor", [grid(1, 4)], n_targets=1, **forest("target", 37, 5, 4, MODES[:2], one, mixed))
    case("tree_many_rows", "TreeEnsembleRegressor", [grid(301, 4)], n_targets=1, **forest("target", 9, 5, 4, MODES[:2], one, mixed))
    case("tree_double", "TreeEnsembleRegressor", [grid(20, 4).astype(np.float64)], n_targets=1, **forest("target", 4, 4, 4, MODES[:2], one, mixed))
    case("tree_version_1", "TreeEnsembleRegressor", [grid(20, 4)], version=1, n_targets=1, **forest("target", 4, 4, 4, MODES[:2], one, mixed))
    # Two classes that one column of weights stands for, by sign or as a probability, and all base values.
    for label, weight in (("mixed", mixed), ("positive", positive)):
        for own in (0, 1):
            for base in (None, [0.125], [0.25, -0.125]):
                for transform in ("NONE", "LOGISTIC", "SOFTMAX"):
                    if transform == "SOFTMAX" and base:
                        continue
                    case(f"classes_{label}_{own}_{len(base or [])}_{transform.lower()}", "TreeEnsembleClassifier", [grid(16, 4)], outputs=2, post_transform=transform,
                         base_values=base, classlabels_int64s=[3, 7], **forest("class", 3, 3, 4, MODES[:2], lambda tree: [own], weight))
    for transform in ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"):
        for base in (None, [0.5, 0.25, -0.5]):
            case(f"classes_three_{transform.lower()}_{len(base or [])}", "TreeEnsembleClassifier", [grid(16, 4)], outputs=2, post_transform=transform,
                 base_values=base, classlabels_int64s=[5, -2, 9], **forest("class", 6, 3, 4, MODES[:1], lambda tree: [tree % 3], mixed))
    case("classes_sparse", "TreeEnsembleClassifier", [grid(24, 4)], outputs=2, classlabels_int64s=[5, -2, 9],
         **forest("class", 2, 3, 4, MODES[:1], lambda tree: [int(RNG.integers(3))], mixed))
    case("classes_two_sparse", "TreeEnsembleClassifier", [grid(24, 4)], outputs=2, classlabels_int64s=[0, 1],
         **forest("class", 2, 3, 4, MODES[:1], lambda tree: [int(RNG.integers(2))], mixed))
    case("classes_two_both", "TreeEnsembleClassifier", [grid(24, 4)], outputs=2, classlabels_int64s=[0, 1],
         **forest("class", 4, 3, 4, MODES[:1], lambda tree: [0, 1], positive))
    case("classes_ties", "TreeEnsembleClassifier", [grid(24, 4)], outputs=2, classlabels_int64s=[4, 5, 6],
         **forest("class", 4, 2, 4, MODES[:1], lambda tree: [0, 1, 2], lambda: float(RNG.integers(2))))
    case("classes_int", "TreeEnsembleClassifier", [RNG.integers(-3, 4, (20, 4)).astype(np.int32)], outputs=2, classlabels_int64s=[4, 5, 6],
         **forest("class", 4, 3, 4, MODES[:1], lambda tree: [0, 1, 2], mixed))
    case("classes_double", "TreeEnsembleClassifier", [grid(20, 4).astype(np.float64)], outputs=2, classlabels_int64s=[4, 5, 6],
         **forest("class", 4, 3, 4, MODES[:1], lambda tree: [0, 1, 2], mixed))


def model_cases():
    x = f(12, 5)
    case("linear_regressor", "LinearRegressor", [x], coefficients=f(10), intercepts=f(2), targets=2)
    case("linear_regressor_bare", "LinearRegressor", [x], coefficients=f(5))
    case("linear_regressor_softmax", "LinearRegressor", [x], coefficients=f(15), intercepts=f(3), targets=3, post_transform="SOFTMAX")
    for transform in ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"):
        case(f"linear_three_{transform.lower()}", "LinearClassifier", [x], outputs=2, coefficients=f(15), intercepts=f(3), classlabels_ints=[2, 4, 6], post_transform=transform)
        case(f"linear_two_{transform.lower()}", "LinearClassifier", [x], outputs=2, coefficients=f(10), intercepts=f(2), classlabels_ints=[2, 4], post_transform=transform)
        case(f"linear_one_{transform.lower()}", "LinearClassifier", [x], outputs=2, coefficients=f(5), intercepts=f(1), classlabels_ints=[2, 4], post_transform=transform)
    case("linear_int", "LinearClassifier", [RNG.integers(-3, 4, (6, 5))], outputs=2, coefficients=f(15), intercepts=f(3), classlabels_ints=[0, 1, 2])
    for kernel, parameters in (("LINEAR", [0.3, 0.1, 3.0]), ("POLY", [0.3, 0.1, 3.0]), ("RBF", [0.3, 0.1, 3.0]), ("SIGMOID", [0.3, 0.1, 3.0])):
        name = kernel.lower()
        case(f"svr_{name}", "SVMRegressor", [x], coefficients=f(6), kernel_params=parameters, kernel_type=kernel, n_supports=6, rho=f(1), support_vectors=f(30))
        case(f"svc_{name}", "SVMClassifier", [x], outputs=2, coefficients=f(14), kernel_params=parameters, kernel_type=kernel, rho=f(3), support_vectors=f(35),
             vectors_per_class=[3, 2, 2], classlabels_ints=[7, 8, 9])
        case(f"svc_two_{name}", "SVMClassifier", [x], outputs=2, coefficients=f(5), kernel_params=parameters, kernel_type=kernel, rho=f(1), support_vectors=f(25),
             vectors_per_class=[3, 2], classlabels_ints=[7, 8])
    case("svr_one_class", "SVMRegressor", [x], coefficients=f(6), kernel_params=[0.3, 0.0, 3.0], kernel_type="RBF", n_supports=6, rho=f(1), support_vectors=f(30), one_class=1)
    case("svr_linear_form", "SVMRegressor", [x], coefficients=f(5), kernel_params=[0.3, 0.0, 3.0], kernel_type="LINEAR", n_supports=0, rho=f(1))
    for labels, pairs, vectors in (([7, 8, 9], 3, [3, 2, 2]), ([1, 2], 1, [4, 3])):
        case(f"svc_probability_{len(labels)}", "SVMClassifier", [x], outputs=2, coefficients=f((len(labels) - 1) * 7), kernel_params=[0.3, 0.0, 3.0], kernel_type="RBF",
             rho=f(pairs), support_vectors=f(35), vectors_per_class=vectors, classlabels_ints=labels, prob_a=-np.abs(f(pairs)) - 0.5, prob_b=f(pairs))
    case("svc_linear_form", "SVMClassifier", [x], outputs=2, coefficients=f(15), kernel_params=[0.3, 0.0, 3.0], kernel_type="LINEAR", rho=f(1), classlabels_ints=[7, 8, 9])
    case("svc_linear_form_softmax", "SVMClassifier", [x], outputs=2, coefficients=f(15), kernel_params=[0.3, 0.0, 3.0], kernel_type="LINEAR", rho=f(1), classlabels_ints=[7, 8, 9], post_transform="SOFTMAX")
    case("svc_transform", "SVMClassifier", [x], outputs=2, coefficients=f(5), kernel_params=[0.3, 0.0, 3.0], kernel_type="RBF", rho=f(1), support_vectors=f(25),
         vectors_per_class=[3, 2], classlabels_ints=[7, 8], post_transform="LOGISTIC")


def feature_cases():
    x = f(6, 4)
    case("scaler", "Scaler", [x], offset=f(4), scale=f(4))
    case("scaler_one", "Scaler", [x], offset=f(1), scale=f(1))
    case("scaler_int", "Scaler", [RNG.integers(-9, 9, (6, 4))], offset=f(4), scale=f(4))
    case("scaler_double", "Scaler", [x.astype(np.float64)], offset=f(4), scale=f(4))
    zero = x.copy()
    zero[2] = 0
    for norm in ("MAX", "L1", "L2"):
        case(f"normalizer_{norm.lower()}", "Normalizer", [zero], norm=norm)
    case("normalizer_int", "Normalizer", [RNG.integers(-9, 9, (6, 4))], norm="L1")
    case("normalizer_list", "Normalizer", [x[0]], norm="L2")
    case("binarizer", "Binarizer", [x], threshold=0.25)
    holes = x.copy()
    holes[RNG.random(x.shape) < 0.4] = np.nan
    case("imputer_nan", "Imputer", [holes], imputed_value_floats=f(4), replaced_value_float=float("nan"))
    case("imputer_nan_one", "Imputer", [holes], imputed_value_floats=f(1), replaced_value_float=float("nan"))
    case("imputer_value", "Imputer", [grid(6, 4)], imputed_value_floats=f(4), replaced_value_float=0.25)
    case("imputer_int", "Imputer", [RNG.integers(0, 3, (6, 4))], imputed_value_int64s=[7, 8, 9, 10], replaced_value_int64=1)
    case("one_hot", "OneHotEncoder", [RNG.integers(0, 5, (6, 2))], cats_int64s=[4, 1, 2], zeros=1)
    case("one_hot_float", "OneHotEncoder", [RNG.integers(0, 5, 6).astype(np.float32) + np.float32(0.5)], cats_int64s=[4, 1, 2], zeros=1)
    case("one_hot_strict", "OneHotEncoder", [RNG.integers(0, 3, (6, 1))], cats_int64s=[2, 1, 0], zeros=0)
    case("labels_ints", "LabelEncoder", [RNG.integers(0, 5, (6, 2))], keys_int64s=[4, 1, 2, 4], values_int64s=[10, 20, 30, 40], default_int64=-7)
    case("labels_floats", "LabelEncoder", [grid(6, 3)], keys_floats=[0.5, -0.25, 1.0], values_floats=[10.5, 20.5, 30.5], default_float=0.125)
    case("labels_int_float", "LabelEncoder", [RNG.integers(0, 5, 6)], keys_int64s=[4, 1, 2], values_floats=[0.5, 1.5, 2.5])
    case("labels_nan", "LabelEncoder", [holes], version=4, keys_floats=[float("nan"), 0.0], values_int64s=[5, 6], default_int64=9)
    case("labels_version_2", "LabelEncoder", [RNG.integers(0, 5, 6)], version=2, keys_int64s=[4, 1, 2], values_floats=[0.5, 1.5, 2.5], default_float=9.0)
    case("extractor", "ArrayFeatureExtractor", [x, np.array([3, 0, 3])])
    case("extractor_list", "ArrayFeatureExtractor", [x[0], np.array([3, 0])])
    case("vectorizer", "FeatureVectorizer", [x, f(6, 2), f(6, 3)], inputdimensions=[4, 3, 3])
    case("vectorizer_cut", "FeatureVectorizer", [x, f(6, 3)], inputdimensions=[2, 3])


def trained_cases():
    """Estimators by their converters; the data and every model come from seeds."""
    import lightgbm
    import xgboost
    from onnxmltools.convert import convert_lightgbm, convert_xgboost
    from onnxmltools.convert.common.data_types import FloatTensorType as MlFloats
    from skl2onnx import to_onnx
    from sklearn import compose, discriminant_analysis, ensemble, feature_selection, impute, linear_model, mixture, naive_bayes
    from sklearn import neighbors, neural_network, pipeline, preprocessing, svm, tree, cluster, decomposition

    warnings.filterwarnings("ignore")
    rows = RNG.standard_normal((240, 6)).astype(np.float32)
    line = rows @ RNG.standard_normal(6) + rows[:, 0] * rows[:, 1]
    two = (line > 0).astype(np.int64)
    three = np.digitize(line, [-1.0, 1.0]).astype(np.int64)
    both = np.stack([line, rows[:, 2]], axis=1).astype(np.float32)
    asked = rows[:17]

    def sklearn(name, model, target=None, x=rows, given=asked, opset=None, **options):
        model.fit(x) if target is None else model.fit(x, target)
        options = {id(model): options} if options else None
        add(f"sklearn_{name}", to_onnx(model, x[:1], options=options, target_opset={"": 17, "ai.onnx.ml": 3}), [given])

    sklearn("forest_two", ensemble.RandomForestClassifier(8, max_depth=4, random_state=0), two)
    sklearn("forest_three", ensemble.RandomForestClassifier(8, max_depth=4, random_state=0), three, zipmap=False)
    sklearn("forest_regressor", ensemble.RandomForestRegressor(8, max_depth=4, random_state=0), line)
    sklearn("forest_two_targets", ensemble.RandomForestRegressor(5, max_depth=4, random_state=0), both)
    sklearn("extra_trees", ensemble.ExtraTreesClassifier(8, max_depth=4, random_state=0), three)
    sklearn("boosting_two", ensemble.GradientBoostingClassifier(n_estimators=10, random_state=0), two)
    sklearn("boosting_three", ensemble.GradientBoostingClassifier(n_estimators=6, random_state=0), three)
    sklearn("boosting_regressor", ensemble.GradientBoostingRegressor(n_estimators=10, random_state=0), line)
    holes = rows.copy()
    holes[RNG.random(rows.shape) < 0.1] = np.nan
    sklearn("ada_boost", ensemble.AdaBoostClassifier(n_estimators=5, random_state=0), two)
    sklearn("bagging", ensemble.BaggingClassifier(tree.DecisionTreeClassifier(max_depth=3), 3, random_state=0), three)
    sklearn("isolation", ensemble.IsolationForest(n_estimators=5, max_samples=32, random_state=0))
    sklearn("tree_two", tree.DecisionTreeClassifier(max_depth=5, random_state=0), two)
    sklearn("tree_regressor", tree.DecisionTreeRegressor(max_depth=5, random_state=0), line)
    sklearn("logistic_two", linear_model.LogisticRegression(), two)
    sklearn("logistic_three", linear_model.LogisticRegression(), three, zipmap=False)
    sklearn("linear", linear_model.LinearRegression(), line)
    sklearn("ridge_two_targets", linear_model.Ridge(), both)
    sklearn("elastic", linear_model.ElasticNet(alpha=0.1), line)
    sklearn("sgd", linear_model.SGDClassifier(loss="log_loss", random_state=0), three)
    sklearn("perceptron", linear_model.Perceptron(random_state=0), three)
    sklearn("discriminant", discriminant_analysis.LinearDiscriminantAnalysis(), three)
    sklearn("quadratic", discriminant_analysis.QuadraticDiscriminantAnalysis(), three)
    sklearn("svc", svm.SVC(kernel="rbf", random_state=0), three)
    sklearn("svc_two", svm.SVC(kernel="poly", random_state=0), two)
    sklearn("svc_probability", svm.SVC(probability=True, random_state=0), three)
    sklearn("svr", svm.SVR(), line)
    sklearn("linear_svc", svm.LinearSVC(random_state=0), three)
    sklearn("one_class", svm.OneClassSVM())
    sklearn("naive_bayes", naive_bayes.GaussianNB(), three)
    sklearn("neighbors", neighbors.KNeighborsClassifier(3), two, x=rows, given=asked)
    sklearn("neighbors_regressor", neighbors.KNeighborsRegressor(3), line)
    sklearn("network", neural_network.MLPClassifier(hidden_layer_sizes=(8,), max_iter=60, random_state=0), three)
    sklearn("network_regressor", neural_network.MLPRegressor(hidden_layer_sizes=(8,), max_iter=60, random_state=0), line)
    sklearn("mixture", mixture.GaussianMixture(3, random_state=0))
    sklearn("k_means", cluster.KMeans(3, n_init=2, random_state=0))
    sklearn("components", decomposition.PCA(3))
    sklearn("standard", preprocessing.StandardScaler())
    sklearn("min_max", preprocessing.MinMaxScaler())
    sklearn("robust", preprocessing.RobustScaler())
    sklearn("normal", preprocessing.Normalizer("l2"))
    sklearn("binarize", preprocessing.Binarizer(threshold=0.1))
    sklearn("polynomial", preprocessing.PolynomialFeatures(2), x=rows[:, :3], given=asked[:, :3])
    sklearn("bins", preprocessing.KBinsDiscretizer(4, encode="ordinal", quantile_method="averaged_inverted_cdf"))
    sklearn("impute", impute.SimpleImputer(strategy="median"), x=holes, given=holes[:17])
    sklearn("select", feature_selection.SelectKBest(k=3), three)
    kinds = RNG.integers(0, 4, (240, 2)).astype(np.int64)
    sklearn("one_hot", preprocessing.OneHotEncoder(handle_unknown="ignore", sparse_output=False), x=kinds, given=kinds[:17])
    sklearn("ordinal", preprocessing.OrdinalEncoder(), x=kinds, given=kinds[:17])
    sklearn("pipeline", pipeline.make_pipeline(impute.SimpleImputer(), preprocessing.StandardScaler(), linear_model.LogisticRegression()), two, x=holes, given=holes[:17])
    columns = compose.ColumnTransformer([("a", preprocessing.StandardScaler(), [0, 1, 2]), ("b", preprocessing.MinMaxScaler(), [3, 4])])
    sklearn("columns", pipeline.make_pipeline(columns, ensemble.GradientBoostingClassifier(n_estimators=4, random_state=0)), three)
    sklearn("voting", ensemble.VotingClassifier([("a", linear_model.LogisticRegression()), ("b", naive_bayes.GaussianNB())], voting="soft", flatten_transform=False), three)
    sklearn("stacking", ensemble.StackingRegressor([("a", linear_model.Ridge()), ("b", tree.DecisionTreeRegressor(max_depth=3))]), line)

    def boosted(name, convert, model, target, x=rows):
        model.fit(x, target)
        add(name, convert(model, initial_types=[("x", MlFloats([None, 6]))], target_opset=15), [x[:17]])

    settings = {"n_estimators": 8, "max_depth": 4, "random_state": 0}
    boosted("xgboost_two", convert_xgboost, xgboost.XGBClassifier(**settings), two)
    boosted("xgboost_three", convert_xgboost, xgboost.XGBClassifier(**settings), three)
    boosted("xgboost_missing", convert_xgboost, xgboost.XGBClassifier(**settings), two, x=holes)
    boosted("xgboost_regressor", convert_xgboost, xgboost.XGBRegressor(**settings), line)
    boosted("xgboost_forest", convert_xgboost, xgboost.XGBRFRegressor(**settings), line)
    settings = {"n_estimators": 8, "num_leaves": 12, "random_state": 0, "verbose": -1, "n_jobs": 1, "deterministic": True}
    boosted("lightgbm_two", convert_lightgbm, lightgbm.LGBMClassifier(**settings), two)
    boosted("lightgbm_three", convert_lightgbm, lightgbm.LGBMClassifier(**settings), three)
    boosted("lightgbm_missing", convert_lightgbm, lightgbm.LGBMClassifier(**settings), two, x=holes)
    boosted("lightgbm_regressor", convert_lightgbm, lightgbm.LGBMRegressor(**settings), line)


def main():
    shutil.rmtree(FOLDER, ignore_errors=True)
    os.makedirs(FOLDER)
    tree_cases()
    model_cases()
    feature_cases()
    trained_cases()
    with open(os.path.join(FOLDER, "cases.json"), "w", encoding="utf-8") as out:
        json.dump({"onnxruntime": onnxruntime.__version__, "cases": CASES}, out, indent=1)


main()
