#!/usr/bin/env python3
"""Writes the ONNX backend node cases of the `onnx` package's own case library into a folder.

    generate.py FOLDER

Each case becomes FOLDER/NAME/model.onnx with test_data_set_N/{input,output}_M.pb beside it, and FOLDER/cases.json
lists all of them with what the conformance test needs to know without opening a model: tolerances, opsets, whether it
is a function's expansion, and whether sequence, optional or string types occur. A folder that is complete for this
version of the package is left as it is.
"""

import json
import os
import shutil
import sys

VERSION = "1.23.2"
# test.sh reads this line.
REQUIREMENTS = "onnx==1.23.2 numpy==2.4.6 ml_dtypes==0.6.0"
# Raised when what is written changes, so that older folders are made again.
LAYOUT = 1


def fail(message):
    sys.exit(f"generate.py: {message}\nhint: python3 -m pip install {REQUIREMENTS}")


try:
    import onnx
    from onnx import TypeProto, numpy_helper
    from onnx.backend.test.loader import load_model_tests
except ImportError as error:
    fail(str(error))
if onnx.__version__ != VERSION:
    fail(f"onnx {onnx.__version__} is installed; the committed table is of the cases of {VERSION}")


def exotic(type_proto):
    """Whether a type is a sequence, an optional, a map, or of strings."""
    kind = type_proto.WhichOneof("value")
    if kind == "tensor_type":
        return type_proto.tensor_type.elem_type == onnx.TensorProto.STRING
    return kind is not None


def graph_is_exotic(graph):
    infos = list(graph.input) + list(graph.output) + list(graph.value_info)
    if any(exotic(info.type) for info in infos):
        return True
    if any(tensor.data_type == onnx.TensorProto.STRING for tensor in graph.initializer):
        return True
    for node in graph.node:
        if node.op_type.startswith(("Sequence", "Optional", "String", "SplitToSequence", "ConcatFromSequence")):
            return True
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TYPE_PROTO and exotic(attribute.tp):
                return True
            if attribute.type in (onnx.AttributeProto.STRINGS,) and attribute.name == "value_strings":
                return True
            if attribute.type == onnx.AttributeProto.GRAPH and graph_is_exotic(attribute.g):
                return True
    return False


def write_value(path, info, value):
    """One tensor, sequence or optional, as ONNX's own runner stores them."""
    kind = info.type.WhichOneof("value") if info is not None else "tensor_type"
    if isinstance(value, onnx.TensorProto):
        proto = value
    elif kind == "sequence_type" or isinstance(value, list):
        proto = numpy_helper.from_list(value, info.name)
    elif kind == "optional_type":
        proto = numpy_helper.from_optional(value, info.name)
    elif kind == "map_type" or isinstance(value, dict):
        proto = numpy_helper.from_dict(value, info.name)
    else:
        proto = numpy_helper.from_array(value, info.name)
    with open(path, "wb") as out:
        out.write(proto.SerializeToString())


def write_case(folder, case):
    where = os.path.join(folder, case.name)
    os.makedirs(where)
    model = case.model
    with open(os.path.join(where, "model.onnx"), "wb") as out:
        out.write(model.SerializeToString())
    for number, (inputs, outputs) in enumerate(case.data_sets or []):
        data = os.path.join(where, f"test_data_set_{number}")
        os.makedirs(data)
        for stem, infos, values in (("input", model.graph.input, inputs), ("output", model.graph.output, outputs)):
            for index, value in enumerate(values):
                info = infos[index] if index < len(infos) else None
                write_value(os.path.join(data, f"{stem}_{index}.pb"), info, value)
    opsets = {opset.domain: opset.version for opset in model.opset_import}
    operators = sorted({node.op_type for node in model.graph.node})
    return {
        "name": case.name,
        "rtol": case.rtol,
        "atol": case.atol,
        "opset": opsets.get("", opsets.get("ai.onnx", 0)),
        "default_domain": set(opsets) <= {"", "ai.onnx"}
        and all(node.domain in ("", "ai.onnx") for node in model.graph.node),
        "expanded": "_expanded" in case.name,
        "exotic": graph_is_exotic(model.graph),
        "operators": operators,
        "data_sets": len(case.data_sets or []),
    }


def main():
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    folder = sys.argv[1]
    stamp = {"onnx": VERSION, "layout": LAYOUT}
    index = os.path.join(folder, "cases.json")
    try:
        with open(index, encoding="utf-8") as known:
            if json.load(known)["stamp"] == stamp:
                return
    except (OSError, ValueError, KeyError):
        pass
    staged = f"{folder}.{os.getpid()}"
    shutil.rmtree(staged, ignore_errors=True)
    os.makedirs(staged)
    cases = [write_case(staged, case) for case in load_model_tests(kind="node")]
    cases.sort(key=lambda case: case["name"])
    with open(os.path.join(staged, "cases.json"), "w", encoding="utf-8") as out:
        json.dump({"stamp": stamp, "cases": cases}, out, indent=1)
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(staged, folder)
    print(f"{len(cases)} cases in {folder}")


main()
