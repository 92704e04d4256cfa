"""Settles the objects of all images: which are left out, and why, and which classes there are."""
from collections import Counter
from collections.abc import Sequence

import numpy as np

from openmmlab_tools.errors import FileFault, UserError
from openmmlab_tools.texts import some, told

from .account import SHOWN, Account
from .dataset import OTHER_SIZE, LabelledData, LabelledObject, Picture, other_size

ROUNDED = 0.5  # pixels beyond the border that are not told, because files round coordinates
LEAST_INSIDE = 0.5  # of the box of an object; others are left out
MOST_OUTSIDE = 0.1  # of all objects; if more lie outside, their numbers mean something else


def settle(data: LabelledData, names: Sequence[str], pictures: Sequence[Picture]) -> None:
    """Leaves out objects that are labelled twice, lie outside their image, or have no area. Keeps the classes that have
    an object. Notes what is unusual about objects, classes and sizes.

    Raises:
        UserError: If an object has no class, or many lie outside of their images.
    """
    for picture in pictures:
        if not all(instance.name.strip() for instance in picture.objects):
            raise FileFault(picture.annotation or picture.path,
                            'has an object without a class name: add the name')
        picture.objects = [instance if instance.name == instance.name.strip()
                           else instance._replace(name=instance.name.strip())
                           for instance in picture.objects]
    _leave_out_copies(pictures, data.account)
    _leave_out_outside(pictures, data)
    used = {instance.name for picture in pictures for instance in picture.objects}
    bare = list(dict.fromkeys(name.strip() for name in names))
    data.classes = [name for name in bare if name in used]
    if unused := [name for name in bare if name not in used]:
        data.notes.append(f'{len(unused)} classes have no object and are skipped: {some(unused)}.')
    by_case = Counter(name.casefold() for name in data.classes)
    if alike := [name for name in data.classes if by_case[name.casefold()] > 1]:
        data.notes.append(f'Classes differ by case only: {some(alike, SHOWN)}. Correct them if they are one.')
    wrong = [other_size(picture.path, picture.size, picture.stated) for picture in pictures
             if all(picture.stated) and picture.stated != picture.size]
    data.notes += told(wrong, *OTHER_SIZE)


def _leave_out_copies(pictures: Sequence[Picture], account: Account) -> None:
    """Leaves out objects with the same class and place as another object. Notes objects with the same place only."""
    for picture in pictures:
        by_place: dict[tuple[float, ...], list[LabelledObject]] = {}
        for instance in picture.objects:
            others = by_place.setdefault(tuple(instance.keys['bbox']), [])
            same = [other for other in others if other.keys.get('segmentation') == instance.keys.get('segmentation')]
            if any((other.name, other.ignored) == (instance.name, instance.ignored) for other in same):
                account.leave('objects', 'objects are said twice about one image', picture.path.name, instance.records)
                continue
            if any(other.name != instance.name for other in same):
                account.remark('objects have the same place as another object, but another class', picture.path.name)
            others.append(instance)
        if sum(map(len, by_place.values())) < len(picture.objects):
            left = {id(other) for others in by_place.values() for other in others}
            picture.objects = [instance for instance in picture.objects if id(instance) in left]


def _leave_out_outside(pictures: Sequence[Picture], data: LabelledData) -> None:
    """Leaves out objects that lie more than half outside, or are smaller than a pixel, as mmdet does.

    Raises:
        UserError: If more than `MOST_OUTSIDE` of all objects lie outside.
    """
    pairs = [(picture, instance) for picture in pictures for instance in picture.objects]
    if not pairs:
        return
    extents = np.array([instance.extent or _corners(instance.keys['bbox']) for _, instance in pairs], np.float64)
    sizes = np.array([picture.size for picture, _ in pairs], np.float64)
    clipped = np.concatenate([extents[:, :2].clip(0, sizes), extents[:, 2:].clip(0, sizes)], axis=1)
    areas, inside = ((corners[:, 2:] - corners[:, :2]).prod(axis=1) for corners in (extents, clipped))
    beyond = np.concatenate([-extents[:, :2], extents[:, 2:] - sizes], axis=1).max(axis=1)
    is_outside = (areas > 0) & (inside < LEAST_INSIDE * areas * (1 - 1e-9))
    # A mask, or the area that a file states, may be smaller than the box.
    is_tiny = (np.array([instance.keys['bbox'][2:] for _, instance in pairs]).min(axis=1) < 1) | (inside <= 0)
    if is_outside.sum() > MOST_OUTSIDE * len(pairs):
        picture, instance = pairs[int(is_outside.argmax())]
        raise UserError(
            f'{is_outside.sum()} of {len(pairs)} objects lie more than half outside of their images, such as a box '
            f'from {_pair(instance, 0)} to {_pair(instance, 2)} in {picture.path}, which has {picture.size[0]} x '
            f'{picture.size[1]} pixels: their numbers may be of an image of another size, in another unit, or corners '
            'instead of width and height. Correct them.')
    for index, (picture, instance) in enumerate(pairs):
        if is_outside[index]:
            data.account.leave('objects', 'objects lie more than half outside of their image', picture.path.name,
                               instance.records)
        elif is_tiny[index]:
            data.account.leave('objects', 'objects are smaller than a pixel', picture.path.name, instance.records)
    is_left = is_outside | is_tiny
    if (is_clipped := ~is_left & (beyond > ROUNDED)).any():
        most = beyond[is_clipped].max()
        for index in np.flatnonzero(is_clipped).tolist():
            data.account.remark(f'objects reach beyond the border of their image, by up to {most:.1f} pixels, and are '
                                'clipped', pairs[index][0].path.name)
    if is_left.any():
        left = {id(instance) for (_, instance), is_one in zip(pairs, is_left, strict=True) if is_one}
        for picture in pictures:
            picture.objects = [instance for instance in picture.objects if id(instance) not in left]


def _corners(bbox: Sequence[float]) -> tuple[float, float, float, float]:
    x, y, width, height = bbox
    return x, y, x + width, y + height


def _pair(instance: LabelledObject, start: int) -> str:
    x, y = (instance.extent or _corners(instance.keys['bbox']))[start:start + 2]
    return f'({x:g}, {y:g})'
