"""Recognises which tool wrote a file of annotations, and names the export that can be read."""
import re
from pathlib import Path
from typing import NamedTuple

from openmmlab_tools.readers.form.folder import Folder, head, peek

from .layouts import COCO, CVAT, LABEL_STUDIO, LABELME, VOC

LINES = 4096  # bytes to read from the beginning of a text file
ENDS = 2**18, 2**26  # bytes to read from both ends of a file with keys; the second number if the first is not enough
KEYS = re.compile(rb'"([\w -]{1,40})"\s*:')
TAGS = re.compile(rb'<([A-Za-z_][\w.-]{0,40})[\s>/]')
CONVERT = 'write a COCO JSON file with images, categories and annotations'
# https://github.com/lightly-ai/labelformat and https://github.com/open-edge-platform/datumaro
LABELFORMAT = ('pip install labelformat, and run labelformat convert --task object-detection --input-format {} '
               '--category-names ALL,CLASSES --output-format coco --output-file coco.json')
DATUM = 'run datum convert -if {} -f coco_instances -i FOLDER -o OUT -- --save-media'


class Tool(NamedTuple):
    """A tool, or a kind of its files."""
    name: str
    suffixes: tuple[str, ...]
    # How files are recognised, each alone: for JSON and XML the keys or tags that both ends of a file have, '[' if it
    # begins with a list, 'a|b' for either, and '~' for a space in a key; for texts a pattern of their beginning.
    signs: tuple[str, ...]
    advice: str = ''  # how to make files that can be read
    layout: str = ''  # of the reader of these files; '': they are not read

    def says(self, path: Path) -> str:
        return f'{path} has annotations of {self.name}, which are not read: {self.advice}'


