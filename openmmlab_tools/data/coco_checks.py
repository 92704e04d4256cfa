"""Checks annotations in COCO's layout."""
import posixpath
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from openmmlab_tools.pictures.masks import are_polygons, runs_of
from openmmlab_tools.texts import shown, some

from .areas import wrong_areas
from .coco import FIELDS, MAX_COORDINATE, Entry
from .findings import Kind

# Pixels beyond the border that are not a fault, because files round coordinates.
TOLERANCE = 1
TINY, OUTSIDE = 'smaller than one pixel', 'wholly outside of the image'  # what mmdet ignores
# If all boxes fit as corners, this number of boxes outside of their images is no coincidence.
CORNERS = 3
# If more objects of a class than this share are crowds, they are told: COCO has 1 percent.
CROWDS = 0.5
Fault = tuple[Kind, str]  # and the rest of a sentence that begins with the file's name


def check_coco(coco: dict[str, list[Entry]], classes: Sequence[str], needs_masks: bool = False,
               is_evaluated: bool = False) -> Iterator[Fault]:
    """Finds faults in annotations (see `read_coco`), without reading images. Without `classes`, these are all
    categories. An annotation without a mask is a fault if the config `needs_masks`, and a class without a category if a
    metric reads the file.
    """
    annotations, images = coco['annotations'], {image['id']: image for image in coco['images']}
    names = {category['id']: category['name'] for category in coco['categories']}
    known = {id: name for id, name in names.items() if not classes or name in classes}
    yield from _repeated_entries(coco)
    if classes:
        yield from _faults_of_categories([category['name'] for category in coco['categories']], classes, is_evaluated)
    corners = _fault_of_corners(annotations, images)
    if corners:
        yield Kind.CORNERS, corners
    used = Counter(annotation['category_id'] for annotation in annotations)
    if used and known and used.keys().isdisjoint(known):
        yield Kind.NOTHING_LEFT, ('has no annotation of a class: the annotations have category_id '
                                  f'{some(sorted(map(repr, used)))}, but the classes {some(list(map(repr, known)))}')
    needs_masks = needs_masks and bool(used)
    if needs_masks and not any(annotation.get('segmentation') for annotation in annotations):
        needs_masks = False  # told once
        yield Kind.NO_MASKS, (f'has boxes only, no segmentation in its {len(annotations)} annotations, but the config '
                              'reads masks')
    ignored = Counter[str]()
    for annotation in annotations:
        for kind, key, listed in ((Kind.UNLISTED_CATEGORY, 'category', names), (Kind.UNLISTED_IMAGE, 'image', images)):
            if (id := annotation[f'{key}_id']) not in listed:
                yield kind, f'has {key}_id {id} in annotation {annotation["id"]}, but no such {key}'
        if annotation['image_id'] in images:
            yield from _faults_of_shape(annotation, images[annotation['image_id']], known, bool(corners), needs_masks,
                                        ignored)
    if ignored and not ignored['']:
        counts = ', '.join(f'{number} {reason}' for reason, number in ignored.items() if number)
        yield Kind.NOTHING_LEFT, f'has only boxes that mmdet ignores ({counts})'
    yield from _faults_of_areas(annotations, images) if not corners else ()
    yield from _counts(coco, names, known, used)
    yield from _objects_said_twice(annotations, names, images)


def _repeated_entries(coco: dict[str, list[Entry]]) -> Iterator[Fault]:
    for name in FIELDS:
        kind = Kind.DUPLICATE_ANNOTATION if name == 'annotations' else Kind.DUPLICATE
        for value, number in Counter(entry['id'] for entry in coco[name]).items():
            if number > 1:
                yield kind, f'has id {value} {number} times in {name}'
    ids: dict[str, list[str]] = {}
    for image in coco['images']:
        ids.setdefault(posixpath.normpath(image['file_name']), []).append(str(image['id']))
    for name, numbers in ids.items():  # the objects of each entry would be background in the other entry
        if len(numbers) > 1:
            yield Kind.SAME_FILE, f'has {name} {len(numbers)} times in images, with the ids {some(numbers)}'


