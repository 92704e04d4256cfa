"""Tries the configs that mmdet and mmseg ship; it uses modules of the analysis tools."""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / 'tools/analysis_tools'))
