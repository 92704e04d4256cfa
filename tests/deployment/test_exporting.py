import json
import sys
from pathlib import Path

import onnx
import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

from cpvt_mm import CPVT, PyramidCPVT
from cpvt_mm.deployment import exported
from cpvt_mm.errors import UserError
from cpvt_mm.models.grid import Grid
from cpvt_mm.models.position_encodings import PositionEncoding, PositionEncodings, StageSpec
from tests.deployment.conftest import SMALL, assert_files_are_right
from tests.encodings import ENCODINGS

# An export takes long, so several encodings share one; what works together works alone.
TOGETHER = {
    # One for each point at which an encoding acts.
    'each point': ({}, ['peg', 'learnable-2d', 'rotary', 'relative', 'peg-qk']),
    'the others': ({}, ['learnable-1d', 'random-table', 'sinusoidal-1d', 'sinusoidal-2d', 'random-fourier',
                        'peg-first', 'peg-fixed', 'peg-3d', 'peg-separable']),
    'pooled keys': (dict(sr_mode='pool'), ['relative']),
    'convolutions in MLPs': (dict(mlp_mode='conv'), ['peg']),
}


def test_all_encodings_are_tried() -> None:
    assert {name for _, names in TOGETHER.values() for name in names} == {*ENCODINGS} - {'none', 'peg-learnable'}


@pytest.mark.slow
@pytest.mark.parametrize('together', TOGETHER)
def test_encodings_are_right_at_all_sizes(together: str, tmp_path: Path) -> None:
    options, names = TOGETHER[together]
    depth = 2 if 'peg-qk' in names else 1  # it feeds a second block
    # One stage is used; its keys lie on a coarser grid.
    arch = dict(embed_dims=(12,) * 4, depths=(depth, 1, 1, 1), num_heads=(3,) * 4, mlp_ratios=(2,) * 4,
                sr_ratios=(2,) * 4)
    model = PyramidCPVT(arch, img_size=64, out_indices=(0,), **options,
                        position_encoding=[ENCODINGS[name] for name in names])
    assert_files_are_right(model.eval(), tmp_path)


@pytest.mark.slow
def test_class_tokens_stand_beside_any_grid(tmp_path: Path) -> None:
    encodings = [ENCODINGS[name] for name in ('peg', 'rotary')]
    model = CPVT({**SMALL, 'embed_dims': 12}, out_type='cls_token', dist_token=True, position_encoding=encodings)
    assert_files_are_right(model.eval(), tmp_path)


@pytest.mark.slow
def test_images_are_completed_where_padding_is_exact(tmp_path: Path) -> None:
    model = CPVT({**SMALL, 'depth': 1}, padding='exact')
    assert_files_are_right(model.eval(), tmp_path)


@pytest.mark.slow
def test_axes_and_outputs_of_onnx_have_names(small: CPVT, tmp_path: Path) -> None:
    path = tmp_path / 'a.onnx'
    with exported(small, path, dict(channels='RGB')) as run:
        assert run(torch.zeros(1, 3, 8, 8))[0].shape == (1, 24, 1, 1)
        assert not path.exists()
    model = onnx.load(path)
    onnx.checker.check_model(model)
    shapes = {value.name: [axis.dim_param or axis.dim_value for axis in value.type.tensor_type.shape.dim]
              for value in (*model.graph.input, *model.graph.output)}
    assert shapes == {'image': ['batch', 3, 'height', 'width'],
                      'output0': ['batch', 24, '(((height - 1)//8)) + 1', '(((width - 1)//8)) + 1']}
    assert [(entry.key, entry.value) for entry in model.metadata_props] == [('channels', 'RGB')]
    assert str(Path(__file__).parents[2]).encode() not in path.read_bytes()


@pytest.mark.slow
def test_a_file_of_torch_needs_no_example_and_keeps_the_description(small: CPVT, tmp_path: Path) -> None:
    path = tmp_path / 'a.pt2'
    with exported(small, path, dict(channels='RGB')):
        pass
    extra = {'description.json': ''}
    program = torch.export.load(path, extra_files=extra)
    assert json.loads(extra['description.json']) == dict(channels='RGB')
    assert str(Path(__file__).parents[2]).encode() not in path.read_bytes()
    image = torch.randn(5, 3, 31, 1)
    torch.testing.assert_close(program.module()(image), small(image), atol=1e-5, rtol=1e-5)


