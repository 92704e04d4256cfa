# For comparisons of position encodings: only the backbone's encoding has information about positions. Whole images keep
# their aspect of 480 x 360 pixels.
_base_ = './segformer_pyramid-cpvt-nano_camvid-256x256.py'
size = (256, 192)

model = dict(backbone=dict(img_size=size[::-1]))
train_pipeline = _base_.train_dataloader.dataset.pipeline
train_pipeline[2].update(scale=size)
test_pipeline = _base_.test_pipeline
test_pipeline[1].update(scale=size)
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = dict(dataset=dict(pipeline=test_pipeline))
