"""A config for each head of mmdet and mmseg that has classes, shrunken, and data of any number of classes for it."""
import json
from pathlib import Path
from typing import Any

import numpy as np
from mmengine.config import Config
from mmengine.registry import MODELS
from torch import Tensor, nn

from openmmlab_tools.config_files import read_config
from openmmlab_tools.config_text import assignments
from openmmlab_tools.config_walk import walk
from openmmlab_tools.libraries import shipped_configs
from tests.coco_form import SIDE, cells
from tests.tools.conftest import save

QUERIES = 20
# Below the folder of the library's configs. Together they have all heads with classes; see test_heads.py.
DETECTORS = (
    'atss/atss_r50_fpn_1x_coco', 'autoassign/autoassign_r50-caffe_fpn_1x_coco', 'boxinst/boxinst_r50_fpn_ms-90k_coco',
    'cascade_rcnn/cascade-mask-rcnn_r50_fpn_1x_coco', 'cascade_rpn/cascade-rpn_faster-rcnn_r50-caffe_fpn_1x_coco',
    'centernet/centernet-update_r50-caffe_fpn_ms-1x_coco',
    'centripetalnet/centripetalnet_hourglass104_16xb6-crop511-210e-mstest_coco',
    'condinst/condinst_r50_fpn_ms-poly-90k_coco_instance', 'conditional_detr/conditional-detr_r50_8xb2-50e_coco',
    'convnext/cascade-mask-rcnn_convnext-s-p4-w7_fpn_4conv1fc-giou_amp-ms-crop-3x_coco',
    'cornernet/cornernet_hourglass104_8xb6-210e-mstest_coco', 'crowddet/crowddet-rcnn_r50_fpn_8xb2-30e_crowdhuman',
    'dab_detr/dab-detr_r50_8xb2-50e_coco', 'ddod/ddod_r50_fpn_1x_coco', 'ddq/ddq-detr-4scale_r50_8xb2-12e_coco',
    'deformable_detr/deformable-detr_r50_16xb2-50e_coco', 'detr/detr_r50_8xb2-150e_coco',
    'dino/dino-4scale_r50_8xb2-12e_coco', 'double_heads/dh-faster-rcnn_r50_fpn_1x_coco',
    'faster_rcnn/faster-rcnn_r50-caffe-c4_ms-1x_coco', 'fcos/fcos_r50-caffe_fpn_gn-head_1x_coco',
    'foveabox/fovea_r50_fpn_4xb4-1x_coco', 'free_anchor/freeanchor_r50_fpn_1x_coco', 'fsaf/fsaf_r50_fpn_1x_coco',
    'gfl/gfl_r50_fpn_1x_coco', 'gn/mask-rcnn_r50_fpn_gn-all_2x_coco',
    'guided_anchoring/ga-retinanet_r50_fpn_1x_coco', 'htc/htc-without-semantic_r50_fpn_1x_coco',
    'mask2former/mask2former_r50_8xb2-lsj-50e_coco', 'mask2former/mask2former_r50_8xb2-lsj-50e_coco-panoptic',
    'maskformer/maskformer_r50_ms-16xb1-75e_coco', 'ms_rcnn/ms-rcnn_r50_fpn_1x_coco',
    'nas_fcos/nas-fcos_r50-caffe_fpn_nashead-gn-head_4xb4-1x_coco', 'nas_fpn/retinanet_r50_fpn_crop640-50e_coco',
    'paa/paa_r50_fpn_1x_coco', 'pisa/retinanet-r50_fpn_pisa_1x_coco', 'pisa/ssd300_pisa_coco',
    'point_rend/point-rend_r50-caffe_fpn_ms-1x_coco', 'queryinst/queryinst_r50_fpn_1x_coco',
    'reppoints/reppoints-moment_r50_fpn_1x_coco', 'retinanet/retinanet_r50_fpn_1x_coco',
    'rtmdet/rtmdet-ins_tiny_8xb32-300e_coco', 'rtmdet/rtmdet_tiny_8xb32-300e_coco',
    'sabl/sabl-faster-rcnn_r50_fpn_1x_coco', 'sabl/sabl-retinanet_r50_fpn_1x_coco',
    'seesaw_loss/mask-rcnn_r50_fpn_seesaw-loss_random-ms-2x_lvis-v1', 'solo/decoupled-solo-light_r50_fpn_3x_coco',
    'solo/decoupled-solo_r50_fpn_1x_coco', 'solo/solo_r50_fpn_1x_coco', 'solov2/solov2_r50_fpn_1x_coco',
    'sparse_rcnn/sparse-rcnn_r50_fpn_1x_coco', 'ssd/ssd300_coco', 'tood/tood_r50_fpn_1x_coco',
    'vfnet/vfnet_r50_fpn_1x_coco', 'yolact/yolact_r50_1xb8-55e_coco', 'yolo/yolov3_d53_8xb8-320-273e_coco',
    'yolof/yolof_r50-c5_8xb8-1x_coco', 'yolox/yolox_tiny_8xb8-300e_coco')
