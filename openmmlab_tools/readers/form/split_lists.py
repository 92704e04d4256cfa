"""Reads lists of images such as train.txt, in any layout: finds the lists, their splits, and the images that they name.
"""
import csv
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from openmmlab_tools.data.datasets import SPLITS
from openmmlab_tools.errors import FileFault, UserError
from openmmlab_tools.files import IMAGE_SUFFIXES

from .account import Account
from .folder import SPLIT_WORDS, Folder, contradicts, of_other_split, read_lines, split_in, words_of

SUFFIXES = ('.txt', '.csv', '.tsv', '.lst')
# Words that the name of a list may have beside its split, so `cat_train.txt` is none.
LIST_WORDS = frozenset(('list', 'lists', 'image', 'images', 'img', 'imgs', 'file', 'files', 'filename', 'filenames',
                        'name', 'names', 'id', 'ids', 'set', 'sets', 'split', 'splits', 'data', 'path', 'paths'))
VOC_LISTS = 'ImageSets'
TRAINVAL = 'trainval'
DEPTH = 4  # folders of an image that its name in a list may have
NAMED = frozenset((*IMAGE_SUFFIXES, '.xml', '.json', '.txt'))  # suffixes that a name may have


class SplitList(NamedTuple):
    """A list of images."""
    path: Path
    split: str  # '': each line has its own
    lines: list[list[str]]  # what may be the name in each line, the surest first


class Named(NamedTuple):
    """The images that a list names, and the names that mean no image."""
    images: list[Path]  # with records
    known: int  # how many names are images, also without records
    missing: list[str]  # names that are no image


class ImageNames:
    """Finds images by the ends of their paths, with or without suffix."""

    def __init__(self, images: Iterable[Path], folder: Folder) -> None:
        self._folder = folder
        self._by_end: dict[str, list[Path]] = defaultdict(list)
        for image in images:
            parts = image.parts[-DEPTH:]
            for start in range(len(parts)):
                end = '/'.join(parts[start:])
                for name in dict.fromkeys((end, end.removesuffix(image.suffix))):
                    self._by_end[name].append(image)

    def find(self, text: str) -> list[Path]:
        """Returns the images that a name may mean; several if it fits them equally well."""
        parts = [part for part in text.replace('\\', '/').split('/') if part not in ('', '.', '..')]
        for start in range(max(len(parts) - DEPTH, 0), len(parts)):
            end = '/'.join(parts[start:])
            suffix = PurePosixPath(end).suffix
            bare = end.removesuffix(suffix) if suffix.lower() in NAMED else end
            if images := [image for image in self._by_end.get(end) or self._by_end.get(bare) or ()
                         if not self._is_elsewhere(parts[:-1], image)]:
                return images
        return []

    def _is_elsewhere(self, said: Sequence[str], image: Path) -> bool:
        parts = self._folder.parts(image)
        return bool(said) and (of_other_split(said, parts) or contradicts(said, parts))


def read_split_lists(folder: Folder, images: Sequence[Path], account: Account, kind: str) -> dict[str, list[Path]]:
    """Returns the images of each split that the lists name; an empty dict if there are no lists.

    Lists in one folder belong together. If several folders contain lists, the order is: VOC's folder for this kind of
    labels ('Main' for boxes, 'Segmentation' for label maps), other VOC folders, then the folder nearest to the root. If
    no list is for training, the training split gets the images in `trainval`, or all images, that no other list names.

    Raises:
        UserError: If a list names unknown images, a name fits two images, or two folders contain different lists.
    """
    chosen: tuple[tuple[int, ...], Path, dict[str, list[Path]]] | None = None
    sets = [*_sets(folder, kind)]
    here, all_images = (ImageNames(group if sets else (), folder) for group in (images, folder.images))
    for rank, place, lists in sets:
        if chosen and rank > chosen[0]:
            break
        named = {listing.path: [_read(part, here, all_images, folder) for part in _by_split(listing)]
                 for listing in lists}
        if not any(names.known for parts in named.values() for names in parts):
            for listing in lists:
                _refuse_others(listing, [name for part in named[listing.path] for name in part.missing], folder)
            continue
        splits: dict[str, list[Path]] = {}
        for listing in lists:
            _add(listing, named[listing.path], splits, folder, account, not chosen)
        if chosen and {split: set(paths) for split, paths in splits.items()} != {
                split: set(paths) for split, paths in chosen[2].items()}:
            raise UserError(f'{chosen[1]} and {place} contain different lists for the splits: move the lists in '
                            'one of these folders away.')
        chosen = chosen or (rank, place, splits)
    return _completed(chosen[2], images) if chosen else {}


def read_list(path: Path, folder: Folder) -> tuple[list[Path], list[str]]:
    """Returns the images that a list names, which a description names as such, and the names that are none; paths may
    be relative to the list, to the folder, or of another machine, and may lie outside of the folder.
    """
    names = ImageNames(folder.images, folder)
    images, missing = list[Path](), list[str]()
    for texts in _names_in(path):
        meant = next(filter(None, map(names.find, texts)), [])
        place = meant[0] if len(meant) == 1 else folder.locate(texts[0], path.parent)
        if place and (place in meant or not place.is_relative_to(folder.root)):
            images.append(place)
        else:
            missing.append(texts[0])
    return images, missing