_JSON, _LINES, _XML, _TEXT = ('.json',), ('.json', '.jsonl', '.ndjson', '.manifest'), ('.xml',), ('.txt',)
# A message names the first tool whose signs a file has, so tools with more or rarer signs come first.
TOOLS: tuple[Tool, ...] = (
    Tool(CVAT, _XML, ('annotations image',), layout=CVAT),
    Tool('CVAT for video', _XML, ('annotations track',), 'in CVAT choose Export task dataset, CVAT for images 1.1'),
    Tool('dlib (imglab)', _XML, ('dataset images image',),
         f'{CONVERT}; its boxes have top, left, width and height in pixels'),
    Tool('ASAP', _XML, ('ASAP_Annotations',), 'draw its polygons into label maps'),
    Tool('Aperio ImageScope', _XML, ('Annotations Annotation Region',), 'draw its regions into label maps'),
    Tool('UA-DETRAC', _XML, ('sequence frame target_list',), f'{CONVERT}, whose images are the frames'),
    Tool('PAGE XML', _XML, ('PcGts',), f'{CONVERT} from its regions'),
    Tool(VOC, _XML, ('annotation',), layout=VOC),

    Tool(LABEL_STUDIO, _JSON, ('[ original_width', '[ data annotations file_upload'), layout=LABEL_STUDIO),
    Tool(COCO, _JSON, ('images categories',), layout=COCO),
    Tool('Datumaro', _JSON, ('items dm_format_version|infos', 'items categories info'), DATUM.format('datumaro')),
    Tool('captions of COCO', _JSON, ('images caption',), 'take instances_*.json, which has boxes and masks'),
    Tool('predictions in the layout of COCO', _JSON, ('[ image_id category_id',),
         'take the file with images and categories, which the predictions are for'),
    Tool(LABELME, _JSON, ('shapes imagePath',), layout=LABELME),
    Tool('Azure Custom Vision', _JSON, ('regions tagName|tagId',),
         f'{CONVERT}; left, top, width and height of its regions are shares of the image'),
    Tool('Azure Machine Learning', _LINES, ('topX topY',), 'in Azure choose Export, COCO file'),
    Tool('Azure Document Intelligence', _JSON, ('document labels boundingBoxes',),
         f'{CONVERT}; its boxes are corners in shares of the page'),
    Tool('VIA 3 (VGG Image Annotator)', _JSON, ('project metadata vid_list|pid',),
         f'{CONVERT} from its metadata (xy is 2, x, y, width and height for a box), or use VIA 2'),
    Tool('VIA 2 (VGG Image Annotator)', _JSON, ('_via_settings', '_via_img_metadata', 'shape_attributes'),
         'in VIA choose Annotation, Export Annotations (COCO format), or (as csv)'),
    Tool('VoTT', (*_JSON, '.vott'), ('visitedState', 'asset regions', 'assets tags'),
         'in VoTT choose Export, Comma Separated Values, which are read'),
    Tool('SuperAnnotate', _JSON, ('instances metadata', 'instances className|classId', 'attribute_groups'),
         'call superannotate.export_annotation with dataset_format="COCO"'),
    Tool('Supervisely', _JSON, ('classTitle', 'objects classId', 'classes title shape'),
         'run its app Export to COCO'),
    Tool('Segment Anything, which names no class', _JSON, ('predicted_iou', 'stability_score'),
         'write its masks into a COCO JSON file with your categories'),
    Tool('Hasty', _JSON, ('label_classes',), 'in Hasty choose the export COCO Detection'),
    Tool('Encord', _JSON, ('label_hash', 'data_hash'), 'in Encord choose COCO for the format of the export'),
    Tool('Kili', _LINES, ('jsonResponse',), 'call kili.export_labels with fmt="coco"'),
    Tool('Segments.ai', _JSON, ('samples task_attributes|label_status',),
         'call export_dataset of segments.utils with export_format="coco-instance"'),
    Tool('FiftyOne', _JSON, ('samples filepath',),
         'call dataset.export with dataset_type=fiftyone.types.COCODetectionDataset'),
    Tool('Scale AI', _LINES, ('task_id params', 'task_id response'),
         f'{CONVERT}; its boxes have left, top, width and height in pixels'),
    Tool('Dataloop', _JSON, ('datasetId annotations|coordinates', 'itemId coordinates'),
         'in Dataloop export the dataset as COCO'),
    Tool('GeoJSON', ('.json', '.geojson'), ('features geometry',),
         'draw its polygons into label maps, with rasterio.features.rasterize for coordinates on a map'),
    Tool('Cityscapes polygons', _JSON, ('imgHeight', 'gtFine'),
         'run createTrainIdLabelImgs.py of cityscapesscripts, which writes label maps'),
    Tool('BDD100K (Scalabel)', _JSON, ('box2d', 'poly2d', 'frameIndex'), 'run python -m scalabel.label.to_coco'),
    Tool('CreateML', _JSON, ('coordinates annotations',), 'convert it to COCO JSON with Roboflow or RectLabel'),
    Tool('V7 Darwin', _JSON, ('schema_ref', 'slots', 'workview_url annotations'),
         'run darwin dataset convert with the format coco'),
    Tool('YouTube-VIS', _JSON, ('videos',), 'write a COCO file whose images are the frames'),
    Tool('Labelbox', ('.ndjson', '.jsonl'), ('data_row',), LABELFORMAT.format('labelbox --input-file FILE')),
    Tool('Labelbox', _JSON, ('data_row', 'Labeled~Data', 'DataRow~ID'),
         'export it as NDJSON, which labelformat converts to COCO'),
    Tool('Prodigy', _LINES, ('_task_hash', '_input_hash'), f'{CONVERT} from its spans, whose points are in pixels'),
    Tool('SageMaker Ground Truth', _LINES, ('source-ref',),
         f'{CONVERT}; its annotations have left, top, width and height in pixels'),
    Tool('Vertex AI', _LINES, ('imageGcsUri', 'imagePayload'),
         f'{CONVERT}; its boxes are corners in shares of the image'),
    Tool('Ultralytics', ('.ndjson',), ('type task', 'type file'), 'export as COCO or YOLO'),
    Tool('CrowdHuman', ('.odgt',), ('gtboxes',), f'{CONVERT}; fbox is x, y, width and height in pixels'),
    Tool('TT100K', _JSON, ('imgs types', 'imgs objects'), f'{CONVERT}; its boxes are corners in pixels'),
    Tool('MPII Human Pose', _JSON, ('joints image',), f'{CONVERT}; it has joints and no boxes'),
    Tool('TuSimple', _JSON, ('h_samples',), 'draw its lanes into label maps'),
    Tool('Edge Impulse', (*_JSON, '.labels'), ('boundingBoxes',), f'{CONVERT} from its boundingBoxes'),
    Tool('LabelU', _JSON, ('result fileName', 'toolName'), 'in LabelU choose the export COCO'),
    Tool('Mapillary Vistas', _JSON, ('objects polygon',), 'take its label maps, in the folder labels'),
    Tool('Hugging Face (ImageFolder)', ('metadata.jsonl',), ('file_name',),
         f'{CONVERT}; objects.bbox is x, y, width and height in pixels'),

    Tool('DOTA', _TEXT, (r'imagesource:', r'gsd:', r'(-?\d+(\.\d+)?[ \t]+){8}[A-Za-z][\w-]*([ \t]+\d)?[ \t]*(\n|$)'),
         'call convert_dota_to_yolo_obb of ultralytics.data.converter'),
    Tool('KITTI', _TEXT, (r'[A-Za-z_]+ -?\d+(\.\d+)? -?\d+ -?\d+(\.\d+)? -?\d+(\.\d+)? ',),
         LABELFORMAT.format('kitti --input-folder LABELS --images-rel-path ../IMAGES')),
    Tool('VisDrone', _TEXT, (r'(-?\d+,){7}-?\d+,?[ \t]*(\n|$)',),
         'write YOLO files as the converter in VisDrone.yaml of ultralytics does, or ' + CONVERT),
    Tool('ICDAR (scene text)', _TEXT, (
        r'((-?\d+(\.\d+)?, ?){8}.*\n)*?(-?\d+(\.\d+)?, ?){8}[^\d\s,.-]', r'(-?\d+,? ){3}-?\d+,? "',
        r'(-?\d+, ?){4}"'), f'{CONVERT}; its lines are corners in pixels, and a text'),
    Tool('MOT', _TEXT, (r'\d+,-?\d+(,-?\d+(\.\d+)?){7,8}[ \t]*(\n|$)',), DATUM.format('mot_seq')),
    Tool('BBox-Label-Tool', _TEXT, (r'\d+[ \t]*\n(\d+[ \t]+){3}\d+([ \t]+[^\W\d]\S*)?[ \t]*(\n|$)',),
         f'{CONVERT}; its lines are left, top, right and bottom in pixels, and perhaps a class'),
    Tool('WIDER FACE', _TEXT, (r'(# )?\S[^\n]*\.(jpe?g|png)[ \t]*\n(\d+[ \t]*\n)?(-?\d+ ){4}',),
         DATUM.format('wider_face')),
    Tool('FDDB', _TEXT, (r'[\w/]+\n\d+\n(-?\d+\.\d+ ){5}',), f'{CONVERT} from its ellipses'),
    Tool('Pascal Annotation 1.00', _TEXT, (r'# PASCAL Annotation Version',), f'{CONVERT} from its boxes'),
    Tool('keras-yolo3', _TEXT, (r'\S[^\n]*\.(jpe?g|png|bmp)( \d+,\d+,\d+,\d+,\d+)+[ \t]*(\n|$)',),
         f'{CONVERT}; its boxes are left, top, right, bottom and the number of the class'),
    Tool('an unknown tool (four numbers and a class)', _TEXT, (
        r'(-?\d+(\.\d+)?[, \t]+){4}[A-Za-z]', r'[A-Za-z][\w-]*([ ,\t]+-?\d+(\.\d+)?){4,5}[ \t]*(\n|$)'),
        f'{CONVERT}, or write CSV files with the headings filename, xmin, ymin, xmax, ymax and class'),
    Tool('MPII Human Pose', ('mpii_human_pose_v1_u12_1.mat',), ('',), DATUM.format('mpii')),
    Tool('Labelbox', ('.csv',), (r'[^\n]*(Labeled Data|DataRow ID)',),
         'export it as NDJSON, which labelformat converts to COCO'),
    Tool('Vertex AI', ('.csv',), (r'((TRAIN\w*|VALID\w*|TEST|UNASSIGNED),)?gs://',),
         f'{CONVERT}; its boxes are corners in shares of the image'),
    Tool('run lengths of Kaggle', ('.csv',), (r'[^\n]*(EncodedPixels|\brle\b|_rle\b)',),
         'draw its run lengths into label maps'))
