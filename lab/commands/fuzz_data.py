"""Changes small data sets and configs at random, and does with each what new_config.py and check_dataset.py do.

Each case runs in a process of its own, and must end in a result, or in one sentence. Prints a table by kind of data,
and each other error. Exits with 1 if there is one, or a process crashed or took too long.
"""
import copy
import gc
import io
import json
import random
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml
from mmengine.registry import DATASETS, DefaultScope
from PIL import Image
from rich.console import Console

from cpvt_mm.data_config import BASES, CONFIGS, new_config
from cpvt_mm.swap import read_config
from lab.commands.toy_shapes import to_annotation
from lab.fuzzing import Case, cut, flip, fuzz, insert, parser
from openmmlab_data.checking import measure_all, to_table_of_findings
from openmmlab_data.file_checks import check_files, find_copies
from openmmlab_runs.data.config_datasets import plan_checks
from openmmlab_runs.data.datasets import building
from openmmlab_runs.engine import load_config
from openmmlab_runs.errors import exit_on_error

SIDES = 24, 32  # of images
# What a value may become: of another type, empty, of no number, or so large that it takes time or memory.
VALUES: list[Any] = [
    None, True, False, 0, -1, 1, .5, 1e7, 1e9, 1e308, -1e308, 10**30, float('nan'), float('inf'), '', 'x', '0', '12',
    '1e9', 'train', '../x', '/', 'a\0b', '\ud800', 'ü' * 300, '{{ fileDirname }}', [], {}, [[]], [1, 2], {'a': 1},
    [[[[[1]]]]], 'a' * 10_000]


class Data(NamedTuple):
    """A kind of data: writes a data set to a folder, and names the files to change in it."""
    write: Callable[[Path], None]
    changed: str


def write_images(folder: Path, number: int = 5) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f'{index}.png' for index in range(number)]
    for index, path in enumerate(paths):
        Image.fromarray(np.random.default_rng(index).integers(0, 255, (*SIDES, 3), np.uint8)).save(path)
    return paths


def write_coco(root: Path) -> None:
    """Writes boxes with polygons, run-length encodings, and a crowd."""
    height, width = SIDES
    images = [dict(id=index, file_name=path.name, height=height, width=width)
              for index, path in enumerate(write_images(root / 'images'), start=1)]
    mask = to_annotation(np.eye(*SIDES, dtype=bool))
    polygon = dict(bbox=[2, 3, 10, 12], area=120, iscrowd=0, segmentation=[[2, 3, 12, 3, 12, 15, 2, 15]])
    crowd = dict(bbox=[0, 0, width, height], area=9, iscrowd=1, segmentation=dict(
        size=[height, width], counts=[0, 9, height * width - 9]))
    annotations = [dict(one, id=3 * image['id'] + index, image_id=image['id'], category_id=index % 2 + 1)
                   for image in images
                   for index, one in enumerate((polygon, mask, crowd if image['id'] == 1 else polygon))]
    (root / 'instances.json').write_text(json.dumps(dict(
        images=images, annotations=annotations, categories=[dict(id=1, name='cat'), dict(id=2, name='dog')])))


def write_voc(root: Path) -> None:
    for path in write_images(root / 'JPEGImages'):
        (root / 'Annotations').mkdir(exist_ok=True)
        (root / 'Annotations' / f'{path.stem}.xml').write_text(
            f'<annotation><filename>{path.name}</filename><size><width>{SIDES[1]}</width><height>{SIDES[0]}</height>'
            '<depth>3</depth></size>' + ''.join(
                f'<object><name>{name}</name><difficult>0</difficult><bndbox><xmin>3</xmin><ymin>4</ymin><xmax>20</xmax>'
                '<ymax>18</ymax></bndbox></object>' for name in ('cat', 'dog')) + '</annotation>')


def write_yolo(root: Path) -> None:
    for path in write_images(root / 'images'):
        (root / 'labels').mkdir(exist_ok=True)
        (root / 'labels' / f'{path.stem}.txt').write_text(
            '0 0.5 0.5 0.4 0.3\n1 0.1 0.1 0.6 0.1 0.6 0.7\n')
    (root / 'data.yaml').write_text('path: .\ntrain: images\nnc: 2\nnames:\n  0: cat\n  1: dog\n')


def write_config(root: Path) -> None:
    write_coco(root)
    new_config(root, root / 'my.py', base=str(root.parent / 'boxes.py'))


DATA = {'COCO': Data(write_coco, '*.json'), 'COCO, images': Data(write_coco, 'images/*'),
        'Pascal VOC': Data(write_voc, 'Annotations/*'), 'YOLO': Data(write_yolo, 'labels/*'),
        'data.yaml': Data(write_yolo, '*.yaml'), 'config': Data(write_config, 'my.py')}


