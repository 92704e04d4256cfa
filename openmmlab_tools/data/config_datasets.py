"""Checks the annotations of all datasets of a config, and stops a run whose annotations are wrong."""
import logging
import os
import posixpath
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from mmengine.config import Config
from mmengine.dataset import BaseDataset
from mmengine.logging import print_log

from openmmlab_tools.config_walk import dicts
from openmmlab_tools.errors import FileFault, UserError, explain, first_line, missing_file, show
from openmmlab_tools.model_keys import (
    Classes,
    Key,
    keys_of_classes,
    keys_of_queries,
    limits_of_boxes,
    slides_without_windows,
)
from openmmlab_tools.pictures.bands import read_header
from openmmlab_tools.registry import in_scope
from openmmlab_tools.texts import some

from .coco import image_ids, read_coco
from .datasets import (
    MISSING,
    SPLITS,
    SampleFiles,
    build_unread,
    check_annotations,
    known_classes,
    layout_of,
)
from .findings import FATAL, Finding, Kind, sentence_of
from .named_files import check_presence, check_sizes
from .uses import DatasetUse, uses_of

LOOKED_AT = 100  # images, evenly chosen, whose EXIF data is read before a run


@dataclass
class Plan:
    """The faults in the annotations of one dataset, and the files that are still to check."""
    use: DatasetUse
    dataset: BaseDataset | None = None  # see `build_unread`; None if it cannot be built
    heads: dict[str, int] = field(default_factory=dict)  # that must have its classes, each with its `num_classes`
    findings: list[Finding] = field(default_factory=list)  # found without decoding files
    samples: list[SampleFiles] = field(default_factory=list)  # to check; empty if the annotations cannot be read
    # The kinds with which a run would fail, or learn or test wrong classes, masks or images.
    fatal: set[Kind] = field(default_factory=lambda: {kind for kind in Kind if kind.weight == FATAL})

    @property
    def splits(self) -> list[str]:
        return self.use.splits

    @property
    def name(self) -> str:
        return self.use.name


def plan_checks(cfg: Config, splits: Sequence[str] = SPLITS) -> list[Plan]:
    """Checks the annotations of the datasets of some splits, and plans the checks of their files."""
    plans = [_plan(use) for use in uses_of(cfg, splits)]
    _note_shared(plans)
    if _forget_named(plans, plans):  # only then it is worth the time to read the annotations of the other splits
        _forget_named(plans, [_plan(use) for use in uses_of(cfg, [split for split in SPLITS if split not in splits])])
    return plans


def _note_shared(plans: Sequence[Plan]) -> None:
    """Finds images that are for training, and also in another dataset."""
    trained = {os.path.normpath(sample.image) for plan in plans if plan.use.is_trained for sample in plan.samples}
    for plan in plans:
        shared = [sample.image for sample in plan.samples if os.path.normpath(sample.image) in trained]
        if shared and plan.use.is_evaluated:
            plan.findings.append(Finding(
                Kind.SHARED, getattr(plan.dataset, 'ann_file', '') or plan.name,
                f'has {len(plan.samples)} images, of which {len(shared)} are also in training, such as {shared[0]}'))


def _forget_named(plans: Sequence[Plan], readers: Sequence[Plan]) -> bool:
    """Removes notes on images that a dataset of the config reads: all splits may share a folder. Returns whether there
    are notes left.
    """
    read = {os.path.normpath(sample.image) for plan in readers for sample in plan.samples}
    for plan in plans:
        plan.findings[:] = [finding for finding in plan.findings
                            if finding.kind is not Kind.NOT_NAMED or os.path.normpath(finding.file) not in read]
    return any(finding.kind is Kind.NOT_NAMED for plan in plans for finding in plan.findings)


def _plan(use: DatasetUse) -> Plan:
    plan = Plan(use)
    with in_scope(use.scope):
        try:
            _check_dataset(plan, use)
        except FileFault as fault:
            plan.findings.append(Finding(Kind.DATASET, fault.file, fault.detail))
        except UserError as error:  # of a store or an archive
            plan.findings.append(Finding(Kind.DATASET, use.name, f'cannot be read: {str(error).rstrip(".")}'))
        except Exception as error:  # datasets can raise any error
            path = missing_file(error) if isinstance(error, FileNotFoundError) else None
            plan.findings.append(Finding(Kind.DATASET, path, MISSING) if path else Finding(
                Kind.NOT_BUILT, _annotation_file(use.dataset) or str(use.dataset.get('type')),
                f'is not checked ({explain(error)})'))
        for name, loader in use.loaders.items() if use.scope == 'mmseg' else ():
            plan.findings += _check_batches(name, loader, plan.samples)
        for name, evaluator in use.evaluators.items():
            plan.findings += _check_evaluator(name, evaluator, use.dataset)
    plan.fatal |= {kind for kind, fails in ((Kind.DUPLICATE_ANNOTATION, getattr(plan.dataset, 'ANN_ID_UNIQUE', False)),
                                            (Kind.MASK, use.needs_masks)) if fails}
    return plan


