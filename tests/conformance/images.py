#!/usr/bin/env python3
"""Writes cases of standard operators that sample, resize and quantize, with what ONNX Runtime answers: forms that the
library of backend cases has not.

    images.py [FOLDER]     backends/cpu/tests/onnx_cases/images by default

The layout is that of generate.py. Needs onnx, numpy and onnxruntime; the committed cases are of onnxruntime 1.31.1.
"""

import itertools
import os
import sys

import contrib
import numpy as np
from contrib import HERE, RNG, case, f, one

contrib.FOLDER = sys.argv[1] if len(sys.argv) > 1 else os.path.join(HERE, "../../backends/cpu/tests/onnx_cases/images")


def sampled():
    modes, paddings = ["nearest", "linear", "cubic"], ["zeros", "border", "reflection"]
    for mode, padding, corners in itertools.product(modes, paddings, [0, 1]):
        grid = (RNG.random((2, 3, 4, 2)) * 4 - 2).astype(np.float32)
        name = f"grid_{mode}_{padding}{'_corners' if corners else ''}"
        case(name, "GridSample", [f(2, 3, 5, 4), grid], variable=2, domain="", version=20, mode=mode, padding_mode=padding,
             align_corners=corners)
    grid = (RNG.random((1, 2, 3, 2, 3)) * 3 - 1.5).astype(np.float32)
    case("grid_volume", "GridSample", [f(1, 2, 3, 4, 5), grid], variable=2, domain="", version=20, mode="linear")


def resized():
    def resize(name, shape, scales=None, sizes=None, roi=None, **attributes):
        given = [f(*shape), roi, None if scales is None else np.array(scales, np.float32),
                 None if sizes is None else np.array(sizes, np.int64)]
        case(f"resize_{name}", "Resize", given, domain="", version=19, **attributes)

    resize("cubic_up", [1, 2, 4, 5], scales=[1, 1, 2.5, 1.6], mode="cubic")
    resize("cubic_down", [1, 2, 9, 8], sizes=[1, 2, 4, 3], mode="cubic")
    resize("cubic_steep", [1, 1, 5, 5], sizes=[1, 1, 8, 7], mode="cubic", cubic_coeff_a=-0.5)
    resize("cubic_outside", [1, 1, 5, 5], sizes=[1, 1, 8, 7], mode="cubic", exclude_outside=1)
    resize("cubic_corners", [1, 1, 5, 5], sizes=[1, 1, 8, 3], mode="cubic", coordinate_transformation_mode="align_corners")
    resize("cubic_pytorch", [1, 1, 5, 5], sizes=[1, 1, 8, 1], mode="cubic", coordinate_transformation_mode="pytorch_half_pixel")
    resize("smooth_linear", [1, 2, 16, 13], sizes=[1, 2, 5, 6], mode="linear", antialias=1)
    resize("smooth_up", [1, 2, 4, 5], sizes=[1, 2, 9, 7], mode="linear", antialias=1)
    resize("smooth_cubic", [1, 2, 16, 13], sizes=[1, 2, 5, 6], mode="cubic", antialias=1)
    crop = {"coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 2.5}
    region = np.array([0, 0, 0.3, -0.2, 1, 1, 1.2, 0.8], np.float32)
    resize("crop_linear", [1, 2, 6, 5], sizes=[1, 2, 4, 7], roi=region, mode="linear", **crop)
    resize("crop_nearest", [1, 2, 6, 5], sizes=[1, 2, 4, 7], roi=region, mode="nearest", **crop)
    resize("symmetric", [1, 2, 6, 5], scales=[1, 1, 0.7, 1.3], mode="linear", coordinate_transformation_mode="half_pixel_symmetric")
    resize("kept", [1, 1, 6, 4], sizes=[9, 9], mode="linear", axes=[2, 3], keep_aspect_ratio_policy="not_larger")


def regions():
    x = f(2, 3, 8, 9)
    boxes = np.array([[0.5, 1, 6, 5], [2, 2, 3.5, 7.5], [-2, -1, 12, 10], [4, 4, 4.2, 4.1]], np.float32)
    images = np.array([0, 1, 1, 0], np.int64)
    for mode, samples in itertools.product(["avg", "max"], [0, 2]):
        for transformation in ["half_pixel", "output_half_pixel"]:
            case(f"roi_{mode}_{samples}_{transformation}", "RoiAlign", [x, boxes, images], variable=3, domain="", version=16,
                 mode=mode, sampling_ratio=samples, output_height=2, output_width=3, spatial_scale=0.75,
                 coordinate_transformation_mode=transformation)
    case("pool_places", "MaxPool", [f(2, 2, 7, 6)], outputs=2, domain="", kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1],
         dilations=[1, 2])
    case("pool_places_volume", "MaxPool", [f(1, 2, 4, 5, 6)], outputs=2, domain="", kernel_shape=[2, 2, 3], storage_order=1)
    places = np.array([[[[0, 5], [15, 10]]]], np.int64)
    case("unpool", "MaxUnpool", [f(1, 1, 2, 2), places], variable=2, domain="", kernel_shape=[2, 2], strides=[2, 2])


