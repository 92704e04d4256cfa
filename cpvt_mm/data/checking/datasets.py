"""Checks whole datasets: annotations at once, and each file as a separate job."""
import os.path
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Any

from mmengine.dataset import BaseDataset
from mmengine.fileio import list_dir_or_file

from .coco import check_coco, read_coco
from .findings import Finding, Kind, UnusableFile
from .images import check_image
from .label_maps import Labels, check_pair
from .layouts import build_unread, classes_of, dataset_class, layout_of, loads

# A function that checks a file; runs in any thread.
Job = Callable[[], list[Finding]]


def check_annotations(cfg: dict[str, Any], num_classes: int | None = None, ignored: Collection[int] | None = None
                      ) -> tuple[list[Finding], list[Job]]:
    """Checks a dataset without decoding images.

    Args:
        cfg: The config of a dataset that is not a wrapper.
        num_classes: Number of the model's classes, for label maps. Defaults to None: the number of the dataset's
            classes; labels are not checked if the dataset states no classes.
        ignored: Labels that heads or metrics ignore. Defaults to None: the dataset's `ignore_index`.

    Returns:
        The faults of the annotations, and jobs that check the files of the dataset.

    Raises:
        FileNotFoundError: If the annotation file or the folder of images does not exist.
        UnusableFile: If the annotation file cannot be read, or there is no image.
    """
    layout, dataset = layout_of(dataset_class(cfg)), build_unread(cfg)
    if layout == 'coco':
        return _check_coco(dataset, loads(cfg, 'with_mask'))
    if layout == 'label maps':
        return _check_label_maps(dataset, num_classes, ignored)
    dataset.full_init()
    paths = [dataset.get_data_info(index).get('img_path') for index in range(len(dataset))]
    return ([Finding(Kind.NOT_CHECKED, dataset.ann_file or cfg['type'], f'belongs to a {cfg["type"]}, of which only '
                     'images are checked')],
            [partial(check_image, path, None, getattr(dataset, 'backend_args', None)) for path in paths if path])


def _check_coco(dataset: BaseDataset, needs_masks: bool) -> tuple[list[Finding], list[Job]]:
    coco = read_coco(dataset.ann_file, dataset.backend_args)
    if not coco['annotations'] and (dataset.filter_cfg or {}).get('filter_empty_gt') and not dataset.test_mode:
        raise UnusableFile(dataset.ann_file, 'has no annotations, and filter_cfg.filter_empty_gt leaves images without '
                           'them out: put the whole file there.')
    jobs: list[Job] = [partial(check_image, os.path.join(dataset.data_prefix['img'], image['file_name']),
                               (image['height'], image['width']), dataset.backend_args) for image in coco['images']]
    return list(check_coco(coco, dataset.ann_file, classes_of(dataset), needs_masks)), jobs


def _check_label_maps(dataset: BaseDataset, num_classes: int | None, ignored: Collection[int] | None
                      ) -> tuple[list[Finding], list[Job]]:
    samples = dataset.load_data_list()
    if not samples:
        where = dataset.ann_file or f'{dataset.data_prefix["img_path"]} (*{dataset.img_suffix})'
        raise UnusableFile(where, 'has no image: put the data there, or correct the path or img_suffix in the config.')
    if 'seg_map_path' not in samples[0]:  # a test set
        return [], [partial(check_image, sample['img_path'], None, dataset.backend_args) for sample in samples]
    num_classes = num_classes or len(classes_of(dataset))
    labels = Labels(num_classes, dataset.reduce_zero_label, dataset.label_map,
                    (dataset.ignore_index,) if ignored is None else ignored) if num_classes else None
    jobs: list[Job] = [partial(check_pair, sample['img_path'], sample['seg_map_path'], labels, dataset.backend_args)
                       for sample in samples]
    # A list of names (`ann_file`) may contain only a part of the folder.
    alone = () if dataset.ann_file else _label_maps_alone(dataset, {sample['seg_map_path'] for sample in samples})
    return list(alone), jobs


def _label_maps_alone(dataset: BaseDataset, known: set[str]) -> Iterator[Finding]:
    folder = dataset.data_prefix['seg_map_path']
    if not os.path.isdir(folder):  # the jobs report each missing label map
        return
    for name in sorted(list_dir_or_file(folder, list_dir=False, suffix=dataset.seg_map_suffix, recursive=True)):
        path = os.path.join(folder, name)
        if path not in known:
            yield Finding(Kind.LABEL_MAP_ALONE, path, f'has no image in {dataset.data_prefix["img_path"]}')