SEGMENTORS = (
    'ann/ann_r50-d8_4xb4-80k_ade20k-512x512', 'apcnet/apcnet_r50-d8_4xb4-80k_ade20k-512x512',
    'ccnet/ccnet_r50-d8_4xb4-80k_ade20k-512x512', 'danet/danet_r50-d8_4xb4-80k_ade20k-512x512',
    'ddrnet/ddrnet_23-slim_in1k-pre_2xb6-120k_cityscapes-1024x1024',
    'deeplabv3/deeplabv3_r50-d8_4xb4-80k_ade20k-512x512', 'deeplabv3plus/deeplabv3plus_r50-d8_4xb4-80k_ade20k-512x512',
    'dmnet/dmnet_r50-d8_4xb4-80k_ade20k-512x512', 'dnlnet/dnl_r50-d8_4xb4-80k_ade20k-512x512',
    'dpt/dpt_vit-b16_8xb2-160k_ade20k-512x512', 'emanet/emanet_r50-d8_4xb2-80k_cityscapes-769x769',
    'encnet/encnet_r50-d8_4xb4-80k_ade20k-512x512', 'fastscnn/fast_scnn_8xb4-160k_cityscapes-512x1024',
    'gcnet/gcnet_r50-d8_4xb4-80k_ade20k-512x512', 'isanet/isanet_r50-d8_4xb4-80k_ade20k-512x512',
    'knet/knet-s3_r50-d8_fcn_8xb2-adamw-80k_ade20k-512x512', 'mask2former/mask2former_r50_8xb2-160k_ade20k-512x512',
    'maskformer/maskformer_r50-d32_8xb2-160k_ade20k-512x512',
    'mobilenet_v3/mobilenet-v3-d8-s_lraspp_4xb4-320k_cityscapes-512x1024',
    'nonlocal_net/nonlocal_r50-d8_4xb4-80k_ade20k-512x512', 'ocrnet/ocrnet_hr18_4xb4-80k_ade20k-512x512',
    'pidnet/pidnet-s_2xb6-120k_1024x1024-cityscapes', 'point_rend/pointrend_r50_4xb4-160k_ade20k-512x512',
    'psanet/psanet_r50-d8_4xb4-80k_ade20k-512x512', 'pspnet/pspnet_r50-d8_4xb4-80k_ade20k-512x512',
    'san/san-vit-b16_voc12aug-640x640', 'segformer/segformer_mit-b0_8xb2-160k_ade20k-512x512',
    'segmenter/segmenter_vit-s_fcn_8xb1-160k_ade20k-512x512', 'segmenter/segmenter_vit-s_mask_8xb1-160k_ade20k-512x512',
    'segnext/segnext_mscan-t_1xb16-adamw-160k_ade20k-512x512', 'sem_fpn/fpn_r50_4xb4-160k_ade20k-512x512',
    'setr/setr_vit-l-mla_8xb1-160k_ade20k-512x512', 'setr/setr_vit-l_pup_8xb2-160k_ade20k-512x512',
    'stdc/stdc1_4xb12-80k_cityscapes-512x1024', 'unet/unet-s5-d16_fcn_4xb4-40k_chase-db1-128x128',
    'upernet/upernet_r50_4xb4-80k_ade20k-512x512')
# Backbones that are not replaced: heads read more than maps of it, or it is small.
KEPT = ('DDRNet', 'PIDNet', 'FastSCNN', 'STDCContextPathNet', 'VisionTransformer', 'UNet', 'CSPNeXt', 'CSPDarknet',
        'SSDVGG', 'Darknet', 'MobileNetV3', 'MixVisionTransformer', 'MSCAN', 'HRNet')


@MODELS.register_module(force=True)
class Maps(nn.Module):
    """A backbone of one convolution for each map. It is called nano, so that everything else is for a CPU."""

    def __init__(self, channels: list[int], strides: list[int], arch: str = 'nano', in_channels: int = 3,
                 init_cfg: object = None) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(in_channels, number, 3, stride, 1)
                                   for number, stride in zip(channels, strides, strict=True))

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        return tuple(conv(images) for conv in self.convs)