def _completed(splits: dict[str, list[Path]], images: Sequence[Path]) -> dict[str, list[Path]]:
    if 'train' not in splits:
        held_out = {image for split in ('val', 'test') for image in splits.get(split, ())}
        splits['train'] = [image for image in splits.get(TRAINVAL, images) if image not in held_out]
    return {split: splits[split] for split in SPLITS if splits.get(split)}


def list_of(path: Path, root: Path) -> tuple[str, Path] | None:
    """Returns the split in the name of a list or of its folder, and the folder of lists; None if a file is no list."""
    words = words_of(path.stem) if path.suffix.lower() in SUFFIXES else []
    if not words or not {*words} <= LIST_WORDS | SPLIT_WORDS.keys():
        return None
    if TRAINVAL in words or {'train', 'val'} <= {*words}:
        return TRAINVAL, path.parent
    if split := split_in(path.stem):
        return split, path.parent
    if path.parent != root and (split := split_in(path.parent.name)):
        return split, path.parent.parent
    return '', path.parent


def _sets(folder: Folder, kind: str) -> Iterator[tuple[tuple[int, ...], Path, list[SplitList]]]:
    """Yields lists by their folder, with a rank; the first come first."""
    sets: dict[Path, list[tuple[Path, str]]] = defaultdict(list)
    for path in folder.files:
        if (place_of_list := list_of(path, folder.root)) and path not in folder.labels and not folder.image_of(path):
            sets[place_of_list[1]].append((path, place_of_list[0]))
    ranks = {place: (place.name != kind, VOC_LISTS not in folder.parts(place / '_'), len(place.parts))
             for place in sets}
    for place in sorted(sets, key=lambda place: (ranks[place], place)):
        lists = [SplitList(path, split, [*_names_in(path)]) for path, split in sets[place]]
        yield ranks[place], place, [listing for listing in lists
                                    if listing.split or all(map(_split_in_line, listing.lines[1:]))]


def _names_in(path: Path) -> Iterator[list[str]]:
    try:
        lines = read_lines(path)
    except UserError:  # of another encoding, so it is no list
        return
    for line in lines:
        # Lists of a class have 1, 0 or -1 behind the name; others have a label map there.
        cells = next(csv.reader([line])) if path.suffix.lower() == '.csv' else []
        texts = [line, re.sub(r'\s+-?[01]$', '', line), *cells, *re.split(r'[\s,;]+', line)]
        yield list(dict.fromkeys(text.strip().strip('"\'') for text in texts if text.strip()))


def _split_in_line(texts: Sequence[str]) -> str:
    return next((SPLIT_WORDS[text.lower()] for text in texts if text.lower() in SPLIT_WORDS), '')


def _by_split(listing: SplitList) -> Iterator[SplitList]:
    """Yields a list for each split."""
    if listing.split:
        yield listing
        return
    lines: dict[str, list[list[str]]] = defaultdict(list)
    for texts in listing.lines:
        lines[_split_in_line(texts)].append(texts)
    yield from (SplitList(listing.path, split, texts_of_split) for split, texts_of_split in lines.items() if split)


def _read(listing: SplitList, here: ImageNames, all_images: ImageNames, folder: Folder) -> Named:
    images, known, missing = list[Path](), 0, list[str]()
    for texts in listing.lines:
        meant = next(filter(None, map(here.find, texts)), [])
        if len(meant) > 1:
            raise FileFault(listing.path, f'names {texts[0]}, which '
                            f'can mean {" and ".join(map(folder.name, sorted(meant)[:2]))}: write names with their '
                            'folders')
        images += meant
        if meant or any(map(all_images.find, texts)):
            known += 1
        else:
            missing.append(texts[0])
    is_table = listing.path.suffix.lower() in ('.csv', '.tsv')
    if known and len(missing) == 1 and missing[0] == listing.lines[0][0] and is_table:
        missing.clear()  # it is the heading
    return Named(images, known, missing)


def _add(listing: SplitList, parts: Sequence[Named], splits: dict[str, list[Path]], folder: Folder, account: Account,
         is_chosen: bool) -> None:
    """Adds what a list names to the splits."""
    for part, named in zip(_by_split(listing), parts, strict=True):
        if not named.known and part.split != 'test':
            _refuse_others(part, named.missing, folder)
            continue
        splits.setdefault(part.split, []).extend(named.images)
        if is_chosen:
            account.use('descriptions', listing.path)
            for name in named.missing:
                account.remark(f'names of {folder.name(listing.path)} have no image', name)


def _refuse_others(listing: SplitList, missing: Sequence[str], folder: Folder) -> None:
    """Raises a UserError for a list that names images, but none that is there; text that names none is no list."""
    looks_like_names = [any(PurePosixPath(text.replace('\\', '/')).suffix.lower() in NAMED for text in texts)
                        or (len(texts) == 1 and bool(re.search(r'\d', texts[0]))) for texts in listing.lines]
    if missing and (VOC_LISTS in folder.parts(listing.path) or sum(looks_like_names) > len(looks_like_names) / 2):
        raise FileFault(listing.path, f'names images that are not in {folder.root}, such as '
                        f'{" and ".join(missing[:2])}: add the images, or move the list away')
