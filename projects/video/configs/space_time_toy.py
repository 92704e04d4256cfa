# Tests whether a model needs a backbone that mixes neighbouring frames to tell directions. In both variants, the head
# attends to all frames. In tests, the backbone gets a whole video, or four frames at a time.
config = './mask2former-vis_pyramid-cpvt-nano_toy-video.py'
variants = {
    'PEG': dict(options={'model.backbone.position_encoding': dict(type='PEG')}),
    'PEG, ndim=3': dict(options={'model.backbone.position_encoding': dict(type='PEG', ndim=3)}),
}
tests = {'whole videos': {}, 'windows of 4 frames': {'model.data_preprocessor.window': 4}}
metrics = ['youtube_vis/segm_mAP', 'youtube_vis/segm_mAP_50']
