"""Compares the files that a dataset names with those that are there, by one list of each folder."""
import os.path
from collections.abc import Iterator, Sequence
from typing import Any

from mmengine.dataset import BaseDataset
from mmengine.fileio import get_file_backend, isfile, list_dir_or_file

from openmmlab_runs.files import IMAGE_SUFFIXES, what_is
from openmmlab_runs.nested import walk

from .datasets import Sample, layout_of
from .findings import Finding, Kind

MISSING = 'does not exist'


class Folders:
    """Folders on disk, in a store or in an archive, each of which is listed once.

    Args:
        backend_args: The dataset's argument for mmengine's storage backends. Defaults to None.
    """

    def __init__(self, backend_args: dict[str, Any] | None = None) -> None:
        self.backend_args = backend_args
        self.names: dict[str, set[str] | None] = {}  # None for those of a server that lists none

    def fault(self, path: str) -> str:
        """Returns '' if a file is there or its folder cannot be listed, and else the rest of a sentence."""
        folder, name = os.path.split(path)
        names = self._list(folder or os.curdir)
        if names is None or name in names:
            return ''
        if '://' not in path:
            return what_is(path)
        # Lists have no hidden files.
        return '' if name.startswith('.') and isfile(path, backend_args=self.backend_args) else MISSING

    def _list(self, folder: str) -> set[str] | None:
        if folder not in self.names:
            self.names[folder] = self._read(folder)
        return self.names[folder]

    def _read(self, folder: str) -> set[str] | None:
        if not self.can_list(folder):
            return None
        try:
            return {*list_dir_or_file(folder, list_dir=False, backend_args=self.backend_args)}
        except (FileNotFoundError, NotADirectoryError):
            return set()

    def can_list(self, folder: str) -> bool:
        return hasattr(get_file_backend(folder, backend_args=self.backend_args), 'list_dir_or_file')

    def images_beside(self, known: set[str]) -> Iterator[str]:
        """Yields the images of the listed folders that are not among the known paths."""
        known = {_place(path) for path in known}
        for folder, names in self.names.items():
            for name in sorted(names or ()):
                path = os.path.join(folder, name)
                if name.lower().endswith(IMAGE_SUFFIXES) and _place(path) not in known:
                    yield path


def _place(path: str) -> str:
    return path if '://' in path else os.path.normpath(path)


def check_presence(dataset: BaseDataset, cfg: dict[str, Any], samples: Sequence[Sample]) -> list[Finding]:
    """Finds files that a dataset in COCO's or ADE20K's layout names and that are not there, and images beside them.

    Nothing is found where a pipeline reads its files in another way than mmcv's loaders, or no folder can be listed.

    Args:
        dataset: The dataset.
        cfg: Its config, whose pipeline tells what is read.
        samples: Its samples.
    """
    layout = layout_of(type(dataset))
    if layout == 'images' or not _loads('LoadImageFromFile', cfg):
        return []
    folders = Folders(dataset.backend_args)
    images = {sample.image for sample in samples}
    maps = {sample.label_map for sample in samples if sample.label_map} if _loads('LoadAnnotations', cfg) else set()
    found = [Finding(kind, path, fault) for kind, paths in ((Kind.IMAGE, images), (Kind.LABEL_MAP, maps))
             for path in sorted(paths) if (fault := folders.fault(path))]
    if layout == 'coco':
        return found + [Finding(Kind.NOT_NAMED, path, f'is not named by {dataset.ann_file}')
                        for path in folders.images_beside(images)]
    return [*found, *_other_suffixes(dataset, folders, images | maps)]


def _other_suffixes(dataset: BaseDataset, folders: Folders, known: set[str]) -> Iterator[Finding]:
    """Finds images that are not read, because they have another suffix. A list of names may be a part of the folder."""
    root = dataset.data_prefix['img_path']
    if dataset.ann_file or not folders.can_list(root):
        return
    for name in sorted(list_dir_or_file(root, list_dir=False, recursive=True, backend_args=dataset.backend_args)):
        path = os.path.join(root, name)
        if name.lower().endswith(IMAGE_SUFFIXES) and path not in known and not name.endswith(
                (dataset.img_suffix, dataset.seg_map_suffix)):
            yield Finding(Kind.NOT_NAMED, path, f'does not end with {dataset.img_suffix} (img_suffix)')


def _loads(name: str, cfg: dict[str, Any]) -> bool:
    """Returns whether a transform in the pipeline of a config has this name, and reads from where the dataset reads."""
    for _, step in walk(cfg.get('pipeline') or ()):
        kind = step.get('type')
        kind = kind.__name__ if isinstance(kind, type) else str(kind).rpartition('.')[2]
        if kind == name:
            return (step.get('backend_args') or None) == (cfg.get('backend_args') or None) and not step.get(
                'file_client_args')
    return False