def _faults_of_shape(annotation: Entry, image: Entry, known: dict[Any, str], has_corners: bool, needs_masks: bool,
                     ignored: Counter[str]) -> Iterator[Fault]:
    """Yields faults of a box and its mask, and counts in `ignored` why mmdet ignores it, if it is of a class."""
    size = f"width {image['width']}, height {image['height']}"
    where = f"in annotation {annotation['id']} of {image['file_name']} ({size})"
    x, y, width, height = annotation['bbox']
    fault = TINY if min(width, height) < 1 or annotation['area'] <= 0 else _fault_of_extent(
        x, y, x + width, y + height, image)
    if fault and not has_corners:
        yield Kind.BOX, f'has bbox {annotation["bbox"]} (area {annotation["area"]}) {where}, which is {fault}'
    if annotation['category_id'] not in known:
        return
    reason = 'with ignore' if annotation.get('ignore') else fault if fault in (TINY, OUTSIDE) else ''
    mask = annotation.get('segmentation')
    thin = needs_masks and mask and are_polygons(mask, MAX_COORDINATE) and max(map(len, mask)) < 6
    ignored[reason or ('with iscrowd' if annotation.get('iscrowd') else 'with a mask of two points' * bool(thin))] += 1
    if not reason:
        if needs_masks and not mask:  # mmdet's loader fails for every such value
            yield Kind.MASK, f'has no segmentation {where}, but the config reads masks'
        for kind, fault in _faults_of_mask(mask, image):
            yield kind, f'has {fault} {where}'


def _faults_of_areas(annotations: Sequence[Entry], images: dict[Any, Entry]) -> Iterator[Fault]:
    """Yields areas that cannot be right, for boxes without a fault."""
    for index, (area, source) in wrong_areas(annotations).items():
        annotation = annotations[index]
        (x, y, width, height), image = annotation['bbox'], images.get(annotation['image_id'])
        if image and annotation['area'] > 0 and not _fault_of_extent(x, y, x + width, y + height, image):
            yield Kind.AREA, (f'has area {annotation["area"]:g} in annotation {annotation["id"]} of '
                              f'{image["file_name"]}, but its '
                              f'{source} has {area:.0f} pixels')


def _counts(coco: dict[str, list[Entry]], names: dict[Any, str], known: dict[Any, str], used: Counter[Any]
            ) -> Iterator[Fault]:
    """Yields what counts tell: crowds, categories that are no class, and images without annotation."""
    crowds = Counter(annotation['category_id'] for annotation in coco['annotations'] if annotation.get('iscrowd'))
    for category, number in crowds.items():  # some programs write each painted mask as a crowd
        if category in known and number > CROWDS * used[category]:
            yield Kind.CROWDS, (f'has iscrowd in {number} of the {used[category]} annotations of {names[category]!r}, '
                                'which are not learnt (set iscrowd=0 if each is one object)')
    left_out = Counter[str]()
    for category, number in used.items():
        if category in names and category not in known:
            left_out[names[category]] += number
    for name, number in left_out.items():
        yield Kind.LEFT_OUT, f'has {number} annotations of {name!r}, which are ignored: it is not a class'
    annotated = {annotation['image_id'] for annotation in coco['annotations']}
    for image in coco['images']:
        if annotated and image['id'] not in annotated:
            yield Kind.NOT_ANNOTATED, f'has no annotation of {image["file_name"]}'


def _objects_said_twice(annotations: Sequence[Entry], names: dict[Any, str], images: dict[Any, Entry]
                        ) -> Iterator[Fault]:
    """Yields a fault for each annotation with the image, class and place of an earlier annotation."""
    by_place: dict[tuple[Any, ...], list[Entry]] = {}
    for annotation in annotations:
        key = (annotation['image_id'], annotation['category_id'], bool(annotation.get('iscrowd')), *annotation['bbox'])
        others = by_place.setdefault(key, [])
        first = next((other for other in others if other.get('segmentation') == annotation.get('segmentation')), None)
        if first is None:
            others.append(annotation)
        elif annotation['image_id'] in images:
            file_name = images[annotation['image_id']]['file_name']
            yield Kind.SAID_TWICE, (
                f'has {names.get(annotation["category_id"])!r} at {annotation["bbox"]} of {file_name} '
                f'twice, in annotations {first["id"]} and {annotation["id"]}: let the command new-config leave one out')


