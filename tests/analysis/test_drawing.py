import numpy as np
import torch

from cpvt_mm.analysis.drawing import Overlay, error_figure, grid_figure, overlay_figure, overlay_image


def test_a_heat_map_for_each_result_in_one_scale_with_a_frame() -> None:
    cells = torch.rand(6, 8)
    cells[0, 0] = torch.nan
    results = {name: factor * cells for name, factor in [('a: 0.5', 1), ('b', 0), ('c', 2), ('d', 2), ('e', 2)]}
    figure = error_figure(results, margin=2, title='a title')
    drawn = [axes for axes in figure.axes if axes.images]
    assert [axes.get_title() for axes in drawn] == list(results)
    assert len({axes.images[0].norm for axes in drawn}) == 1
    frame, = drawn[0].patches
    assert (frame.get_xy(), frame.get_width(), frame.get_height()) == ((1.5, 1.5), 4, 2)
    assert not any(axes.patches for axes in error_figure(results, margin=0, title='').axes if axes.images)
    figure.canvas.draw()


def test_overlays_lie_on_the_image_cell_by_cell() -> None:
    image = np.zeros((70, 50, 3), np.uint8)
    rows = [[Overlay('block 0', torch.rand(3, 2), (32, 32))], [Overlay('block 1', torch.rand(18, 13), (4, 4))] * 2]
    figure = overlay_figure(image, rows, mark=(10, 20), title='a title')
    drawn = [axes for axes in figure.axes if axes.images]
    assert [axes.get_title() for axes in drawn] == ['block 0', 'block 1', 'block 1']
    for axes, extent in zip(drawn, [(0, 64, 96, 0), (0, 52, 72, 0), (0, 52, 72, 0)], strict=True):
        assert tuple(axes.images[1].get_extent()) == extent
        assert (axes.get_xlim(), axes.get_ylim()) == ((0, 50), (70, 0))  # nothing of it beyond the image
        assert axes.lines[0].get_xydata().tolist() == [[10.5, 20.5]]
    figure.canvas.draw()
    assert not any(axes.lines for axes in overlay_figure(image, rows, mark=None, title='').axes)


def test_an_overlay_alone_has_the_shape_of_the_image() -> None:
    values = torch.zeros(2, 2)
    values[0, 1] = 1
    picture = overlay_image(np.full((50, 100, 3), 128, np.uint8), Overlay('', values, (25, 50)), mark=(75, 37))
    assert picture.shape == (256, 512, 3) and picture.dtype == np.uint8
    assert (picture[64, 64] == 128).all()  # grey where nothing is attended to
    red, green, blue = picture[64, 384].tolist()
    assert red > 150 and green > 150 and blue < 100  # yellow
    assert picture[192, 386].tolist() == [0, 255, 255]  # the mark


def test_matrices_have_queries_in_rows_and_keys_in_columns() -> None:
    maps = {f'{i}.1': torch.rand(12, 4) for i in range(5)}
    figure = grid_figure(maps, 'a title')
    drawn = [axes for axes in figure.axes if axes.get_title()]
    assert [axes.get_title() for axes in drawn] == [f'block {name}' for name in maps]
    for axes, weights in zip(drawn, maps.values(), strict=True):
        assert np.array_equal(axes.images[0].get_array(), weights)
        assert (axes.get_xlabel()[:3], axes.get_ylabel()[:5]) == ('key', 'query')
    figure.canvas.draw()
