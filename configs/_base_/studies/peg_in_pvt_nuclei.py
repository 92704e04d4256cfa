# In a detector of nuclei, at the training size and twice that. Half of the config's iterations.
_base_ = './peg_in_pvt.py'
config = '../../nuclei/mask-rcnn_pvtv2-b0-pretrained_fpn_nuclei.py'
max_iters = 200
schedule = {'train_cfg.max_iters': max_iters, 'train_cfg.val_interval': max_iters, 'param_scheduler.1.end': max_iters,
            'param_scheduler.1.T_max': max_iters - 50}
variants = {name: dict(options={**variant['options'], **schedule}) for name, variant in _base_.variants.items()}
tests = {f'{ratio}x': {'test_dataloader.dataset.pipeline.1.scale_factor': float(ratio)} for ratio in (1, 2)}
metrics = ['coco/bbox_mAP', 'coco/segm_mAP']