def _faults_of_categories(categories: Sequence[str], classes: Sequence[str], is_evaluated: bool) -> Iterator[Fault]:
    """Compares categories with classes, because mmdet numbers labels in the order of the file's categories."""
    classes_here, known = set(categories), set(classes)
    missing = [name for name in classes if name not in classes_here]
    listed = [name for name in categories if name in known]
    without = f'has no category for {len(missing)} of {len(classes)} classes ({some(missing)})'
    if not listed or len(set(listed)) < len(listed) or set(listed) != set(classes[:len(listed)]):
        fault = without if missing else 'has two categories of the same name'
        yield Kind.CLASSES, f'{fault}, so labels would not match the classes'
        return
    if missing and is_evaluated:  # mmdet's metric fails if one of them is predicted
        yield Kind.CLASSES, f'{without}, which metrics need'
    elif missing:
        yield Kind.CLASS_UNUSED, without
    if listed != list(classes[:len(listed)]):
        class_name, category = next((a, b) for a, b in zip(classes, listed, strict=False) if a != b)
        yield Kind.CLASS_ORDER, (f'lists {category!r} where the classes have {class_name!r}, and mmdet numbers labels '
                                 'in the order of the file')


def _fault_of_corners(annotations: Sequence[Entry], images: dict[Any, Entry]) -> str:
    """Detects boxes that are written as corners: several extend beyond their images, but all fit as x1, y1, x2, y2."""
    boxes = [(annotation['bbox'], images[annotation['image_id']]) for annotation in annotations
             if annotation['image_id'] in images]
    outside = sum(bool(_fault_of_extent(x, y, x + width, y + height, image)) for (x, y, width, height), image in boxes)
    if outside < CORNERS or any(right <= left or bottom <= top or _fault_of_extent(left, top, right, bottom, image)
                                for (left, top, right, bottom), image in boxes):
        return ''
    return (f'has {outside} boxes that extend beyond their images, and all {len(boxes)} boxes fit as corners (x1, y1, '
            'x2, y2), but a box is (x, y, width, height)')


def _fault_of_extent(left: float, top: float, right: float, bottom: float, image: Entry) -> str:
    if right <= 0 or bottom <= 0 or left >= image['width'] or top >= image['height']:
        return OUTSIDE
    is_beyond = right > image['width'] + TOLERANCE or bottom > image['height'] + TOLERANCE
    return 'partly outside of the image' if is_beyond or min(left, top) < -TOLERANCE else ''


def _faults_of_mask(mask: Any, image: Entry) -> Iterator[Fault]:
    if isinstance(mask, dict):
        size, counts = [image['height'], image['width']], mask.get('counts')
        if mask.get('size') is None or not isinstance(counts, list | str):
            yield Kind.POLYGON, 'a mask without size or counts, which mmdet ignores,'
        elif mask['size'] != size:
            yield Kind.MASK, f'a mask of size {shown(mask["size"])} (height, width)'
        elif (runs := runs_of(counts)) is None:
            yield Kind.MASK, f'a run-length encoding that does not decode (counts {shown(counts)})'
        elif runs.sum() != size[0] * size[1]:
            yield Kind.MASK, f'a mask whose counts add up to {runs.sum()} pixels'
    elif isinstance(mask, list) and are_polygons(mask, MAX_COORDINATE):
        for polygon in mask:
            xs, ys = polygon[::2], polygon[1::2]
            if len(polygon) < 6 or len(polygon) % 2:
                yield Kind.POLYGON, f'a polygon of {len(polygon)} numbers, which mmdet ignores,'
            elif fault := _fault_of_extent(min(xs), min(ys), max(xs), max(ys), image):
                yield Kind.POLYGON, (f'a polygon of x {min(xs)} to {max(xs)} and y {min(ys)} to {max(ys)}, which is '
                                     f'{fault},')
    elif mask:
        yield Kind.MASK, (f'a segmentation that is not a list of polygons [x, y, x, y, ...] with numbers of at most '
                          f'{MAX_COORDINATE}, but {shown(mask)},')
