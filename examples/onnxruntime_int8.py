"""Quantises an exported model to int8. Every second image calibrates it; the others compare it with float32.

FP32.onnx is a file of `cpvt_mm export`: python examples/onnxruntime_int8.py FP32.onnx INT8.onnx IMAGE_FOLDER

`cpvt_mm test CONFIG INT8.onnx` measures the AP or mIoU of a detector or segmentor.
"""
import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter as now
from types import SimpleNamespace

import numpy as np
import onnx
from onnxruntime import InferenceSession
from onnxruntime.quantization import quant_pre_process, quantize_static

from openmmlab_tools.files import list_images
from openmmlab_tools.pictures.images import read_image

source, target, folder = map(Path, sys.argv[1:])
float32 = InferenceSession(source)
mean, std = (np.float32(json.loads(float32.get_modelmeta().custom_metadata_map[key])) for key in ('mean', 'std'))
feeds = [{'image': ((read_image(path) - mean) / std).transpose(2, 0, 1)[None]} for path in list_images(folder)]
calibration = iter(feeds[::2])
with TemporaryDirectory() as temporary:
    prepared = f'{temporary}/prepared.onnx'
    quant_pre_process(source, prepared, skip_symbolic_shape=True)  # it fails for detectors
    graph = onnx.load(prepared).graph
    weights = {tensor.name for tensor in graph.initializer}
    # Attention, norms, GELUs, PEGs and outputs of products stay float32, because int8 is slower or less accurate there.
    kinds = ['MatMul', 'Gemm']
    products = [node.name for node in graph.node if node.op_type in kinds and node.input[1] in weights]
    quantize_static(prepared, target, SimpleNamespace(get_next=lambda: next(calibration, None)), per_channel=True,
                    nodes_to_quantize=products, extra_options={'OpTypesToExcludeOutputQuantization': kinds})
int8, times, errors = InferenceSession(target), [], []
for feed in feeds[1::2]:
    start, expected, middle, outputs, end = now(), float32.run(None, feed), now(), int8.run(None, feed), now()
    times.append((end - middle) / (middle - start))
    if float32.get_outputs()[0].name != 'dets':  # boxes can be others, so that they have no error
        errors.append([np.linalg.norm(a - b) / np.linalg.norm(b) for a, b in zip(outputs, expected, strict=True)])
line = f'size {target.stat().st_size / source.stat().st_size:.2f}x, time {np.median(times):.2f}x'
if errors:
    line += ', errors ' + ' '.join(f'{error:.3f}' for error in np.median(errors, axis=0))
print(line)
