"""Data of one's own: the layouts that labelling tools write, one normal form of them, checks, and configs for them.

- `form`: a folder of files, and what each reader returns.
- `readers`: a file for each layout.
- `checking`, `measuring`: what `cpvt_mm check-dataset` tells, and what a new config is fitted to.

It imports `openmmlab_runs`, and nothing of `cpvt_mm`.
"""