def test_dynamic_sizes_work_with_torch_alone(small: CPVT) -> None:
    """The example of docs/deployment.md."""
    sizes = {0: Dim.DYNAMIC, 2: Dim.DYNAMIC, 3: Dim.DYNAMIC}
    program = torch.export.export(small, (torch.zeros(2, 3, 64, 96),), dynamic_shapes=(sizes,))
    image = torch.randn(1, 3, 70, 33)
    torch.testing.assert_close(program.module()(image), small(image), atol=1e-5, rtol=1e-5)


class Branching(PositionEncoding):
    """Treats large images otherwise."""

    def tokens(self, x: Tensor, position: int, grid: Grid) -> Tensor:
        return x + 1 if x.shape[1] > 20 else x


@pytest.mark.parametrize('suffix', ['.pt2', '.onnx'])
def test_an_encoding_that_asks_for_the_size_is_named(suffix: str, small: CPVT, tmp_path: Path) -> None:
    stage = StageSpec(embed_dims=24, num_heads=3, depth=1, grid=(8, 8))
    small.position_encoding = PositionEncodings([Branching(stage)])
    with pytest.raises(UserError) as error, exported(small, tmp_path / f'a{suffix}', {}):
        pass
    words = ('the CPVT cannot', suffix, "'return x + 1 if x.shape[1] > 20 else x' in its Branching (test_exporting.py:",
             'in tokens)')
    assert all(word in str(error.value) for word in words)
    assert '\n' not in str(error.value)
    assert not any(tmp_path.iterdir())


class Deforming(nn.Module):
    """Does what the pixel decoder of Mask2Former does, in a function beside it."""

    def forward(self, x: Tensor) -> Tensor:
        return x + shape_of(x).sum()


def shape_of(x: Tensor) -> Tensor:
    return torch._shape_as_tensor(x)[2:].to(x.device)


def test_a_part_that_torch_cannot_export_is_named(small: CPVT, tmp_path: Path) -> None:
    small.drop = Deforming()
    with pytest.raises(UserError) as error, exported(small, tmp_path / 'a.onnx', {}):
        pass
    words = ("because of 'return torch._shape_as_tensor(x)[2:].to(x.device)' in its Deforming (test_exporting.py:",
             'in shape_of; Dynamo does not know how to trace method `to`', ': replace that part')
    assert all(word in str(error.value) for word in words)
    assert 'PEG' not in str(error.value) and '\n' not in str(error.value)


def test_a_file_has_its_name_only_when_all_is_well(small: CPVT, tmp_path: Path) -> None:
    path = tmp_path / 'a.pt2'
    with pytest.raises(ArithmeticError), exported(small, path, {}) as run:
        assert run(torch.zeros(1, 3, 8, 8))[0].shape == (1, 24, 1, 1)
        assert not path.exists()
        raise ArithmeticError
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize('name, words', [('a.pth', ('a.pth', '.pt2 or .onnx')), ('there.pt2', ('exists already',)),
                                         ('no/a.onnx', ('no', 'does not exist'))])
def test_a_name_that_cannot_be_written_is_an_error(name: str, words: tuple[str, ...], small: CPVT, tmp_path: Path,
                                                   ) -> None:
    (tmp_path / 'there.pt2').write_text('before')
    with pytest.raises(UserError) as error, exported(small, tmp_path / name, {}):
        pass
    assert all(word in str(error.value) for word in words)
    assert (tmp_path / 'there.pt2').read_text() == 'before'


def test_a_missing_package_is_named(small: CPVT, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, 'onnxscript', None)
    with pytest.raises(UserError) as error, exported(small, tmp_path / 'a.onnx', {}):
        pass
    assert all(words in str(error.value) for words in ('onnxscript', 'pip install onnx onnxscript onnxruntime.'))
