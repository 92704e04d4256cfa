"""Distillation without labels: a student backbone learns the maps of a frozen teacher on crops of images."""
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from mmengine.dataset import BaseDataset
from mmengine.model import BaseModel
from mmengine.registry import DATASETS, MODELS
from torch import Tensor, nn
from torchvision.transforms import v2

from cpvt_mm.archs import STRIDES as STUDENT_STRIDES
from cpvt_mm.models.create import create_backbone
from cpvt_mm.models.pyramid_cpvt import PyramidCPVT
from cpvt_mm.teachers import STRIDES, make_teacher
from cpvt_mm.zoo.members import IMAGENET, PYRAMIDS
from openmmlab_tools.checkpoints.reading import read_weights
from openmmlab_tools.errors import FileFault, UserError, as_sentence
from openmmlab_tools.files import IMAGE_SUFFIXES, to_bytes, write_bytes
from openmmlab_tools.pictures.images import read_image
from openmmlab_tools.texts import some

SMOOTH_L1_WEIGHT = 0.1
STUDENT = 'student.'  # starts the names of the student's weights in a checkpoint
SHORTER_SIDE = 512  # of images in memory; larger images are scaled down


@MODELS.register_module()
class Distillation(BaseModel):
    """A student, and a linear map from each of its maps with stride 16 and 32 to the teacher's map of this stride.

    The loss of a stride is 1 - cosine similarity, plus 0.1 times the smooth L1 distance, both to the teacher's map with
    mean 0 and variance 1 in each channel. Without this standardisation, the cosine would mostly compare means. A map of
    another size than the student's is resized.

    Args:
        student: One of `PYRAMIDS`. Its weights are random at first.
        teacher: A name that `cpvt_mm.teachers.make_teacher` accepts.
    """

    def __init__(self, student: str, teacher: str) -> None:
        super().__init__()
        if student not in PYRAMIDS:
            raise UserError(f'{student!r} is not a student: choose from {", ".join(PYRAMIDS)}.')
        self.student_name, self.teacher_name = student, teacher
        self.teacher = make_teacher(teacher)
        self.student = create_backbone(student)
        assert isinstance(self.student, PyramidCPVT)
        self.levels = [STUDENT_STRIDES.index(stride) for stride in STRIDES]
        widths = [self.student.out_channels[level] for level in self.levels]
        self.projections = nn.ModuleList(
            nn.Conv2d(width, channels, 1) for width, channels in zip(widths, self.teacher.channels, strict=True))
        self.standardise = nn.ModuleList(nn.BatchNorm2d(channels, affine=False) for channels in self.teacher.channels)
        for name, values in zip(('mean', 'std'), IMAGENET, strict=True):
            self.register_buffer(name, torch.tensor(values).reshape(3, 1, 1), persistent=False)

    def forward(self, inputs: Tensor, mode: str = 'tensor') -> dict[str, Tensor] | tuple[Tensor, ...]:
        """Returns the losses of images `(B, 3, H, W)`, RGB from 0 to 255, or with mode 'tensor' the student's maps."""
        maps = self.student((inputs.float() - self.mean) / self.std)
        if mode != 'loss':
            return maps
        losses = {}
        size = ' x '.join(map(str, inputs.shape[2:]))
        with as_sentence(f'the teacher {self.teacher_name} cannot read crops of {size} pixels',
                         'choose the size of images in its own training, or another teacher',
                         torch.cuda.OutOfMemoryError):
            targets = self.teacher.maps(inputs)
        for stride, level, project, standardise, target in zip(
                STRIDES, self.levels, self.projections, self.standardise, targets, strict=True):
            learnt = project(maps[level])
            target = standardise(F.interpolate(target, learnt.shape[2:], mode='bilinear'))
            losses[f'loss_cosine_{stride}'] = 1 - F.cosine_similarity(learnt, target, dim=1).mean()
            losses[f'loss_l1_{stride}'] = SMOOTH_L1_WEIGHT * F.smooth_l1_loss(learnt, target)
        return losses


@DATASETS.register_module()
class UnlabelledCrops(BaseDataset):
    """Random square crops of all images in folders, mirrored at random and with changed colours, RGB, uint8.

    All images stay in memory, scaled down so that the shorter side has at most `SHORTER_SIDE` pixels.

    Args:
        folders: Paths of folders; images in their subfolders count as well.
        side: Height and width of a crop in pixels.
        pipeline: Transforms before the crop. Defaults to none.
        lazy_init: Whether images are read later, by `full_init`. Defaults to False.
    """

    def __init__(self, folders: Sequence[str], side: int, pipeline: Sequence[Any] = (), lazy_init: bool = False
                 ) -> None:
        self.folders = folders
        crop = v2.Compose([v2.RandomResizedCrop(side, scale=(0.1, 1.), antialias=True), v2.RandomHorizontalFlip(),
                           v2.ColorJitter(0.4, 0.4, 0.4, 0.1)])
        super().__init__(pipeline=[*pipeline, lambda sample: dict(inputs=crop(sample['inputs']))],
                         serialize_data=False, lazy_init=lazy_init)

    def load_data_list(self) -> list[dict[str, Any]]:
        """Reads all images; see `read_images`."""
        return [dict(img_path=str(path), inputs=image) for path, image in read_images(self.folders).items()]


def find_images(folders: Sequence[str | Path]) -> list[Path]:
    """Lists the images in folders and their subfolders, each once, also links to files that do not exist; raises a
    UserError for a folder without images.
    """
    paths: dict[Path, None] = {}
    for folder in folders:
        if not Path(folder).is_dir():
            raise UserError(f'{folder} is not a folder: pass a folder of images.')
        in_folder = [path for path in sorted(Path(folder).rglob('*'))
                     if path.suffix.lower() in IMAGE_SUFFIXES and (path.is_file() or path.is_symlink())]
        if not in_folder:
            raise UserError(f'folder {folder} has no images ({", ".join(IMAGE_SUFFIXES)}): pass a folder of images.')
        paths.update(dict.fromkeys(in_folder))
    return list(paths)


def read_images(folders: Sequence[str]) -> dict[Path, Tensor]:
    """Reads all images in folders; see `find_images` and `read_small`. Raises a UserError that names the images that
    cannot be read.
    """
    images, faults = {}, []
    paths = find_images(folders)
    for path in paths:
        try:
            images[path] = read_small(path)
        except FileFault as fault:
            faults.append(f'{fault.file} {fault.detail}')
    if faults:
        raise UserError(f'{len(faults)} of {len(paths)} images cannot be used: {some(faults)}. Remove these files, or '
                        'replace them.')
    return images


def read_small(path: Path) -> Tensor:
    """Reads an image `(3, H, W)`, RGB, uint8, whose shorter side has at most `SHORTER_SIDE` pixels."""
    image = torch.from_numpy(read_image(path).copy()).permute(2, 0, 1)
    return v2.functional.resize(image, SHORTER_SIDE, antialias=True) if min(image.shape[1:]) > SHORTER_SIDE else image


def write_student(checkpoint: str | Path, path: Path) -> None:
    """Writes the student's weights in a checkpoint of a `Distillation`, rounded to float16, as safetensors."""
    weights = {name.removeprefix(STUDENT): tensor.half() for name, tensor in read_weights(checkpoint).tensors.items()
               if name.startswith(STUDENT)}
    write_bytes(path, to_bytes(weights, safetensors=True))
