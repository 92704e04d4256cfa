"""Files as tools write them: the tool is named with its export, and no other one; or they are read."""
import json
from pathlib import Path
from typing import Any

import pytest

from openmmlab_tools.readers.own_data import find_data
from openmmlab_tools.readers.tools import OTHERS, TOOLS
from tests.helpers import refusal
from tests.openmmlab_tools.readers import layouts
from tests.tools.conftest import save

BOX = dict(left=10, top=20, width=20, height=30)
POINTS = [[10, 20], [30, 20], [30, 50]]
# The name of the tool, a file as it writes it, and its content: JSON, a list for lines of JSON, or a text.
SAMPLES: list[tuple[str, str, Any]] = [
    ('CVAT for video', 'annotations.xml', '<?xml version="1.0"?>\n<annotations><version>1.1</version><track id="0" '
     'label="cat"><box frame="0" xtl="10" ytl="20" xbr="30" ybr="50"/></track></annotations>'),
    ('dlib (imglab)', 'train.xml', '<?xml version="1.0"?><dataset><name>x</name><images><image file="a.jpg"><box '
     'top="20" left="10" width="20" height="30"><label>cat</label></box></image></images></dataset>'),
    ('ASAP', 'a.xml', '<ASAP_Annotations><Annotations><Annotation Name="0" Type="Polygon"><Coordinates><Coordinate '
     'Order="0" X="1" Y="2"/></Coordinates></Annotation></Annotations></ASAP_Annotations>'),
    ('Aperio ImageScope', 'a.xml', '<Annotations MicronsPerPixel="0.25"><Annotation Id="1"><Regions><Region Id="1">'
     '<Vertices><Vertex X="1" Y="2"/></Vertices></Region></Regions></Annotation></Annotations>'),
    ('UA-DETRAC', 'MVI_1.xml', '<sequence name="MVI_1"><frame num="1"><target_list><target id="1"><box left="1"/>'
     '</target></target_list></frame></sequence>'),
    ('PAGE XML', 'a.xml', '<PcGts><Page imageFilename="a.jpg"><TextRegion id="r"><Coords points="1,2 3,4"/>'
     '</TextRegion></Page></PcGts>'),
    ('Datumaro', 'annotations/default.json', dict(
        dm_format_version='1.0', media_type=2, infos={}, categories=dict(label=dict(labels=[dict(name='cat')])),
        items=[dict(id='a', annotations=[dict(id=1, type='bbox', bbox=[10, 20, 20, 30], label_id=0)], image=dict(
            path='a.jpg', size=[60, 80]))])),
    ('captions of COCO', 'captions_val2017.json', dict(
        info={}, images=[dict(id=1, file_name='a.jpg')], annotations=[dict(id=1, image_id=1, caption='a cat')])),
    ('predictions in the layout of COCO', 'results.bbox.json', [dict(
        image_id=1, category_id=1, bbox=[10, 20, 20, 30], score=0.9)]),
    ('Azure Custom Vision', 'images.json', [dict(
        id='1', created='2024', width=80, height=60, originalImageUri='https://x/a.jpg', tags=[dict(tagName='cat')],
        regions=[dict(regionId='1', tagName='cat', tagId='2', **BOX)])]),
    ('Azure Machine Learning', 'train.jsonl', [dict(
        image_url='azureml://a.jpg', image_details=dict(format='jpg', width='80px', height='60px'),
        label=[dict(label='cat', topX=.1, topY=.2, bottomX=.3, bottomY=.4, isCrowd=0)])]),
    ('Azure Document Intelligence', 'a.jpg.labels.json', dict(
        document='a.jpg', labels=[dict(label='total', value=[dict(page=1, text='9', boundingBoxes=[[.1] * 8])])])),
    ('VIA 3 (VGG Image Annotator)', 'via_project.json', dict(
        project=dict(pid='__VIA_PROJECT_ID__', rev='1', data_format_version='3.1.1', vid_list=['1']), config={},
        attribute={'1': dict(aname='class')}, file={'1': dict(fid='1', fname='a.jpg', type=2, loc=1, src='')},
        metadata={'1_x': dict(vid='1', flg=0, z=[], xy=[2, 10, 20, 20, 30], av={'1': 'cat'})}, view={})),
    ('VIA 2 (VGG Image Annotator)', 'via_project.json', dict(
        _via_settings=dict(ui={}), _via_img_metadata={'a.jpg1': dict(filename='a.jpg', size=1, regions=[dict(
            shape_attributes=dict(name='rect', x=10, y=20, width=20, height=30), region_attributes=dict(c='cat'))])})),
    ('VIA 2 (VGG Image Annotator)', 'via_export_json.json', {'a.jpg1': dict(filename='a.jpg', size=1, regions=[dict(
        shape_attributes=dict(name='rect', x=10, y=20, width=20, height=30), region_attributes=dict(c='cat'))])}),
    ('VoTT', 'x-asset.json', dict(asset=dict(format='jpg', id='x', name='a.jpg', path='file:a.jpg'), regions=[dict(
        id='r', type='RECTANGLE', tags=['cat'], boundingBox=BOX, points=[dict(x=1, y=2)])], version='2.2.0')),
    ('VoTT', 'my.vott', dict(name='x', tags=[dict(name='cat')], assets={'x': dict(name='a.jpg')},
                             lastVisitedAssetId='x', visitedState=2)),
    ('SuperAnnotate', 'a.jpg.json', dict(
        metadata=dict(name='a.jpg', width=80, height=60, projectId=1), instances=[dict(
            type='bbox', classId=1, className='cat', points=dict(x1=10, x2=30, y1=20, y2=50), attributes=[])],
        tags=[], comments=[])),
    ('Supervisely', 'ds/ann/a.jpg.json', dict(
        description='', tags=[], size=dict(height=60, width=80), objects=[dict(
            id=1, classId=2, geometryType='rectangle', classTitle='cat', points=dict(exterior=POINTS[:2],
                                                                                     interior=[]))])),
    ('Segment Anything, which names no class', 'sa_1.json', dict(
        image=dict(image_id=1, width=80, height=60, file_name='a.jpg'), annotations=[dict(
            id=1, segmentation=dict(size=[60, 80], counts='x'), bbox=[1, 2, 3, 4], predicted_iou=1,
            stability_score=1)])),
    ('Hasty', 'export.json', dict(
        project_name='x', export_format_version='1.1', label_classes=[dict(class_name='cat')], images=[dict(
            image_id='1', image_name='a.jpg', width=80, height=60, labels=[dict(class_name='cat', bbox=[10, 20, 30, 50],
                                                                                polygon=POINTS)])])),
    ('Encord', 'export.json', [dict(
        label_hash='x', data_title='a.jpg', data_type='image', data_units=dict(y=dict(
            data_hash='y', width=80, height=60, labels=dict(objects=[dict(
                name='cat', objectHash='z', shape='bounding_box', boundingBox=dict(x=.1, y=.2, w=.3, h=.4))]))))]),
    ('Kili', 'data.json', [dict(id='1', externalId='a', content='https://x', labels=[dict(jsonResponse=dict(JOB=dict(
        annotations=[dict(boundingPoly=[dict(normalizedVertices=[dict(x=.1, y=.2)])], categories=[dict(name='CAT')])]
    )))])]),
    ('Segments.ai', 'release-v1.json', dict(name='v1', dataset=dict(
        name='x', task_type='segmentation-bitmap', task_attributes=dict(categories=[dict(id=1, name='cat')]),
        samples=[dict(name='a.jpg', attributes=dict(image=dict(url='https://x')), labels={'ground-truth': dict(
            label_status='LABELED', attributes=dict(segmentation_bitmap=dict(url='x'), annotations=[]))})]))),
    ('FiftyOne', 'samples.json', dict(samples=[dict(filepath='data/a.jpg', ground_truth=dict(
        _cls='Detections', detections=[dict(label='cat', bounding_box=[.1, .2, .3, .4])]))])),
    ('Scale AI', 'tasks.json', [dict(
        task_id='x', type='imageannotation', params=dict(attachment='https://x/a.jpg'),
        response=dict(annotations=[dict(label='cat', uuid='u', **BOX)]))]),
    ('Dataloop', 'json/a.json', dict(
        id='1', datasetId='2', filename='/a.jpg', metadata=dict(system=dict(width=80, height=60)), annotations=[dict(
            id='3', itemId='1', type='box', label='cat', coordinates=[dict(x=10, y=20, z=0), dict(x=30, y=50, z=0)])])),
    ('GeoJSON', 'a.geojson', dict(type='FeatureCollection', features=[dict(
        type='Feature', geometry=dict(type='Polygon', coordinates=[POINTS]), properties=dict(classification='x'))])),
    ('GeoJSON', 'a.json', dict(type='FeatureCollection', features=[dict(
        type='Feature', properties=dict(image='a.jpg', annotations=1), geometry=dict(coordinates=[POINTS]))])),
    ('Cityscapes polygons', 'a_gtFine_polygons.json', dict(imgHeight=60, imgWidth=80, objects=[dict(
        label='road', polygon=POINTS)])),
    ('BDD100K (Scalabel)', 'det_train.json', [dict(name='a.jpg', attributes={}, timestamp=1, labels=[dict(
        category='car', box2d=dict(x1=10, y1=20, x2=30, y2=50))])]),
    ('CreateML', '_annotations.createml.json', [dict(image='a.jpg', annotations=[dict(
        label='cat', coordinates=dict(x=20, y=35, width=20, height=30))])]),
    ('V7 Darwin', 'a.json', dict(
        version='2.0', schema_ref='https://x', item=dict(name='a.jpg', path='/', slots=[dict(type='image')]),
        annotations=[dict(name='cat', bounding_box=dict(x=10, y=20, w=20, h=30), polygon=dict(paths=[]))])),
    ('V7 Darwin', 'a.json', dict(
        dataset='x', image=dict(width=80, height=60, filename='a.jpg', workview_url='https://x'),
        annotations=[dict(name='cat', bounding_box=dict(x=10, y=20, w=20, h=30))])),
    ('YouTube-VIS', 'instances.json', dict(videos=[dict(id=1, file_names=['a.jpg'])], categories=[], annotations=[])),
    ('Labelbox', 'export.ndjson', [dict(data_row=dict(id='x', external_id='a.jpg'), projects={})]),
    ('Labelbox', 'export.json', [{'ID': 'x', 'DataRow ID': 'y', 'Labeled Data': 'https://x', 'Label': dict(
        objects=[dict(title='cat', bbox=BOX)]), 'External ID': 'a.jpg'}]),
    ('Labelbox', 'export.csv', 'ID,DataRow ID,Labeled Data,Label\nx,y,https://x,"{""objects"": []}"\n'),
    ('Prodigy', 'annotations.jsonl', [dict(
        image='data:image/jpeg;base64,/9j/', width=80, height=60, _input_hash=1, _task_hash=2, answer='accept',
        spans=[dict(label='cat', points=POINTS, type='rect', x=10, y=20, width=20, height=30)])]),
    ('SageMaker Ground Truth', 'output.manifest', [{
        'source-ref': 's3://x/a.jpg', 'job': dict(image_size=[dict(width=80, height=60, depth=3)], annotations=[dict(
            class_id=0, **BOX)]), 'job-metadata': {'class-map': {'0': 'cat'}, 'type': 'groundtruth/x'}}]),
    ('Vertex AI', 'data.jsonl', [dict(imageGcsUri='gs://x/a.jpg', boundingBoxAnnotations=[dict(
        displayName='cat', xMin=.1, yMin=.2, xMax=.3, yMax=.4)])]),
    ('Vertex AI', 'data.csv', 'TRAIN,gs://x/a.jpg,cat,0.1,0.2,,,0.3,0.4,,\n'),
    ('Ultralytics', 'x.ndjson', [
        dict(type='dataset', task='detect', name='x', class_names={'0': 'cat'}),
        dict(type='image', file='a.jpg', width=80, height=60, split='train', annotations=dict(
            boxes=[[0, .2, .3, .1, .1]]))]),
    ('CrowdHuman', 'annotation_val.odgt', [dict(ID='a', gtboxes=[dict(tag='person', hbox=[1, 2, 3, 4],
                                                                      fbox=[1, 2, 3, 4])])]),
    ('TT100K', 'annotations.json', dict(imgs={'1': dict(path='a.jpg', id=1, objects=[dict(
        category='i5', bbox=dict(xmin=1, ymin=2, xmax=3, ymax=4))])}, types=['i5'])),
    ('MPII Human Pose', 'valid.json', [dict(joints_vis=[1, 0], joints=[[1, 2], [3, 4]], image='a.jpg', scale=2.5,
                                            center=[3, 4])]),
    ('MPII Human Pose', 'mpii_human_pose_v1_u12_1.mat', 'MATLAB 5.0 MAT-file'),
    ('TuSimple', 'label_data_0313.json', [dict(lanes=[[-2, 5]], h_samples=[240, 250], raw_file='a.jpg')]),
    ('Edge Impulse', 'bounding_boxes.labels', dict(version=1, type='bounding-box-labels', boundingBoxes={'a.jpg': [dict(
        label='cat', x=10, y=20, width=20, height=30)]})),
    ('LabelU', 'result.json', [dict(id=1, result='{"width": 80, "annotations": [{"toolName": "rectTool"}]}',
                                    url='/a.jpg', fileName='a.jpg', folder='/')]),
    ('Mapillary Vistas', 'polygons/a.json', dict(width=80, height=60, objects=[dict(label='road', polygon=POINTS)])),
    ('Hugging Face (ImageFolder)', 'metadata.jsonl', [dict(file_name='a.jpg', objects=dict(
        bbox=[[10, 20, 20, 30]], categories=[0]))]),
    ('DOTA', 'labelTxt/a.txt', 'imagesource:GoogleEarth\ngsd:0.146\n10 20 30 20 30 50 10 50 small-vehicle 0\n'),
    ('DOTA', 'labelTxt/a.txt', '2753.0 2408.0 2861.0 2385.0 2888.0 2468.0 2805.0 2502.0 plane 0\n'),
    ('KITTI', 'label_2/a.txt', f'Car 0.00 0 -1.58{" 1.65" * 10} -1.59\n'),
    ('VisDrone', 'annotations/a.txt', '684,8,273,116,0,0,0,0\n406,119,265,70,0,0,0,0\n'),
    ('VisDrone', 'annotations/a.txt', '684,8,273,116,1,4,0,1,\n'),
    ('ICDAR (scene text)', 'gt/gt_a.txt', '377,117,463,117,465,130,378,130,Genaxis Theatre\n'),
    ('ICDAR (scene text)', 'gt/gt_a.txt', '377,117,463,117,465,130,378,130,2015\n1,2,3,4,5,6,7,8,###\n'),
    ('ICDAR (scene text)', 'gt/gt_a.txt', '38, 43, 920, 215, "Tiredness"\n'),
    ('ICDAR (scene text)', 'gt/gt_a.txt', '38 43 920 215 "Tiredness"\n'),
    ('MOT', 'gt/gt.txt', '1,1,912,484,97,109,0,7,1\n2,1,912,484,97,109,0,7,1\n'),
    ('MOT', 'det/det.txt', '1,-1,794.2,47.5,71.2,174.8,67.5,-1,-1,-1\n'),
    ('BBox-Label-Tool', 'Labels/a.txt', '2\n10 20 30 50\n40 20 50 50\n'),
    ('BBox-Label-Tool', 'Labels/a.txt', '1\n10 20 30 50 cat\n'),
    ('WIDER FACE', 'wider_face_train_bbx_gt.txt', '0--Parade/a.jpg\n1\n449 330 122 149 0 0 0 0 0 0\n'),
    ('WIDER FACE', 'label.txt', '# 0--Parade/a.jpg\n449 330 122 149 488.9 373.6 0.0\n'),
    ('FDDB', 'FDDB-fold-01-ellipseList.txt', '2002/08/11/big/img_591\n1\n123.5 85.5 1.26 269.6 161.7  1\n'),
    ('Pascal Annotation 1.00', 'a.txt', '# PASCAL Annotation Version 1.00\n\nImage filename : "a.png"\n'),
    ('keras-yolo3', 'train_annotation.txt', 'images/a.jpg 10,20,30,50,0 1,2,3,4,1\n'),
    ('an unknown tool (four numbers and a class)', 'labels/a.txt', 'cat 10 20 30 50\n'),
    ('an unknown tool (four numbers and a class)', 'labels/a.txt', '10,20,30,50,cat\n'),
    ('run lengths of Kaggle', 'train.csv', 'ImageId,EncodedPixels\na.jpg,1 3 10 5\n')]


