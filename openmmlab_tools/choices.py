"""Suffixes, choices and defaults that help texts name. This file imports nothing, so that help is there at once."""
# Names of images that both Pillow and OpenCV read.
IMAGE_SUFFIXES = ('.jpg', '.jpeg', '.jpe', '.jfif', '.png', '.bmp', '.webp', '.tif', '.tiff', '.jp2', '.pbm', '.pgm',
                  '.ppm', '.pnm')
VIDEO_SUFFIXES = ('.mp4', '.avi', '.mov', '.mkv', '.webm', '.m4v', '.mpg', '.mpeg', '.wmv')
# A photo of most cameras. A segmentor needs memory for all classes at all pixels of an image: 10 GB for the 150 classes
# of ADE20K, also in windows (mode 'slide').
MAX_PIXELS = 16_000_000
SCORE_THR = 0.3  # as in mmdet
LABEL_MAP_KINDS = ('classes', 'colours', 'instances')
