"""Small datasets in the layouts of their downloads, and the files of a folder."""
from pathlib import Path

import numpy as np
from PIL import Image


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob('*') if path.is_file()}


def save(path: Path, pixels: np.ndarray, mode: str | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(pixels)
    image.convert(mode or image.mode).save(path)


def random_image(height: int, width: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def disc(height: int, width: int, y: int, x: int) -> np.ndarray:
    """A mask, 0 and 255, of a nucleus of radius 4."""
    rows, columns = np.ogrid[:height, :width]
    return (255 * ((rows - y)**2 + (columns - x)**2 <= 16)).astype(np.uint8)


def make_stage1_train(root: Path, num_images: int = 12) -> Path:
    """Writes RGBA images of two sizes, with one to three nuclei each; the masks of every other image are RGBA, too."""
    for index in range(num_images):
        height, width = (24, 32) if index % 2 else (40, 40)
        folder = root / f'{index:04x}'
        save(folder / f'images/{folder.name}.png', random_image(height, width, index), 'RGBA')
        for k in range(1 + index % 3):
            save(folder / f'masks/{k}.png', disc(height, width, 8, 6 + 9 * k), 'RGBA' if index % 2 else 'L')
    return root


def make_segnet_camvid(root: Path, **counts: int) -> Path:
    """Writes 2 images of 36 x 48 pixels for each split, or `counts`, and label maps in which every value occurs."""
    for split, count in {**dict(train=2, val=2, test=2), **counts}.items():
        for index in range(count):
            labels = np.random.default_rng(index).integers(0, 12, (36, 48), np.uint8)
            save(root / split / f'{split}_{index}.png', random_image(36, 48, index))
            save(root / f'{split}annot' / f'{split}_{index}.png', labels)
    return root