def _check_dataset(plan: Plan, use: DatasetUse) -> None:
    """Builds the dataset of a plan, and compares its annotations with the model, and with the files that are there."""
    plan.dataset = built = build_unread(use.dataset)
    classes = known_classes(built) if layout_of(type(built)) != 'images' else None
    keys = [*keys_of_classes(use.model, classes, use.scope)] if classes and (
        not use.dataset.get('return_classes')) else []  # else the model compares with texts
    plan.heads = {str(key): key.value for key in keys if key.name == 'num_classes' and isinstance(key.value, int)}
    faults, plan.samples = check_annotations(built, use.needs_masks, use.is_evaluated)
    if classes:
        plan.findings += _check_keys(keys, classes, use.is_trained)
        if use.is_evaluated:
            plan.findings += _check_limits(use.model, use.scope, classes)
    plan.findings += [*faults, *check_presence(built, use.dataset, plan.samples)]


def _check_batches(name: str, loader: dict[str, Any], samples: Sequence[SampleFiles]) -> Iterator[Finding]:
    """Finds images of several sizes in batches for a segmentor, which mmseg pads in training only."""
    resizes = [step for step in dicts(loader['dataset'].get('pipeline')) if step.get('type') == 'Resize']
    if name == 'train_dataloader' or loader.get('batch_size', 1) == 1 or any(
            not step.get('keep_ratio') and step.get('scale') for step in resizes):
        return
    first: dict[tuple[int, int], str] = {}  # of each size
    for sample in samples:
        with suppress(UserError):  # in an object store, or damaged: other checks report this
            first.setdefault(read_header(sample.image)[:2], sample.image)
        if len(first) > 1:
            yield Finding(Kind.BATCH, f'{name}.batch_size', f'is {loader["batch_size"]}, but images have several sizes '
                          f'({" and ".join(first.values())}), which mmseg does not batch')
            return


def _check_keys(keys: Sequence[Key], classes: Classes, is_trained: bool) -> Iterator[Finding]:
    """Compares the keys of a model that depend on classes with a dataset. Weights of classes are compared for training
    only.
    """
    of_dataset = f'the dataset has {len(classes.names)} classes ({some(classes.names)})'
    if classes.stuff is not None:
        of_dataset += f', {classes.things} of them things and {classes.stuff} stuff'
    for key in keys:
        if isinstance(key.value, int) and key.value != key.needed:
            yield Finding(Kind.NUM_CLASSES if key.value > key.needed else Kind.TOO_FEW_CLASSES, str(key),
                          f'is {key.value}, but {of_dataset}')
        elif is_trained and key.name == 'class_weight' and isinstance(key.value, list | tuple) and (
                len(key.value) != len(key.needed)):
            more = ', and one weight is for no object' * (len(key.needed) > len(classes.names))
            yield Finding(Kind.CLASS_WEIGHTS, str(key), f'has {len(key.value)} weights, but needs {len(key.needed)}: '
                          f'{of_dataset}{more}')


def _check_limits(model: dict[str, Any], scope: str | None, classes: Classes) -> Iterator[Finding]:
    """Finds settings of a model with which the first validation would fail."""
    for key in limits_of_boxes(model, classes, scope):
        if key.value != key.needed:
            queries = ' and '.join(f'{key} is {key.value}' for key in keys_of_queries(model, scope))
            yield Finding(Kind.QUERIES, str(key), f'is {key.value}, but the model chooses {key.needed} boxes from its '
                          f'queries ({queries}, and the dataset has {len(classes.names)} classes)')
    if slides_without_windows(model, scope):
        yield Finding(Kind.WINDOWS, 'model.test_cfg.mode', 'is slide, but mmseg\'s Mask2FormerHead makes masks of the '
                      'whole image for each window')


def _annotation_file(dataset: dict[str, Any]) -> str:
    return os.path.join(str(dataset.get('data_root') or ''), str(dataset.get('ann_file') or ''))


