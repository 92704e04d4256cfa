"""A folder as labelling tools write it: its files, which image belongs to an annotation file, and paths in texts."""
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, takewhile
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from openmmlab_tools.errors import FileFault, UserError
from openmmlab_tools.files import IMAGE_SUFFIXES
from openmmlab_tools.texts import told

# Words in names of folders that say what files are, not which: `train_images/a.jpg` belongs to `train_labels/a.txt`.
LABEL_WORDS = frozenset(('label', 'labels', 'labelmap', 'labelmaps', 'annotation', 'annotations', 'anno', 'annos',
                         'annot', 'annots', 'ann', 'anns', 'mask', 'masks', 'gt', 'gts', 'groundtruth', 'truth',
                         'segmentation', 'segmentations', 'segm', 'seg', 'trimap', 'trimaps', 'matte', 'mattes',
                         'manual'))
IMAGE_WORDS = frozenset(('image', 'images', 'img', 'imgs', 'jpeg', 'jpg', 'jpgs', 'photo', 'photos', 'picture',
                         'pictures', 'frame', 'frames'))
ROLE_WORDS = LABEL_WORDS | IMAGE_WORDS | {'class', 'png', 'xml', 'xmls', 'json', 'jsons', 'txt', 'ground'}
_LABEL = '|'.join(sorted(LABEL_WORDS))
# Words at an end of the name of an annotation file: `a_mask.png` belongs to `a.jpg`.
ROLE_IN_NAME = re.compile(rf'^({_LABEL})[-_. ]|[-_. ]({_LABEL}|l|manual\d*)$'
                          r'|[-_. ](gt(fine|coarse)_)?label(train)?ids$', re.IGNORECASE)
# A word at an end of the name of an image that has the rest of its name in common with its label map: `a_sat.jpg`
# belongs to `a_mask.png`.
WORD_AT_END, WORD_AT_START = re.compile(r'[-_. ][A-Za-z]+\d?$'), re.compile(r'^[A-Za-z]+[-_. ]')
PHOTO_IN_NAME = re.compile(r'_leftImg8bit$|(?<=^\d\d)_(training|test)$')  # of Cityscapes and DRIVE
ORDINAL = re.compile(r'\d(st|nd)_(?=manual)')  # of DRIVE's folders with label maps
SPLIT_WORDS = dict(train='train', training='train', trainval='train', trainvaltest='train', val='val', valid='val',
                   validation='val', validating='val', test='test', testing='test')
NOT_DATA = ('__MACOSX',)  # macOS puts this folder into zip files
MAX_TEXT, MOST_PEEKED = 2**30, 2**26  # bytes of a file of text, and of its ends


# Two words without anything between them, such as `trainannot`.
_WORDS = '|'.join(sorted(ROLE_WORDS | SPLIT_WORDS.keys()))
GLUED = re.compile(rf'({_WORDS})({_WORDS})', re.IGNORECASE)
PARTS = re.compile(r'[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_a-zA-Z]+')


def words_of(name: str) -> list[str]:
    """Splits a name into lower-case words: 'JPEGImages' has 'jpeg' and 'images', 'train2017' has 'train', and
    'trainannot' has 'train' and 'annot'.
    """
    return [part.lower() for part in parts_of(name) if part.isascii() and part.isalpha()]


def parts_of(name: str) -> list[str]:
    """Splits a name into words, numbers, and letters of non-Latin scripts."""
    parts = list[str]()
    for word in PARTS.findall(name):
        is_known = word.lower() in ROLE_WORDS or word.lower() in SPLIT_WORDS
        glued = None if is_known else GLUED.fullmatch(word)
        parts += glued.groups() if glued else [word]
    return parts


def split_in(name: str) -> str:
    """Returns the split that a name has as a whole word, as 'instances_train2017' has 'train'; '' for none or several.
    """
    splits = {SPLIT_WORDS[word] for word in words_of(name) if word in SPLIT_WORDS}
    return 'train' if splits == {'train', 'val'} else splits.pop() if len(splits) == 1 else ''


Kind = tuple[Path, str]  # the folder of a file, and the word at the end of its name, such as `_sat`; '' for none


def kind_of(path: Path) -> Kind:
    word = WORD_AT_END.search(path.stem)
    return path.parent, word[0] if word else ''


_Relation = tuple[tuple[str, ...], str, str]


class Pairs(NamedTuple):
    """Images with their annotation files."""
    of_image: dict[Path, Path]
    alone: list[Path]  # annotation files without an image
    second: list[Path]  # files of images that have a nearer annotation file, and files of the same kind


class _Place(NamedTuple):
    """The names of folders from the root to one of them, and what they mean."""
    parts: tuple[str, ...]
    key: tuple[str, ...]  # the parts without words such as `images`: images and labels with equal keys belong together
    is_for_labels: bool


