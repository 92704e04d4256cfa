"""Recognises annotations that cannot be read, and names what exports them in a format that can."""
import re

from openmmlab_data.form.folder import Folder, head

HEAD = 4096  # bytes
LABELFORMAT = ('pip install labelformat, and run labelformat convert --task object-detection --input-format {} '
               '--category-names ALL,CLASSES --output-format coco --output-file coco.json')
# Suffix, what the beginning of a file has, the format, and where its tool exports another one.
FORMATS: tuple[tuple[str, bytes, str, str], ...] = (
    ('.xml', rb'<annotations[\s\S]*<track\b', 'CVAT for video',
     'in CVAT choose Export task dataset, CVAT for images 1.1'),
    ('.json', rb'"visitedState"|"asset"\s*:|"assets"\s*:', 'VoTT',
     'in VoTT choose Export, Comma Separated Values, which are read'),
    ('.json', rb'"predicted_iou"|"stability_score"', 'Segment Anything, which names no class',
     'write its masks into a COCO JSON file with your categories'),
    ('.json', rb'"_via_|"regions"\s*:|"shape_attributes"', 'the VGG Image Annotator',
     'in VIA choose Annotation, Export Annotations (COCO format)'),
    ('.json', rb'"classTitle"|"classId"', 'Supervisely', 'run its app Export to COCO'),
    ('.json', rb'"dm_format_version"|"infos"[\s\S]*"items"', 'Datumaro',
     'run datum convert -i FOLDER -if datumaro -f coco_instances -o OUT -- --save-media'),
    ('.json', rb'"imgHeight"|"gtFine"', 'Cityscapes polygons',
     'run createTrainIdLabelImgs.py of cityscapesscripts, which writes label maps'),
    ('.json', rb'"box2d"|"poly2d"|"frameIndex"', 'BDD100K (Scalabel)', 'run python -m scalabel.label.to_coco'),
    ('.json', rb'"coordinates"', 'CreateML', 'convert it to COCO JSON with Roboflow or RectLabel'),
    ('.json', rb'"schema_ref"|"darwin"|"bounding_box"[\s\S]*"slots"|"slots"', 'V7 Darwin',
     'run darwin dataset convert with the format coco'),
    ('.json', rb'"videos"\s*:', 'YouTube-VIS', 'write a COCO file whose images are the frames'),
    ('.ndjson', rb'"data_row"', 'Labelbox', LABELFORMAT.format('labelbox --input-file FILE')),
    ('.json', rb'"data_row"|"Labeled Data"', 'Labelbox', 'export it as NDJSON, which labelformat converts to COCO'),
    ('.ndjson', rb'', 'Ultralytics', 'export as COCO or YOLO'),
    ('.txt', rb'^imagesource:|^(-?\d+(\.\d+)? ){8}\S+ \d\s', 'DOTA',
     'call convert_dota_to_yolo_obb of ultralytics.data.converter'),
    ('.txt', rb'(?m)^[A-Za-z_]+ \d\.?\d* \d -?\d+\.?\d* -?\d+\.?\d* ', 'KITTI',
     LABELFORMAT.format('kitti --input-folder LABELS --images-rel-path ../IMAGES')),
    ('.txt', rb'^\d+,-?\d+,-?[\d.]+,-?[\d.]+,[\d.]+,[\d.]+,', 'MOT', 'run datum convert -if mot_seq -f coco'),
    *((suffix, rb'', 'TFRecord', 'export as COCO JSON, or run datum convert -if tf_detection_api -f coco')
      for suffix in ('.tfrecord', '.tfrec', '.record')))


def name_foreign(folder: Folder) -> str | None:
    """Returns a clause that names the format of annotations and the way to another one; None if it is unknown."""
    for path in folder.files[:1000]:
        name = path.name.lower()
        for suffix, pattern, form, remedy in FORMATS:
            if (name.endswith(suffix) or f'{suffix}-' in name) and re.search(pattern, head(path, HEAD)):
                return f'{path} has annotations of {form}, which are not read: {remedy}'
    return None