def _check_evaluator(name: str, evaluator: Any, dataset: dict[str, Any]) -> Iterator[Finding]:
    for metric in dicts(evaluator):
        kind, of_dataset = str(metric.get('type')), str(dataset.get('type'))
        file = str(metric.get('ann_file') or '')
        if not file or os.path.normpath(file) == os.path.normpath(_annotation_file(dataset)):
            continue
        if kind.endswith('CocoMetric') and not of_dataset.endswith('CocoPanopticDataset'):
            faults = _faults_of_metric(metric, dataset)
        elif kind.endswith(('CocoMetric', 'CocoPanopticMetric')):
            faults = _lacking_images(metric, dataset)
        else:
            continue
        for fault in faults:
            yield Finding(Kind.EVALUATOR, f'{name}.ann_file', fault)


def _faults_of_metric(metric: dict[str, Any], dataset: dict[str, Any]) -> Iterator[str]:
    """Yields why a metric of COCO, which reads another annotation file, does not fit a dataset."""
    tested_file, file = _annotation_file(dataset), str(metric['ann_file'])
    try:
        annotated = read_coco(file, metric.get('backend_args'))
        tested = read_coco(tested_file, dataset.get('backend_args'))
    except (FileNotFoundError, UserError) as error:
        yield f'is {file}, which cannot be read ({first_line(error).rstrip(".")})'
        return
    images = {image['id']: image for image in annotated['images']}
    unknown = [image for image in tested['images'] if image['id'] not in images]
    if unknown:
        yield f'is {file}, which lacks {len(unknown)} of the {len(tested["images"])} images in {tested_file}'
        return
    for image in tested['images']:
        other = images[image['id']]
        if not _is_same_name(image['file_name'], other['file_name']):
            yield (f'is {file}, which names the image with id {image["id"]} {other["file_name"]}, but its name is '
                   f'{image["file_name"]} in {tested_file}')
            return
        if (image['width'], image['height']) != (other['width'], other['height']):
            yield (f'is {file}, where {other["file_name"]} has {other["width"]} x {other["height"]} pixels, but this '
                   f'image has {image["width"]} x {image["height"]} in {tested_file}')
            return
    boxes, others = ({(annotation['image_id'], *map(round, annotation['bbox'])) for annotation in coco['annotations']}
                     for coco in (tested, annotated))
    if boxes and boxes.isdisjoint(others):  # such as another split, with ids and names that begin anew
        yield f'is {file}, which has none of the {len(boxes)} objects in {tested_file}'


def _is_same_name(name: str, other: str) -> bool:
    """Returns whether two names end with the same parts; one of them may have more folders."""
    parts, others = (posixpath.normpath(path).split('/') for path in (name, other))
    length = min(len(parts), len(others))
    return parts[-length:] == others[-length:]


def _lacking_images(metric: dict[str, Any], dataset: dict[str, Any]) -> Iterator[str]:
    """Yields which images of a panoptic dataset the file of a metric lacks; its segments are no objects with ids."""
    tested_file, file = _annotation_file(dataset), str(metric['ann_file'])
    try:
        annotated = {*image_ids(file, metric.get('backend_args'))}
        tested = image_ids(tested_file, dataset.get('backend_args'))
    except (FileNotFoundError, UserError) as error:
        yield f'is {file}, which cannot be compared with {tested_file} ({first_line(error).rstrip(".")})'
        return
    if unknown := [id for id in tested if id not in annotated]:
        yield f'is {file}, which lacks {len(unknown)} of the {len(tested)} images in {tested_file}'


def check_before_training(cfg: Config, splits: Sequence[str]) -> None:
    """Logs faults in COCO's and ADE20K's annotations, without images. A UserError if a file cannot be used, mmdet would
    fail on it, or labels would mean other classes.
    """
    for plan in plan_checks(cfg, splits):
        # Pipelines compare sizes while they load.
        turned = check_sizes(plan.samples, len(plan.samples) // LOOKED_AT + 1)
        plan.findings.extend(finding for finding in turned if finding.kind is Kind.TURNED)
        for kind in Kind:
            findings = [finding for finding in plan.findings if finding.kind is kind]
            if findings and kind in plan.fatal:
                raise UserError(_error(findings, plan.name))
            if findings and kind is not Kind.NOT_CHECKED:
                sentence = f'{sentence_of(findings)}; the command check finds all.'
                if findings[0].is_error:
                    print_log(sentence, 'current', logging.WARNING)
                else:
                    show(f'note: {sentence}')


def _error(findings: Sequence[Finding], name: str) -> str:
    first = findings[0]
    if first.kind is Kind.DATASET:  # `detail` says what to do, unless the file is missing
        remedy = f': put the file there, or correct {name}.data_root, .ann_file or .data_prefix'
        return f'{first.sentence}{remedy if first.detail == MISSING else ""}.'
    return f'{sentence_of(findings)}: {first.kind.remedy.format(name=name)} (the command check finds all).'