def _maps(backbone: dict[str, Any]) -> dict[str, Any]:
    """Returns the config of `Maps` like those of a ResNet, hourglass, ConvNeXt or large ViT."""
    kind = backbone['type'].rpartition('.')[2]
    if kind == 'HourglassNet':
        return dict(type='Maps', channels=[256] * backbone['num_stacks'], strides=[4] * backbone['num_stacks'])
    if kind == 'ConvNeXt':
        return dict(type='Maps', channels=[96, 192, 384, 768], strides=[4, 8, 16, 32])
    if kind == 'VisionTransformer':
        number = len(backbone['out_indices'])
        return dict(type='Maps', channels=[backbone['embed_dims']] * number, strides=[16] * number)
    assert kind in ('ResNet', 'ResNetV1c'), kind
    width = 64 if backbone['depth'] < 50 else 256
    strides = np.cumprod([4, *backbone.get('strides', (1, 2, 2, 2))])[1:].tolist()
    indices = backbone.get('out_indices', (0, 1, 2, 3))
    return dict(type='Maps', channels=[width << i for i in indices], strides=[strides[i] for i in indices])


def shrunken(library: str, name: str) -> Config:
    """Reads a config of a library, and makes its model cheap, without changing its heads."""
    cfg = read_config(str(shipped_configs(library) / f'{name}.py'))
    for path, part in walk(cfg.model):
        part.pop('init_cfg', None)
        for key in ('pretrained', 'teacher_ckpt'):
            if key in part:
                part[key] = None
        if 'backbone' in part and (part['backbone']['type'] not in KEPT or part['backbone'].get('embed_dims') == 1024):
            part['backbone'] = _maps(part['backbone'])
        if 'batch_augments' in part:
            part['batch_augments'] = None
        if 'num_points' in part and 'oversample_ratio' in part:
            part['num_points'] = 64
        for key in ('num_queries', 'num_proposals'):
            if key in part and path[-1:] != ('san_cfg',):
                part[key] = QUERIES
    for key in ('custom_hooks', 'load_from', 'tta_model', 'tta_pipeline', 'auto_scale_lr'):
        cfg.pop(key, None)
    return cfg


def with_few_proposals(model: dict[str, Any]) -> None:
    """Makes two-stage detectors cheap, in place."""
    for path, part in walk(model):
        if path[-1:] in (('rpn_proposal',), ('rpn',)) and 'nms_pre' in part:
            part.update(nms_pre=20, max_per_img=20)
        elif path[-1:] == ('sampler',) and 'num' in part:
            part['num'] = 16


def write_base(cfg: Config, path: Path) -> Path:
    path.write_text(assignments(cfg.to_dict()))
    return path


def write_objects(root: Path, classes: int, images: int = 2) -> Path:
    """Writes COCO files with an object of each class, and at least two, in each image."""
    rng = np.random.default_rng(0)
    for split in ('train', 'val'):
        content: dict[str, Any] = dict(images=[], annotations=[], categories=[
            dict(id=i + 1, name=f'class {i}') for i in range(classes)])
        for image in range(1, images + 1):
            save(root / f'{split}2017/{split}{image}.png', rng.integers(0, 256, (SIDE, SIDE, 3), np.uint8))
            content['images'].append(dict(id=image, file_name=f'{split}{image}.png', width=SIDE, height=SIDE))
            for index, (x, y, w, h) in enumerate(cells(max(classes, 2))):
                content['annotations'].append(dict(
                    id=len(content['annotations']) + 1, image_id=image, category_id=index % classes + 1,
                    bbox=[x, y, w, h], area=w * h, iscrowd=0, segmentation=[[x, y, x + w, y, x + w, y + h, x, y + h]]))
        file = root / f'annotations/instances_{split}2017.json'
        file.parent.mkdir(exist_ok=True, parents=True)
        file.write_text(json.dumps(content))
    return root


def write_maps(root: Path, classes: int, images: int = 2) -> Path:
    """Writes label maps with a cell of each class; class 0 is around the others."""
    rng = np.random.default_rng(0)
    for split in ('train', 'val'):
        for image in range(images):
            labels = np.zeros((SIDE, SIDE), np.uint8)
            for label, (x, y, w, h) in enumerate(cells(classes)):
                labels[y:y + h, x:x + w] = label
            save(root / f'{split}/images/{image}.png', rng.integers(0, 256, (SIDE, SIDE, 3), np.uint8))
            save(root / f'{split}/masks/{image}_mask.png', labels)
    return root
