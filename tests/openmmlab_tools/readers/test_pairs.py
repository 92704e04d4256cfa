"""Images and label maps that belong together, whatever their files and folders are called."""
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openmmlab_tools.readers.form.folder import IMAGE_WORDS, LABEL_WORDS, words_of
from openmmlab_tools.readers.form.splits import split_in
from openmmlab_tools.readers.own_data import find_data
from tests.helpers import refusal
from tests.openmmlab_tools.readers import layouts
from tests.tools.conftest import save

# Images and label maps of public data sets, with a place for the name, and for the split.
PUBLIC = {
    'CamVid of SegNet': ('{1}/{0}.png', '{1}annot/{0}.png'), 'DeepGlobe': ('{0}_sat.jpg', '{0}_mask.png'),
    'Potsdam': ('2_Ortho_RGB/top_{0}_RGB.tif', '5_Labels/top_{0}_label.tif'),
    'Potsdam in one folder': ('top_{0}_RGB.tif', 'top_{0}_label.tif'),
    'Vaihingen': ('image/top_area{0}.tif', 'label/top_area{0}_noBoundary.tif'),
    'Cellpose': ('{1}/{0}_img.png', '{1}/{0}_masks.png'), 'imgs and gts': ('imgs/{0}.jpg', 'gts/{0}.png'),
    'GlaS': ('slide_{0}.bmp', 'slide_{0}_anno.bmp'), 'prefixes': ('image_{0}.png', 'mask_{0}.png'),
    'Oxford Pets': ('images/{0}.jpg', 'annotations/trimaps/{0}.png'),
    'BDD100K': ('bdd100k/images/10k/{1}/{0}.jpg', 'bdd100k/labels/sem_seg/masks/{1}/{0}.png'),
    'ISIC': ('ISIC_Data/ISIC_{0}1.jpg', 'ISIC_GroundTruth/ISIC_{0}1_segmentation.png'),
    'LoveDA': ('{1}/Rural/images_png/{0}.png', '{1}/Rural/masks_png/{0}.png'),
    'stains': ('{0}_HE.png', '{0}_gt.png'), 'crack': ('Original/{0}.jpg', 'Ground_Truth/{0}.png')}
# Their names do not say which are label maps, but their colours do.
UNNAMED = {
    'xBD': ('{0}_post_disaster.png', '{0}_post_disaster_target.png'), 'a word': ('{0}.jpg', '{0}_defect.png'),
    'two words': ('{0}_top.png', '{0}_truthful.png'), 'folders': ('rgb/{0}.png', 'foo/{0}.png'),
    'folders of splits': ('{1}/rgb/{0}.tif', '{1}/foo/{0}.tif')}


@pytest.mark.parametrize('images, labels', [*PUBLIC.values(), *UNNAMED.values()], ids=[*PUBLIC, *UNNAMED])
def test_label_maps_of_public_data_are_found(images: str, labels: str, tmp_path: Path) -> None:
    layouts.maps(images, labels)(tmp_path)
    data = find_data(tmp_path)
    actual = {(one.path, one.label_map and one.label_map.path) for pictures in data.splits.values() for one in pictures}
    assert actual == {(tmp_path / images.format(stem, split), tmp_path / labels.format(stem, split))
                      for _, _, stem, split in layouts.samples()}
    is_told = any('colours are taken for label maps of others, such as' in note for note in data.notes)
    assert is_told == ((images, labels) in UNNAMED.values())


@given(st.sampled_from(sorted(LABEL_WORDS - {'manual'})), st.sampled_from(['_', '-', '.', ' ']),
       st.sampled_from(['', 'sat', 'RGB', 'img', 'HE', 'raw', 'foo1']), st.booleans(), st.booleans())
def test_any_word_may_stand_in_place_of_the_role(
        tmp_path_factory: pytest.TempPathFactory, role: str, sep: str, word: str, is_first: bool,
        is_upper: bool) -> None:
    root, role = tmp_path_factory.mktemp('pair'), role.upper() if is_upper else role
    word = word.rstrip('1') if is_first else word
    image = '{0}9' if not word else f'{word}{sep}{{0}}9' if is_first else f'{{0}}9{sep}{word}'
    labels = f'{role}{sep}{{0}}9' if is_first else f'{{0}}9{sep}{role}'
    layouts.maps(f'{image}.png', f'{labels}.png')(root)
    data = find_data(root)
    assert data.is_semantic and sum(map(len, data.splits.values())) == 4


@pytest.mark.parametrize('names', [('{0}_left.png', '{0}_right.png'), ('rgb/{0}.png', 'foo/{0}.png')])
def test_pairs_of_photos_are_no_label_maps(names: tuple[str, str], tmp_path: Path) -> None:
    layouts.maps(*names, lambda name: layouts.PIXELS)(tmp_path)
    assert 'no annotations of them in a known format' in refusal(find_data, tmp_path)


def test_a_label_map_that_fits_two_images_belongs_to_none(tmp_path: Path) -> None:
    for name in ('a_left', 'a_right', 'b_left', 'b_right'):
        save(tmp_path / f'{name}.jpg', layouts.PIXELS)
    for name in 'ab':
        save(tmp_path / f'{name}_mask.png', layouts.label_map())
    assert 'no annotations of them in a known format' in refusal(find_data, tmp_path)


@pytest.mark.parametrize('images, masks', [('stage1_train/{0}/images/{0}', 'stage1_train/{0}/masks/{0}{1}x'),
                                           ('{0}/image', '{0}/masks/{1}')])
def test_a_mask_for_each_object_is_told(images: str, masks: str, tmp_path: Path) -> None:
    """The layout of the Data Science Bowl 2018, with a table of run lengths in the same folder."""
    for name in 'ab':
        save(tmp_path / f'{images.format(name)}.png', layouts.PIXELS)
        for number in range(3):
            save(tmp_path / f'{masks.format(name, number)}.png', layouts.label_map(255))
    layouts.text(tmp_path / 'stage1_train_labels.csv', 'ImageId,EncodedPixels\na,1 3\n')
    message = refusal(find_data, tmp_path)
    assert f'has 3 masks for the image {tmp_path / images.format("a")}.png, probably' in message
    assert 'Write one label map for each image' in message and '--masks instances' in message


def test_many_values_ask_for_the_names_of_classes(tmp_path: Path) -> None:
    pixels = (np.arange(60 * 80) % 151).astype(np.uint8).reshape(60, 80)
    layouts.maps('images/{1}/{0}.jpg', 'annotations/{1}/{0}.png', lambda name: pixels)(tmp_path)
    assert 'names of the classes in classes.txt, one in each line, from class 0 on' in refusal(find_data, tmp_path)
    layouts.text(tmp_path / 'classes.txt', '\n'.join(f'c{index}' for index in range(151)))
    assert len(find_data(tmp_path).classes) == 151


@given(st.sampled_from(['train', 'val', 'test']), st.sampled_from(sorted(LABEL_WORDS | IMAGE_WORDS)), st.booleans())
def test_words_without_a_separator_are_two(split: str, role: str, is_first: bool) -> None:
    name = f'{role}{split}' if is_first else f'{split}{role}'
    assert words_of(name) == ([role, split] if is_first else [split, role]) and split_in(name) == split


@pytest.mark.parametrize('name', ['training', 'validation', 'labelmap', 'latest', 'contest', 'imagery', 'segmental'])
def test_words_that_only_look_like_two_stay(name: str) -> None:
    assert words_of(name) == [name]