class Folder:
    """The files below a folder, and in `also`. Links are followed, and hidden files are left out."""

    def __init__(self, root: Path, also: Sequence[Path] = ()) -> None:
        self.root = Path(os.path.abspath(root))
        self._roots = (self.root, *also)
        self._kinds = set[Kind]()  # kinds of images whose content shows that they are label maps
        self._places: dict[Path, _Place] = {}
        self._images_of: dict[Path, tuple[int, Path] | None] = {}
        self.left_out: list[str] = []  # sentences about links and folders that cannot be followed
        self.hidden: list[Path] = []  # files that are hidden, or in hidden folders
        self.files = sorted(self._walk())
        self.labels: set[Path] = set()  # files of annotations, of any layout
        self.images = [path for path in self.files if path.suffix.lower() in IMAGE_SUFFIXES]  # with label maps
        self._by_key: dict[tuple[tuple[str, ...], str], list[Path]] = defaultdict(list)
        self._by_stem: dict[str, list[Path]] = defaultdict(list)
        self._by_rest: dict[str, list[Path]] = defaultdict(list)  # photos by their names without a word at an end
        self._by_name: dict[str, list[Path]] = defaultdict(list)
        for path in self.images:
            stem = PHOTO_IN_NAME.sub('', path.stem)
            self._by_key[self._key(path), stem].append(path)
            self._by_stem[stem].append(path)
            if not self.is_label(path):
                for word in (WORD_AT_END, WORD_AT_START):
                    if word.search(stem):
                        self._by_rest[word.sub('', stem)].append(path)
        for path in self.files:
            self._by_name[path.name].append(path)

    def _walk(self) -> Iterator[Path]:
        seen: set[tuple[int, int]] = set()
        nowhere: list[Path] = []

        def failed(error: OSError) -> None:
            self.left_out.append(f'{error.filename} cannot be read ({error.strerror}), so it is skipped.')

        for folder, names, files in chain.from_iterable(
                os.walk(root, onerror=failed, followlinks=True) for root in self._roots):
            here = os.stat(folder)
            if (here.st_dev, here.st_ino) in seen:  # a link to a folder above, or to one that was read already
                names.clear()
                continue
            seen.add((here.st_dev, here.st_ino))
            self.hidden += [path for name in (*names, *files) if is_hidden(name) for path in _files_of(folder, name)]
            # Folders come before links to them.
            names[:] = sorted((name for name in names if not is_hidden(name)),
                              key=lambda name: (os.path.islink(os.path.join(folder, name)), name))
            for path in (Path(folder, name) for name in files if not is_hidden(name)):
                if path.is_file():
                    yield path
                elif path.is_symlink():
                    nowhere.append(path)
        self.left_out += told(sorted(nowhere), 'links lead nowhere and are skipped')

    def with_suffix(self, *suffixes: str) -> list[Path]:
        """Returns the files with one of some suffixes, in any case."""
        return [path for path in self.files if path.suffix.lower() in suffixes]

    def name(self, path: Path) -> str:
        return inside(path, self.root)

    def parts(self, path: Path) -> tuple[str, ...]:
        """Returns the names of the folders between the root and a file."""
        return self._place(path.parent).parts

    def _key(self, path: Path) -> tuple[str, ...]:
        return self._place(path.parent).key

    def is_label(self, path: Path) -> bool:
        return self._place(path.parent).is_for_labels or bool(ROLE_IN_NAME.search(path.stem)) or (
            bool(self._kinds) and kind_of(path) in self._kinds)

    def take_for_labels(self, kinds: Iterable[Kind]) -> None:
        """Marks images of some kinds as label maps, because their names do not show it."""
        self._kinds.update(kinds)
        self._images_of.clear()

    def _place(self, folder: Path) -> _Place:
        """Returns what the names of a folder say; each file asks for it several times."""
        if folder not in self._places:
            root = next((root for root in self._roots if folder.is_relative_to(root)), folder)
            parts = folder.relative_to(root).parts
            words_of_parts = (tuple(word for word in parts_of(ORDINAL.sub('', part)) if word.lower() not in ROLE_WORDS)
                    for part in parts)
            self._places[folder] = _Place(parts, tuple(' '.join(words) for words in words_of_parts if words), any(
                word in LABEL_WORDS for part in parts for word in words_of(part)))
        return self._places[folder]

    def photos_for(self, path: Path) -> list[Path]:
        """Returns the images, but no label maps, of the folders for images that go with the folder of a file."""
        key = self._key(path)
        return [other for other in self.images if self._key(other) == key and not self.is_label(other)]

    def image_of(self, path: Path) -> tuple[int, Path] | None:
        """Returns the nearest image of an annotation file, and how far away it is, or None.

        From the nearest on: with the same name in the same folder; in the folder for images that goes with this folder
        of annotations; there, without the role in the name, such as `_mask`; the only one there that has the rest of
        the name in common with a label map, as `a_sat` has with `a_mask`; the only one with such a name anywhere.
        A label map is the image of an annotation file only if there is no other.
        """
        if path not in self._images_of:
            self._images_of[path] = self._nearest(path)
        return self._images_of[path]

    def _nearest(self, path: Path) -> tuple[int, Path] | None:
        bare = PHOTO_IN_NAME.sub('', ROLE_IN_NAME.sub('', path.stem))
        key, is_label = self._key(path), self.is_label(path)
        same = [other for other in self._by_key.get((key, path.stem), ()) if other.parent == path.parent]
        without = [other for other in self._by_key.get((key, bare), ()) if other.parent == path.parent]
        # In other folders, a name means an image only if it is unique. Names of label maps contain the name of the
        # image.
        named = self._by_stem.get(path.stem, ())
        photos = self._photos(bare) if bare != path.stem or is_label else []
        rest = bare if bare != path.stem else WORD_AT_END.sub('', bare)
        alike = [image for image in dict.fromkeys((*self._by_rest.get(bare, ()), *self._by_rest.get(rest, ()),
                                               *self._photos(rest))) if not self.is_label(image)] if is_label else []
        near = [image for image in alike if self._key(image) == key]
        groups = (same, without if bare != path.stem else (), self._by_key.get((key, path.stem), ()),
                  self._by_key.get((key, bare), ()), near if len(near) == 1 else (),
                  named if len(named) == 1 else (), photos if len(photos) == 1 else (),
                  alike if len(alike) == 1 else ())
        for may_be_label in (False, True):
            for distance, group in enumerate(groups):
                # Beside label maps of the same name, photos come first; JPEG is never a label map.
                others = [other for other in group if other != path and (may_be_label or not self.is_label(other))]
                if others:
                    return distance, min(others, key=lambda other: other.suffix.lower() == '.png')
        return None

    def _photos(self, stem: str) -> list[Path]:
        return [image for image in self._by_stem.get(stem, ()) if not self.is_label(image)]

    def pair(self, files: Iterable[Path]) -> Pairs:
        """Finds the image of each annotation file. Raises a UserError if two annotation files are equally near to an
        image.

        If images have two files, the files of one kind (for example in one folder) are used for all images: the nearer
        kind.
        """
        by_image: dict[Path, list[tuple[int, Path]]] = defaultdict(list)
        alone = []
        for path in files:
            if near := self.image_of(path):
                by_image[near[1]].append((near[0], path))
            else:
                alone.append(path)
        taken, left = set[_Relation](), set[_Relation]()
        for image, candidates in by_image.items():
            candidates.sort()
            if len(candidates) > 1 and candidates[0][0] == candidates[1][0]:
                raise UserError(f'{self.name(image)} has two annotation files, {candidates[0][1]} and '
                                f'{candidates[1][1]}: pass a folder that contains only one of them, or move one away.')
            if len(candidates) > 1:
                taken.add(self._relation(candidates[0][1], image))
                left.update(self._relation(path, image) for _, path in candidates[1:])
        of_image, second = {}, list[Path]()
        for image, ((_, nearest), *others) in sorted(by_image.items()):
            if self._relation(nearest, image) in left - taken:
                second.append(nearest)
            else:
                of_image[image] = nearest
            second += [path for _, path in others]
        return Pairs(of_image, sorted(alone), sorted(second))

    def _relation(self, path: Path, image: Path) -> _Relation:
        """Returns how an annotation file is named for its image: its other folders, and the end of its name."""
        others = {*self.parts(image)}
        return (tuple(part for part in self.parts(path) if part not in others),
                path.stem.removeprefix(PHOTO_IN_NAME.sub('', image.stem)), path.suffix)

    def full_name(self, name: str) -> str:
        """Returns the name of an image with its suffix, if it has none and one image has that stem."""
        images = self._by_stem.get(name, ())
        return images[0].name if len(images) == 1 else name

    def match(self, texts: Iterable[str], source: Path, *bases: Path) -> dict[str, Path]:
        """Finds the files that paths in an annotation file mean, each another one, and in no folder that contradicts.

        Raises:
            UserError: If two paths mean one file equally well.
        """
        texts_by_place: dict[Path, list[str]] = defaultdict(list)
        for text in dict.fromkeys(texts):
            place = self.locate(text, *bases)
            folders = _parts_of(text)[:-1]
            if place and place.is_file() and not of_other_split(folders, self.parts(place)) and not contradicts(
                    [*self.parts(source), source.stem, *folders], self.parts(place)):
                texts_by_place[place].append(text)
        matched = {}
        for place, names in texts_by_place.items():
            best = max(_agreement(text, place) for text in names)
            chosen = [text for text in names if _agreement(text, place) == best]
            if len({_parts_of(text) for text in chosen}) > 1:
                raise UserError(f'{source} has {chosen[0]} and {chosen[1]}, but the only file for both is '
                                f'{self.name(place)}: put the images into the folders that the file names.')
            matched.update(dict.fromkeys(chosen, place))
        return matched

    def locate(self, text: str, *bases: Path) -> Path | None:
        """Finds what a path, perhaps of another machine, means below `bases`, then below the folder; else None."""
        parts = PurePosixPath(text.strip().replace('\\', '/')).parts
        if not parts or '\0' in text:
            return None
        inside = [part for part in parts if part not in ('..', '.')]
        try:
            for place in (*(Path(base, name) for base in bases for name in (text, Path(*parts))), *(
                    Path(base, *inside[start:]) for start in range(len(inside)) for base in (*bases, self.root))):
                if (place.is_file() or place.is_dir()) and not is_hidden(place.name):
                    return Path(os.path.normpath(place))
        except (OSError, ValueError):  # a name that is too long
            return None
        same = self._by_name[inside[-1]] if inside else []
        return same[0] if len(same) == 1 else None


