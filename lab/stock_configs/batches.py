"""Makes a small batch for one step of any model of mmdet or mmseg, including trackers and classifiers."""
from mmengine.config import Config

from lab.from_config import Batch, detection_batch, num_classes, random_images, segmentation_batch

# Some heads select a fixed number of the best cells, so the maps need at least as many.
SIDE = 256
LARGER_SIDES = {'SingleStageDetector': 320, 'DDOD': 416}  # needed by their kernels on the smallest maps
PERSON = (256, 128)  # re-identification networks pool maps of images of this size
BATCH_SIZE = 2
NUM_BOXES = 4


def small_batch(cfg: Config, training: bool) -> Batch:
    """Makes a few small images with annotations, as a data loader of the config would collate them."""
    if cfg.default_scope == 'mmseg':
        return segmentation_batch(cfg, (SIDE, SIDE), BATCH_SIZE)
    kind = cfg.model.type.rpartition('.')[2]
    if kind == 'BaseReID':
        return _persons()
    if kind == 'ImageClassifier':
        return _classification()
    preprocessor = cfg.model.get('data_preprocessor') or {}
    if preprocessor.get('type') == 'TrackDataPreprocessor' and not (training and preprocessor.get('use_det_processor')):
        return _video(cfg)
    side = LARGER_SIDES.get(kind, SIDE)
    batch = detection_batch(cfg, (side, side), BATCH_SIZE, NUM_BOXES)
    if kind == 'SoftTeacher' and training:
        return {key: dict.fromkeys(('sup', 'unsup_teacher', 'unsup_student'), value) for key, value in batch.items()}
    return batch


def _video(cfg: Config) -> Batch:
    from mmdet.testing import demo_track_inputs
    return demo_track_inputs(1, 2, key_frames_inds=[0], image_shapes=(3, SIDE, SIDE), num_items=[4],
                             num_classes=num_classes(cfg), with_mask=True)


def _persons() -> Batch:
    """Makes four images of each of two persons, as the triplet loss needs them."""
    from mmdet.structures import ReIDDataSample
    samples = [ReIDDataSample(metainfo=dict(img_shape=PERSON, ori_shape=PERSON)) for _ in range(8)]
    for index, sample in enumerate(samples):
        sample.set_gt_label(index // 4)
    return dict(inputs=random_images(len(samples), PERSON), data_samples=samples)


def _classification() -> Batch:
    from mmpretrain.structures import DataSample
    return dict(inputs=random_images(BATCH_SIZE, (SIDE, SIDE)),
                data_samples=[DataSample().set_gt_label(i) for i in range(BATCH_SIZE)])
