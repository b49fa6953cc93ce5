#!/usr/bin/env python3
"""Quantized forms of an architecture, as ONNX Runtime's own quantizer writes them.

    quantized.py MODEL FOLDER FORM...

Writes FOLDER/<model>-<form>.onnx for each form and prints their names. Forms: qdq and qoperator (calibrated on a few
seeded inputs, unsigned activations, signed weights for each channel), dynamic (products with weights alone). Needs onnx,
numpy and onnxruntime.
"""

import pathlib
import sys
import tempfile

import numpy
import onnx
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

SAMPLES = 4
FORMS = {"qdq": QuantFormat.QDQ, "qoperator": QuantFormat.QOperator}


class Reader(CalibrationDataReader):
    """Seeded inputs of the model's own shapes."""

    def __init__(self, path):
        random = numpy.random.default_rng(1)
        graph = onnx.load(path, load_external_data=False).graph
        known = {tensor.name for tensor in graph.initializer}
        inputs = [value for value in graph.input if value.name not in known]
        self.samples = iter([{value.name: self.values(random, value) for value in inputs} for _ in range(SAMPLES)])

    @staticmethod
    def values(random, value):
        of = value.type.tensor_type
        shape = [max(dim.dim_value, 1) for dim in of.shape.dim]
        if of.elem_type == onnx.TensorProto.FLOAT:
            return random.standard_normal(shape, dtype=numpy.float32)
        return random.integers(0, 2, shape).astype(onnx.helper.tensor_dtype_to_np_dtype(of.elem_type))

    def get_next(self):
        return next(self.samples, None)


def main():
    model, folder, *forms = sys.argv[1:]
    model, folder = pathlib.Path(model), pathlib.Path(folder)
    with tempfile.TemporaryDirectory() as work:
        plain = pathlib.Path(work) / "plain.onnx"
        quant_pre_process(model, plain)
        for form in forms:
            to = folder / f"{model.stem}-{form}.onnx"
            if form == "dynamic":
                quantize_dynamic(plain, to, weight_type=QuantType.QInt8)
            else:
                quantize_static(
                    plain,
                    to,
                    Reader(plain),
                    quant_format=FORMS[form],
                    activation_type=QuantType.QUInt8,
                    weight_type=QuantType.QInt8,
                    per_channel=True,
                )
            print(to.stem)


if __name__ == "__main__":
    main()