def written(content: Any, indent: int | None = None) -> str:
    if isinstance(content, str):
        return content
    return json.dumps(content, indent=indent)


def write(root: Path, name: str, content: Any, indent: int | None = None) -> Path:
    """Writes a file beside an image; a list is lines of JSON where the suffix says so."""
    save(root / 'images/a.jpg', layouts.PIXELS)
    are_lines = Path(name).suffix in ('.jsonl', '.ndjson', '.manifest', '.odgt')
    layouts.text(root / name, '\n'.join(map(written, content)) if are_lines else written(content, indent))
    return root / name


@pytest.mark.parametrize('indent', [None, 2])
@pytest.mark.parametrize('tool, name, content', SAMPLES, ids=[f'{tool}: {name}' for tool, name, _ in SAMPLES])
def test_a_tool_is_named(tool: str, name: str, content: Any, indent: int | None, tmp_path: Path) -> None:
    if indent and isinstance(content, str):
        content = content.replace('\n', '\r\n')
    path = write(tmp_path, name, content, indent)
    message = refusal(find_data, tmp_path)
    assert message.startswith(f'{path} has annotations of {tool}, which are not read: ')
    if path.suffix in ('.json', '.xml'):
        assert f'of {tool}, which' in refusal(find_data, path)


def test_each_tool_has_a_sample() -> None:
    assert {tool.name for tool in TOOLS if not tool.layout} == {tool for tool, *_ in SAMPLES}


