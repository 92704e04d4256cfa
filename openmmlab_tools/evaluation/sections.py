"""The sections of a report's page, from its numbers and from pictures of images."""
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .page import Pictures, chart, paragraph, pictures, section, table

SHOWN = 24  # pictures of a section; the file of suspects has them all
PAIRS = 20  # of classes that are taken for each other
TITLES = dict(bbox='boxes', segm='masks', regions='regions', boundaries='boundaries')
ERRORS = dict(Cls='box on an object, but wrong class', Loc='right class, but box only near the object',
              Both='wrong class, and only near an object', Dupe='second box on an object',
              Bkg='box where there is no object', Miss='object without any of these boxes')
SUSPECTS = {'class': 'labelled {label}, predicted {found}', 'place': '{found}, label is shifted',
            'missing': '{found}, has no label'}
Report = dict[str, Any]


def sections(report: Report, worst: Pictures, picture: Callable[[Report], np.ndarray]) -> Iterator[str]:
    """Yields the parts of the page. `worst` contains pictures of the worst images; `picture` draws a suspected label.
    """
    is_boxes = 'curves' in report
    yield paragraph(report['summary'])
    if 'comparison' in report:
        yield paragraph(f'This test is {report["comparison"]["verdict"]}.', 'verdict')
    for note in report['notes']:
        yield paragraph(note)
    names = [name for name in next(iter(report['metrics'].values())) if name != 'by_class']
    yield section('Metrics', 'With 95 % confidence intervals: the range to expect on other images from the same '
                             'source.',
                  table(['', *names], ([TITLES[kind], *(values[name] for name in names)]
                                       for kind, values in report['metrics'].items())))
    if 'comparison' in report:
        rows = ([TITLES[kind], name, *(None if number is None else f'{number:+.4f}' for number in (value, low, high)),
                 f'{p:.4f}'] for kind, difference in report['comparison']['difference'].items()
                for name, (value, low, high, p) in difference.items())
        yield section('Compared', 'The difference is this test minus the other test, on the same images; least and '
                      'most are its 95 % interval. p is the probability of a difference at least as large if both '
                      'models are equally good (permutation test). The first row decides the verdict.',
                      table(['', 'metric', 'difference', 'least', 'most', 'p'], rows))
    yield from (_of_boxes if is_boxes else _of_maps)(report)
    yield section('Confusion', 'The most frequent confusions.' + (
        ' Only boxes above the score with the best F1 count.' if is_boxes else ''), _confusion(report, is_boxes))
    sides = 'Truth is on the left, prediction on the right.'
    yield section('Worst images', 'Objects without a box are orange, wrong boxes blue.' if is_boxes else sides,
                  pictures(worst, 900))
    classes = report['classes']
    shown = [(SUSPECTS[suspect['suspect']].format(
        found=classes[suspect['category_id'] - 1], label=suspect['label'] and classes[_label(suspect) - 1])
        + f', {suspect["score"]:.2f}; {suspect["file_name"]}', picture(suspect))
        for suspect in report['suspects'][:SHOWN]]
    how = 'Labels are orange, the box of the model is blue. Dark images are brightened.' if is_boxes else sides
    yield section('Suspected labels', f'The model disagrees with {len(report["suspects"])} labels. Look at the first '
                  f'ones, because these labels may be wrong. suspects.json contains all of them. {how}',
                  pictures(shown, 400, True))


def _label(suspect: Report) -> int:
    """Returns the category id of the label that a suspect contradicts."""
    label = suspect['label']
    return label['category_id'] if isinstance(label, dict) else label


def _of_boxes(report: Report) -> Iterator[str]:
    lines, calibration, recall = report['curves'], report['calibration'], np.linspace(0, 1, 101).tolist()
    yield section('By class', 'AP of boxes, the best F1 at IoU 0.5, and the score that boxes must exceed to reach '
                              'it.', table(
        ['class', 'objects', 'AP', 'best F1', 'above score'], (
            [curve['name'], curve['objects'], value, curve['f1'], f'{curve["score"]:.3f}']
            for curve, value in zip(lines, report['metrics']['bbox']['by_class'], strict=True))))
    for name, parts in report['by_size'].items():
        yield section(f'By size of {name}', f'The {name} are sorted by size (square root of the area, in pixels) and '
                                            'split into quarters.', table(
            ['pixels', 'AP'], ([f'{part["low"]:.0f} to {part["high"]:.0f}', part['AP']] for part in parts)))
    errors = report['errors']
    yield section('Kinds of errors', 'How much AP50 would rise without each kind of error (TIDE, arXiv '
                                     '2008.08115).', table(
        ['error', 'number', 'AP50 lost'], ([text, errors['counts'][key], float(errors['delta_ap'][key])]
                                           for key, text in ERRORS.items())))
    bins = [interval for interval in calibration['bins'] if interval['count']]
    yield section('Curves', 'If the line in the right chart is below the diagonal, scores are too high '
                  f'(expected calibration error {calibration["ece"]:.3f}).', '<div class="pictures">',
                  chart('Precision by recall, at IoU 0.5, of each class', 'recall', 'precision', {
                      line['name']: (recall, line['precision']) for line in lines if line['objects']}),
                  chart('Share of boxes that are right, by score', 'score', 'right', {
                      'boxes': ([interval['avg_confidence'] for interval in bins],
                                [interval['avg_accuracy'] for interval in bins]),
                      'calibrated': ([0, 1], [0, 1])}), '</div>')


def _of_maps(report: Report) -> Iterator[str]:
    pixels = np.sum([image['objects'] for image in report['images'].values()], axis=0).tolist()
    columns = [report['metrics'][kind]['by_class'] for kind in ('regions', 'boundaries')]
    yield section('By class', 'IoU of all pixels, and of the pixels near boundaries (arXiv 2103.16562).', table(
        ['class', 'pixels', 'IoU', 'boundary IoU'], zip(report['classes'], pixels, *columns, strict=True)))


def _confusion(report: Report, is_boxes: bool) -> str:
    counts = np.array(report['confusion'])
    true, predicted = ([*report['classes'], none] for none in ('no object', 'no box' if is_boxes else 'none of them'))
    wrong = [(int(counts[cell]), *cell) for cell in map(tuple, np.argwhere(counts).tolist()) if cell[0] != cell[1]]
    return table(['true', 'predicted', 'objects' if is_boxes else 'pixels', 'share of the true'], (
        [true[row], predicted[column], count, count / int(counts[row].sum()) if row < len(report['classes']) else None]
        for count, row, column in sorted(wrong, reverse=True)[:PAIRS]))