def _files_of(folder: str, name: str) -> Iterator[Path]:
    """Yields a file, or all files below a folder."""
    path = Path(folder, name)
    if path.is_file():
        yield path
    for inner, _, files in os.walk(path):
        yield from (place for file in files if (place := Path(inner, file)).is_file())


def _parts_of(text: str) -> tuple[str, ...]:
    parts = PurePosixPath(text.strip().replace('\\', '/')).parts
    return tuple(part for part in parts if part not in ('..', '.', '/'))


def _agreement(text: str, place: Path) -> int:
    """Returns how many parts at the end of a path and of a place are equal."""
    pairs = zip(reversed(_parts_of(text)), reversed(place.parts), strict=False)
    return len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))


def contradicts(said: Sequence[str], there: Sequence[str]) -> bool:
    """Returns whether folders in two paths differ by a number only, such as `cam1` and `cam2`."""
    only_said, only_found = ([part for part in a if part not in b] for a, b in ((said, there), (there, said)))
    return any(re.sub(r'\d+', '0', part) == re.sub(r'\d+', '0', other) and not part.isdecimal()
               for part in only_said for other in only_found)


def of_other_split(said: Sequence[str], place_parts: Sequence[str]) -> bool:
    """Returns whether the folders in two paths name different splits, such as `train` and `val`."""
    here, there = ({split for part in parts if (split := split_in(part))} for parts in (said, place_parts))
    return bool(here and there) and here.isdisjoint(there)