@pytest.mark.parametrize('suffix', [suffix for suffixes, *_ in OTHERS for suffix in suffixes])
@pytest.mark.parametrize('has_image', [False, True])
def test_files_of_other_kinds_are_named(suffix: str, has_image: bool, tmp_path: Path) -> None:
    if has_image:
        save(tmp_path / 'a.jpg', layouts.PIXELS)
    (tmp_path / f'x{suffix.upper()}').write_bytes(b'x')
    what, advice = next((what, advice) for suffixes, what, advice in OTHERS if suffix in suffixes)
    assert f'x{suffix.upper()} cannot be read, because {what} are not supported: {advice}' in refusal(
        find_data, tmp_path)


def test_what_a_folder_without_images_has_is_told(tmp_path: Path) -> None:
    layouts.text(tmp_path / 'a.foo', 'x')
    layouts.text(tmp_path / 'b.foo', 'x')
    layouts.text(tmp_path / 'notes', 'x')
    assert 'has no images, only files: 2 of .foo, 1 of no suffix: name the folder' in refusal(find_data, tmp_path)
    (tmp_path / 'IM0001').write_bytes(b'\0' * 128 + b'DICM')
    assert 'IM0001 cannot be read, because DICOM images are not' in refusal(find_data, tmp_path)


def test_another_tool_is_found_behind_many_images_and_far_in_its_file(tmp_path: Path) -> None:
    for index in range(1100):
        (tmp_path / f'images/{index}.jpg').parent.mkdir(exist_ok=True)
        (tmp_path / f'images/{index}.jpg').touch()
    layouts.text(tmp_path / 'z.json', json.dumps(dict(note='x' * 2**20, objects=[dict(classTitle='cat')])))
    assert 'of Supervisely' in refusal(find_data, tmp_path)


@pytest.mark.parametrize('empty', ['', '0\n'])
def test_files_without_objects_do_not_make_it_yolo(empty: str, tmp_path: Path) -> None:
    """BBox-Label-Tool writes 0 for them, and VisDrone nothing."""
    for name, text in (('a', '1\n10 20 30 50\n'), ('b', empty), ('c', empty)):
        save(tmp_path / f'Images/{name}.jpg', layouts.PIXELS)
        layouts.text(tmp_path / f'Labels/{name}.txt', text)
    assert 'of BBox-Label-Tool' in refusal(find_data, tmp_path)


def test_files_of_another_tool_do_not_hide_those_that_are_read(tmp_path: Path) -> None:
    """The converter of ultralytics leaves VisDrone's files beside those of YOLO."""
    layouts.yolo(tmp_path)
    for name, split in layouts.SPLITS.items():
        layouts.text(tmp_path / f'annotations/{split}/{name}.txt', '10,20,20,30,1,4,0,0\n')
    data = find_data(tmp_path)
    assert data.form == 'YOLO' and sum(len(one.objects) for pictures in data.splits.values() for one in pictures) == 4
