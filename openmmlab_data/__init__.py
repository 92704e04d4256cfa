"""Data of one's own: the layouts that labelling tools write, one form of them, checks, and configs for them.

- `readers`: a file for each layout; each returns `form.dataset.LabelledData`.
- `form`: that form, a folder of files, and shapes of objects.
- `written_labels`: the one writer of that form, beside a config.
- `checking`, `measuring`: what the command check tells.
- `config_of_data`, `image_sizes`, `fitted_model`: a config for data, and what it is fitted to.

It imports `openmmlab_runs`, and nothing above it.
"""
