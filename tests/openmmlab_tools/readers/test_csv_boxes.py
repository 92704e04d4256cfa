"""Tables of boxes as tools and data sets write them."""
from pathlib import Path

import pytest

from openmmlab_tools.readers.own_data import find_data
from tests.helpers import refusal
from tests.openmmlab_tools.readers import layouts
from tests.tools.conftest import save

PLAIN = 'filename,class,xmin,ymin,xmax,ymax\na.jpg,cat,10,20,30,50\nb.jpg,dog,10,20,30,50\n'
READ = {
    'commas': ('x.csv', PLAIN), 'semicolons': ('x.csv', PLAIN.replace(',', ';')),
    'bars': ('x.csv', PLAIN.replace(',', '|')), 'tabs': ('x.tsv', PLAIN.replace(',', '\t')),
    'tabs in CSV': ('x.csv', PLAIN.replace(',', '\t')), 'lines of Windows': ('x.csv', PLAIN.replace('\n', '\r\n')),
    'location and class_name': ('x.csv', PLAIN.replace('filename', 'location').replace('class', 'class_name')),
    'SKU-110K': ('annotations_train.csv', 'a.jpg,10,20,30,50,cat,80,60\nb.jpg,10,20,30,50,dog,80,60\n'),
    'Keras RetinaNet': ('x.csv', 'a.jpg,10,20,30,50,cat\nb.jpg,10,20,30,50,dog\n'),
    'makesense': ('labels.csv', 'cat,10,20,20,30,a.jpg,80,60\ndog,10,20,20,30,b.jpg,80,60\n'),
    'makesense with headings': (
        'labels.csv', 'label_name,bbox_x,bbox_y,bbox_width,bbox_height,image_name,image_width,image_height\n'
        'cat,10,20,20,30,a.jpg,80,60\ndog,10,20,20,30,b.jpg,80,60\n'),
    'GTSDB': ('gt.txt', 'a.jpg;10;20;30;50;cat\nb.jpg;10;20;30;50;dog\n'),
    'GTSRB': ('GT.csv', 'Filename;Width;Height;Roi.X1;Roi.Y1;Roi.X2;Roi.Y2;ClassId\na.jpg;80;60;10;20;30;50;cat\n'
              'b.jpg;80;60;10;20;30;50;dog\n'),
    'LISA': ('allAnnotations.csv', 'Filename;Annotation tag;Upper left corner X;Upper left corner Y;Lower right corner '
             'X;Lower right corner Y;Occluded\na.jpg;cat;10;20;30;50;0\nb.jpg;dog;10;20;30;50;0\n'),
    'CrowdAI': ('labels.csv', 'xmin,ymin,xmax,ymax,Frame,Label,Preview URL\n10,20,30,50,a.jpg,cat,x\n'
                '10,20,30,50,b.jpg,dog,x\n'),
    'a corner and a size': (
        'x.csv', 'image,label,left,top,width,height\na.jpg,cat,10,20,20,30\nb.jpg,dog,10,20,20,30\n'),
    'bbox before all': (
        'x.csv', 'img,tag,bbox_x1,bbox_y1,bbox_x2,bbox_y2\na.jpg,cat,10,20,30,50\nb.jpg,dog,10,20,30,50')}
REFUSED = {
    'Global Wheat': ('image_id,width,height,bbox,source\na,80,60,"[10.0, 20.0, 20.0, 30.0]",x\n',
                     "several numbers in one cell, such as '[10.0, 20.0, 20.0, 30.0]', which is not read, since they "
                     'may be corners, or a corner with width and height'),
    'Global Wheat 2021': ('image_name,BoxesString,domain\na.jpg,10 20 30 50;1 2 3 4,x\n',
                          'several numbers in one cell'),
    'a corner or the centre': ('image,label,x,y,width,height\na.jpg,cat,10,20,20,30\n',
                               'may be a corner or the centre'),
    'no class': ('image;xmin;ymin;xmax;ymax\na.jpg;10;20;30;50\n', 'since none is known for class: write columns'),
    'Hugging Face': ('file_name,text\na.jpg,hello\n', 'since none is known for class, xmin, ymin, xmax, ymax'),
    'decimal commas': (PLAIN.replace(',', ';').replace(';10;', ';10,5;'), "line 2, has '10,5' for left, which is not"),
    'decimal commas between commas': (PLAIN.replace(',10,', ',10,5,', 1), 'has 7 cells in line 2, but 6 columns')}


def write(root: Path, name: str, content: str, encoding: str = 'utf-8') -> None:
    for image in 'abcd':
        save(root / f'{image}.jpg', layouts.PIXELS)
    (root / name).write_bytes(content.encode(encoding))


@pytest.mark.parametrize('encoding', ['utf-8', 'utf-8-sig', 'utf-16'])
@pytest.mark.parametrize('name, content', READ.values(), ids=READ)
def test_tables_are_read(name: str, content: str, encoding: str, tmp_path: Path) -> None:
    write(tmp_path, name, content, encoding)
    data = find_data(tmp_path)
    actual = {picture.path.stem: picture for pictures in data.splits.values() for picture in pictures}
    assert data.form == 'boxes in CSV files' and data.classes == ['cat', 'dog'] and {*actual} == {*'ab'}
    for stem, name in (('a', 'cat'), ('b', 'dog')):
        [one] = actual[stem].objects
        assert one.name == name and one.keys['bbox'] == [10, 20, 20, 30]


@pytest.mark.parametrize('content, words', REFUSED.values(), ids=REFUSED)
def test_tables_that_are_not_read_say_why(content: str, words: str, tmp_path: Path) -> None:
    write(tmp_path, 'x.csv', content)
    assert f'{tmp_path}/x.csv' in (message := refusal(find_data, tmp_path)) and words in message


def test_files_of_yolo_with_commas_are_no_table(tmp_path: Path) -> None:
    layouts.yolo(tmp_path, line='{label}, 0.25, 0.583333, 0.25, 0.5, 0.9')
    assert find_data(tmp_path).form == 'YOLO'
