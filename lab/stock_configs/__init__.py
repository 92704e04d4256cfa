"""Tries the configs that mmdet and mmseg ship."""
