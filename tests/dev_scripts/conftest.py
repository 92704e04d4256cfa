import sys

from tests.conftest import ROOT

sys.path.append(str(ROOT / '.dev_scripts'))
