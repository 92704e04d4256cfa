"""Metrics. All need mmdet."""
from .youtube_vis import YouTubeVISMetric

__all__ = ['YouTubeVISMetric']