# Files of which the suffix says all, or the bytes from a place on: what they are, and what to do.
OTHERS: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (('.nii', '.nii.gz', '.mha', '.mhd', '.nrrd'), 'medical volumes',
     'save their slices as PNG or TIFF, for example with SimpleITK'),
    (('.zip', '.tar', '.tgz', '.gz', '.bz2', '.xz', '.7z', '.rar'), 'archives', 'unpack them'),
    (('.dcm', '.dicom'), 'DICOM images', 'save them as PNG or TIFF, for example with pydicom'),
    (('.heic', '.heif', '.avif', '.jxl'), 'HEIF, AVIF or JPEG XL images',
     'save them as JPEG, for example with pillow-heif'),
    (('.cr2', '.cr3', '.nef', '.arw', '.dng', '.orf', '.rw2', '.raf'), 'raw photos', 'save them as JPEG or TIFF'),
    (('.svs', '.ndpi', '.mrxs', '.scn', '.czi', '.lif', '.nd2', '.vsi'), 'microscope slides',
     'save parts of them as PNG or TIFF, for example with openslide or bioio'),
    (('.tfrecord', '.tfrecords', '.tfrec', '.record'), 'TFRecord files',
     f'export as COCO JSON, or {DATUM.format("tf_detection_api")}'),
    (('.parquet', '.arrow'), 'tables of a Hugging Face dataset',
     f'save its images as files (datasets.load_dataset), and {CONVERT}'),
    (('.npy', '.npz', '.h5', '.hdf5', '.mat', '.mdb', '.pkl'), 'arrays or databases',
     'save their images and label maps as PNG or TIFF'),
    (('.mp4', '.avi', '.mov', '.mkv', '.webm'), 'videos', 'save their frames as images'))
