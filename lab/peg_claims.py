"""Statements of the paper on CPVT (arXiv 2102.10882) about PEG, as comparisons of the rows of our studies."""
from lab.claims import Cell, Claim, Gap

ENCODINGS = 'motivation, table 1'
SIZES = 'generalization to higher resolutions'
ABLATIONS = 'ablation study'
PAPER_SIZES = '1.7 times the size'

PEG, TABLE, NONE = Cell('PEG'), Cell('table'), Cell('none')


def _larger(variant: str, smaller: bool = False) -> tuple[Cell, Cell]:
    """Returns one variant at 1.5 times the size and at the training size; `smaller`: in the other order."""
    cells = Cell(variant, '1.5x'), Cell(variant)
    return cells[::-1] if smaller else cells


def gap(encoding: str, table: str, test: str) -> Gap:
    return Gap(Cell(encoding, test), Cell(table, test))


# Rows of `configs/_base_/studies/peg_ablations.py`.
STATEMENTS = [
    Claim('position', 'A table is better than no encoding', ENCODINGS, '72.2 against 68.2', TABLE, NONE),
    Claim('sinusoids', '2-D sinusoids are as good as a table (within a point)', ENCODINGS, 'equal',
          Cell('sinusoids 2-D'), TABLE, margin=1.),
    Claim('relative', 'A table is better than a relative encoding', ENCODINGS, '72.2 against 70.5', TABLE,
          Cell('relative')),
    Claim('PEG', 'PEG is better than a table', ABLATIONS, '72.4 against 72.2', PEG, TABLE),
    Claim('zero padding: circular',
          'PEG learns the position from zero padding: it is better than with circular padding',
          'conditional positional encodings', 'no number', PEG, Cell('PEG, circular')),
    Claim('zero padding: replicate', 'the same, with replicate padding', 'the same', 'no number', PEG,
          Cell('PEG, replicate')),
    Claim('zero padding: reflect', 'the same, with reflect padding', 'the same', 'no number', PEG,
          Cell('PEG, reflect')),
    Claim('kernel 1', 'PEG is better than twelve convolutions of kernel size 1', ABLATIONS, '72.4 against 68.6', PEG,
          Cell('twelve of kernel 1')),
    Claim('block 3', 'PEG after block 0 is as good as after block 3 (within a point)', ABLATIONS, 'equal', PEG,
          Cell('PEG after block 3'), margin=1.),
    Claim('block 10', 'PEG after block 0 is better than after block 10', ABLATIONS, 'no number', PEG,
          Cell('PEG after block 10')),
    Claim('before block 0', 'PEG after block 0 is better than before it', ABLATIONS, 'no number', PEG,
          Cell('PEG before block 0')),
    Claim('large kernel', 'Before block 0, a kernel as large as the grid is better than kernel size 3', ABLATIONS,
          '72.5 with 27', Cell('PEG before block 0, kernel 23'), Cell('PEG before block 0')),
    Claim('queries and keys', 'PEG for all tokens is better than for queries and keys only', ABLATIONS,
          '72.4 against 71.3', PEG, Cell('PEG for queries and keys')),
    Claim('fixed', 'A trained PEG is better than fixed random weights', ABLATIONS, '72.4 against 71.3', PEG,
          Cell('PEG, fixed')),
    Claim('fixed against none', 'Fixed random weights are better than no encoding', ABLATIONS, '71.3 against 68.2',
          Cell('PEG, fixed'), NONE),
    Claim('table and PEG', 'A table with a PEG is better than a table', ABLATIONS, '0.5 more', Cell('table + PEG'),
          TABLE),
    Claim('four PEGs', 'Four PEGs at one position are better than one', ABLATIONS, '72.9 against 72.4',
          Cell('four PEGs'), PEG),
    Claim('five blocks', 'A PEG in each of the first five blocks is better than one PEG', ABLATIONS,
          '73.4 against 72.4', Cell('PEG in five blocks'), PEG),
    Claim('larger with PEG', 'PEG is better at 1.5 times the training size than at this size', SIZES,
          f'74.2 against 73.4, {PAPER_SIZES}', *_larger('PEG')),
    Claim('larger with a table', 'A table is worse at 1.5 times the size', SIZES, f'72.2 against 71.2, {PAPER_SIZES}',
          *_larger('table', smaller=True)),
    Claim('larger with sinusoids', '2-D sinusoids are worse at 1.5 times the size', SIZES,
          f'72.2 against 70.8, {PAPER_SIZES}', *_larger('sinusoids 2-D', smaller=True)),
    Claim('gap, 2x', 'What PEG gains over a table is larger at 2 times the size than at 1.5 times', SIZES,
          'no number', gap('PEG', 'table', '2x'), gap('PEG', 'table', '1.5x')),
    Claim('gap, 3x', 'the same, at 3 times and 2 times the size', 'the same', 'no number', gap('PEG', 'table', '3x'),
          gap('PEG', 'table', '2x')),
]
# Rows of `configs/_base_/studies/position_encodings_camvid_native.py`.
PYRAMID = [
    Claim('pyramid, 1.5x', 'PEG is better than a table at 1.5 times the size', SIZES, 'no number',
          Cell('PEG', '1.5x'), Cell('learnable 2-D', '1.5x')),
    Claim('pyramid, gap, 2x', 'What PEG gains over a table is larger at 2 times the size than at 1.5 times', SIZES,
          'no number', gap('PEG', 'learnable 2-D', '2x'), gap('PEG', 'learnable 2-D', '1.5x')),
    Claim('pyramid, gap, 3x', 'the same, at 3 times and 2 times the size', 'the same', 'no number',
          gap('PEG', 'learnable 2-D', '3x'), gap('PEG', 'learnable 2-D', '2x')),
]
GAP = 'CPVT with global average pooling'


def corner(output: str, encoding: str = 'PEG', place: str = 'lower right') -> Cell:
    return Cell(f'{output}, {encoding}', place)


# Rows of `lab/commands/corner_classifier.py`. Training uses the upper left quarter; the lower right is the farthest.
CORNER = [
    Claim('GAP', 'With PEG, GAP is better than the class token, in the quarter of the training', GAP,
          'more than a point', corner('GAP', place='upper left'), corner('class token', place='upper left')),
    Claim('GAP elsewhere', 'With PEG, GAP is better than the class token, in the lower right quarter', GAP, 'no number',
          corner('GAP'), corner('class token')),
    Claim('GAP with a table', 'With GAP, PEG is better than a table, in the lower right quarter', GAP, 'no number',
          corner('GAP'), corner('GAP', 'table')),
]
