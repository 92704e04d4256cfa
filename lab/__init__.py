"""Modules of the analysis tools: what they measure, compare and draw."""