def bits():
    nibbles = RNG.integers(-8, 8, (4, 6))
    packed = contrib.h.make_tensor("i0", contrib.T.INT4, nibbles.shape, nibbles.flatten())
    weights = contrib.numpy_helper.to_array(packed)
    scales = np.abs(f(4, 3)) + 0.1
    case("blocks_of_four_bits", "DequantizeLinear", [weights, scales.astype(np.float32)], variable=0, domain="", version=21, axis=1,
         block_size=2)
    case("quantized_blocks", "QuantizeLinear", [f(4, 6) * 20, scales.astype(np.float32), RNG.integers(-9, 9, (4, 3)).astype(np.int8)],
         domain="", version=21, axis=1, block_size=2)
    packed = RNG.integers(0, 256, (5, 2, 16)).astype(np.uint8)
    case("matmul_of_four_bits", "MatMulNBits", [f(3, 40), packed, np.abs(f(10)), contrib.u8(5)], K=40, N=5, bits=4, block_size=32)
    case("matmul_of_four_bits_centred", "MatMulNBits", [f(2, 3, 40), packed, np.abs(f(10))], K=40, N=5, bits=4, block_size=32)
    case("dynamic_matmul", "DynamicQuantizeMatMul", [f(3, 8), contrib.i8(8, 5), np.abs(f(5)), contrib.i8(5), f(5)])
    narrow = np.array([0, 0.1, -0.3, 1.06, 17, -300, 463, 1e9, -1e9, 2.0**-9, 3 * 2.0**-10], np.float32)
    for to in ["FLOAT8E4M3FN"]:
        for saturate in [0, 1]:
            case(f"cast_{to.lower()}_{saturate}", "Cast", [narrow], domain="", version=19, to=getattr(contrib.T, to), saturate=saturate)


def main():
    contrib.begin()
    sampled()
    resized()
    regions()
    bits()
    case("deformed", "DeformConv", [f(2, 4, 6, 5), f(6, 2, 3, 3), f(2, 36, 3, 5), f(6), np.abs(f(2, 18, 3, 5))], variable=5, domain="",
         version=19, group=2, offset_group=2, strides=[2, 1], pads=[1, 1, 1, 1])
    case("affine", "AffineGrid", [f(2, 2, 3), np.array([2, 1, 4, 5], np.int64)], domain="", version=20, align_corners=1)
    case("affine_volume", "AffineGrid", [f(1, 3, 4), np.array([1, 1, 2, 3, 4], np.int64)], domain="", version=20)
    case("shift", "BitShift", [RNG.integers(0, 200, 5).astype(np.uint8), one([1, 2, 3, 7, 0], np.uint8)], variable=2, domain="",
         direction="LEFT")
    contrib.end()


main()