KEYED = (*_LINES, *_XML, '.geojson', '.vott', '.odgt', '.labels')  # suffixes of files with keys or tags
_PATTERNS = [(tool, re.compile('|'.join(tool.signs))) for tool in TOOLS if not {*tool.suffixes} & {*KEYED}]
DICOM = slice(128, 132), b'DICM'  # also in files without suffix


def recognise(path: Path) -> Tool | None:
    """Returns the tool that wrote a file, by its first lines, or by both ends of JSON and XML; None if it is unknown.
    """
    name, suffix = path.name.lower(), path.suffix.lower()
    tools = [tool for tool in TOOLS if name.endswith(tool.suffixes)]
    if not tools:
        return None
    if suffix not in KEYED:
        return of_lines(name, head(path, LINES))
    size = path.stat().st_size
    for most in ENDS if size > ENDS[0] else ENDS[:1]:
        keys = _keys(peek(path, most), suffix == '.xml')
        if tool := next((tool for tool in tools if any(_has(sign, keys) for sign in tool.signs)), None):
            return tool
    return None


def of_lines(name: str, start: bytes) -> Tool | None:
    """Returns the tool that wrote a text file of that name, by its beginning."""
    text = text_of(start)
    return next((tool for tool, pattern in _PATTERNS if name.lower().endswith(tool.suffixes) and pattern.match(text)),
                None)


def text_of(start: bytes) -> str:
    """Decodes the beginning of a text file (UTF-16 if it begins with the mark of UTF-16) and unifies its line ends."""
    encoding = 'utf-16' if start.startswith((b'\xff\xfe', b'\xfe\xff')) else 'utf-8-sig'
    return start.decode(encoding, 'replace').replace('\r\n', '\n').lstrip()


def _keys(ends: bytes, is_xml: bool) -> set[str]:
    if ends.startswith((b'\xff\xfe', b'\xfe\xff')):
        ends = ends.decode('utf-16', 'replace').encode()
    keys = {match[1].decode() for match in (TAGS if is_xml else KEYS).finditer(ends)}
    return keys | ({'['} if ends.removeprefix(b'\xef\xbb\xbf').lstrip()[:1] == b'[' else set())


def _has(sign: str, keys: set[str]) -> bool:
    return all(any(key.replace('~', ' ') in keys for key in word.split('|')) for word in sign.split(' '))


def name_tool(folder: Folder) -> str | None:
    """Returns a clause with a tool whose annotations are not read, and with what to do; None if there is none."""
    examples: dict[Tool, Path] = {}
    for path in folder.files:
        if (tool := recognise(path)) and not tool.layout:
            examples.setdefault(tool, path)
    tool = min(examples, key=TOOLS.index, default=None)
    return tool.says(examples[tool]) if tool else None


def name_files(folder: Folder) -> str | None:
    """Returns a clause with files that are neither images nor annotations that can be read, and with what to do."""
    for suffixes, kind, advice in OTHERS:
        shard = re.compile(rf'({"|".join(map(re.escape, suffixes))})-\d+')
        for path in folder.files:
            is_dicom = '.dcm' in suffixes and not path.suffix and head(path, DICOM[0].stop)[DICOM[0]] == DICOM[1]
            if path.name.lower().endswith(suffixes) or shard.search(path.name.lower()) or is_dicom:
                return f'{path} cannot be read, because {kind} are not supported: {advice}'
    return None
