_base_ = '../../configs/camvid/segformer_pyramid-cpvt-nano_camvid-192x256.py'
custom_imports = dict(imports=['my_encodings'])
