import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from cpvt_mm import PyramidCPVT
from cpvt_mm.deployment import exported
from tests.conftest import NARROW

DEPTHS = (1, 1, 1, 1)
# In each block q, kv, proj, fc1 and fc2, in three stages the reduction of keys, and four patch embeddings.
PRODUCTS = 4 * 5 + 3 + 4


@pytest.mark.slow
def test_products_with_weights_are_int8(run_example: Callable[..., dict], toy_shapes: Path, tmp_path: Path,
                                        capsys: pytest.CaptureFixture) -> None:
    files = [tmp_path / 'float32.onnx', tmp_path / 'int8.onnx']
    backbone = PyramidCPVT({**NARROW, 'depths': DEPTHS}).eval()
    with exported(backbone, files[0], dict(mean='[128, 128, 128]', std='[64, 64, 64]')):
        pass
    images = toy_shapes / 'images/training'
    found = run_example('onnxruntime_int8.py', *files, images)

    size, _, errors = re.fullmatch(r'size (.+)x, time (.+)x, errors (.+)', capsys.readouterr().out.strip()).groups()
    assert float(size) < 0.5  # a quarter for the weights; the graph stays
    # A weight is off by half a step of 1/127 of the largest in its row at most, an input by half of 1/255 of its range.
    assert all(0 < float(error) < 0.1 for error in errors.split()) and len(errors.split()) == 4
    # No image both calibrates and compares.
    assert len(found['rows']) == len(found['feeds']) / 2 and next(found['calibration'], None) is None

    graph = onnx.load(files[1]).graph
    made_by = {output: node for node in graph.node for output in node.output}
    int8 = {tensor.name for tensor in graph.initializer if tensor.data_type == onnx.TensorProto.INT8
            and len(tensor.dims) == 2}
    assert len(int8) == PRODUCTS

    def types_before(name: str) -> set[str]:
        return {made_by[x].op_type for node in graph.node if node.op_type == name for x in node.input if x in made_by}

    assert not types_before('QuantizeLinear') & {'MatMul', 'Softmax'}
    for name in ('Conv', 'Gelu', 'LayerNormalization', 'Softmax'):
        assert types_before(name) and 'DequantizeLinear' not in types_before(name)
    maps = found['int8'].run(None, {'image': np.zeros((1, 3, 33, 47), np.float32)})
    assert [x.shape[2:] for x in maps] == [(9, 12), (5, 6), (3, 3), (2, 2)]