def inside(path: Path, root: Path) -> str:
    """Returns a path relative to a folder if it is below, as configs have it."""
    # Path.relative_to takes ten times as long, which counts in folders of many files.
    text, start = path.as_posix(), f'{root.as_posix().rstrip("/")}/'
    return text[len(start):] if text.startswith(start) else '.' if path == root else str(path)


def is_hidden(name: str) -> bool:
    """Returns whether a file or folder is hidden, or of macOS's own."""
    return name.startswith('.') or name in NOT_DATA


def head(path: Path, size: int) -> bytes:
    with path.open('rb') as file:
        return file.read(size)


def peek(path: Path, most: int = MOST_PEEKED) -> bytes:
    """Returns the content of a file. If it has more than `most` bytes, returns its beginning and its end."""
    size = path.stat().st_size
    with path.open('rb') as file:
        if size <= most:
            return file.read()
        first = file.read(most // 2)
        file.seek(size - most // 2)
        return first + file.read()


def read_text(path: Path) -> str:
    """Reads UTF-8, or UTF-16 with a mark at its beginning; another encoding, or too large a file, is a UserError."""
    if path.stat().st_size > MAX_TEXT:
        raise FileFault(path, f'has {path.stat().st_size} bytes, but at most {MAX_TEXT} are read: split it')
    content = path.read_bytes()
    encoding = 'utf-16' if content.startswith((b'\xff\xfe', b'\xfe\xff')) else 'utf-8-sig'
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        line = content.count(b'\n', 0, error.start) + 1
        raise FileFault(path, f'is not UTF-8 in line {line}: save it with that encoding') from error


def read_lines(path: Path) -> list[str]:
    """Reads the lines of a text file, stripped, without blank lines (see `read_text`)."""
    return [line.strip() for line in re.split(r'[\r\n]+', read_text(path)) if line.strip()]