def change(rng: random.Random, path: Path) -> None:
    """Changes a file: a value of its structure, a number of its text, or bytes."""
    content = path.read_bytes()
    how = rng.random()
    try:
        if how < .6 and path.suffix in ('.json', '.yaml'):
            is_json = path.suffix == '.json'
            parsed = json.loads(content) if is_json else yaml.safe_load(content)
            for _ in range(rng.choice((1, 1, 2))):
                parsed = change_value(rng, parsed)
            content = (json.dumps(parsed) if is_json else yaml.safe_dump(parsed)).encode('utf-8', 'surrogatepass')
        elif how < .8 and path.suffix != '.png':
            content = change_word(rng, content)
        else:
            content = rng.choice((flip, cut, insert))(rng, content)
    except (yaml.YAMLError, UnicodeError):  # YAML cannot write some values
        content = flip(rng, content)
    path.write_bytes(content)


def change_value(rng: random.Random, root: Any) -> Any:
    """Replaces, removes or doubles a value anywhere in lists and dicts."""
    places = list(walk(root)) if isinstance(root, dict | list) else []
    if not places:
        return copy.deepcopy(rng.choice(VALUES))
    holder, key = rng.choice(places)
    how = rng.random()
    if how < .15:
        del holder[key]
    elif how < .25 and isinstance(holder, list):
        holder.insert(key, copy.deepcopy(holder[key]))
    elif how < .35 and isinstance(holder, dict):
        holder[str(rng.choice(VALUES))] = holder.pop(key)
    elif how < .45 and isinstance(holder[key], int | float):
        holder[key] = str(holder[key])
    elif how < .5:
        holder[key] = [holder[key]]
    else:
        holder[key] = copy.deepcopy(rng.choice(VALUES))
    return root if rng.random() < .99 else rng.choice(VALUES)


def walk(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yields all places of a structure: the list or dict, and the index or key."""
    for key, inner in list(value.items() if isinstance(value, dict) else enumerate(value)):
        yield value, key
        if isinstance(inner, dict | list):
            yield from walk(inner)


def change_word(rng: random.Random, content: bytes) -> bytes:
    """Replaces a word or number of a text."""
    words = list(re.finditer(rb'[\w.]+', content))
    if not words:
        return content
    word = rng.choice(words)
    new = str(rng.choice(VALUES)).encode('utf-8', 'surrogatepass')
    return content[:word.start()] + new + content[word.end():]


def write_bases(folder: Path) -> None:
    """Writes the configs that new_config takes models from, without `_base_`, which takes a second to read."""
    for task in ('boxes', 'instances'):
        read_config(str(CONFIGS / BASES[task][True])).dump(folder / f'{task}.py')


def run_case(kind: str, root: Path, base: Path) -> None:
    """Writes a config for a folder, checks its annotations and files, and builds the datasets that have no fault."""
    config = root / 'my.py'
    if kind != 'config':
        new_config(root, config, base=str(base))
    cfg = load_config(config)
    plans = plan_checks(cfg)
    results = [(plan, list(check_files(cfg, plan))) for plan in plans]
    findings = [*(finding for plan in plans for finding in plan.findings),
                *(finding for _, checks in results for one in checks for finding in one.findings),
                *(finding for _, finding in find_copies(results))]
    console = Console(file=io.StringIO())
    console.print(to_table_of_findings(findings))
    measure_all(cfg, results, console)
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        for plan in plans:
            if not any(finding.kind in plan.fatal for finding in plan.findings):
                with building(plan.name):
                    DATASETS.build(cfg[f'{plan.splits[0]}_dataloader'].dataset)


def prepare(originals: Path, rng: random.Random, kind: str, root: Path) -> Case:
    """Copies the data of a kind and changes it; returns the call that uses it."""
    shutil.copytree(originals / kind, root)
    if kind == 'config':
        (root / 'my.py').write_text((root / 'my.py').read_text().replace(str(originals / kind), str(root)))
    change(rng, rng.choice(sorted(root.glob(DATA[kind].changed))))
    base = rng.choice(('boxes.py', 'instances.py')) if 'COCO' in kind else 'boxes.py'
    return exit_on_error(partial(run_case, kind, root, originals / base))


def main() -> None:
    arguments = parser(__doc__, 5000)
    arguments.add_argument('--kinds', nargs='+', choices=DATA, default=list(DATA), help='kinds of data')
    args = arguments.parse_args()
    with tempfile.TemporaryDirectory() as name:
        originals = Path(name)
        write_bases(originals)
        for kind in args.kinds:
            DATA[kind].write(originals / kind)
        with redirect_stdout(io.StringIO()):  # what is imported and cached here need not be in each process
            shutil.copytree(originals / args.kinds[0], originals / 'first')
            run_case(args.kinds[0], originals / 'first', originals / 'boxes.py')
        gc.collect()
        gc.freeze()
        fuzz(args, args.kinds, partial(prepare, originals), originals, memory=2 << 30, seconds=30)
