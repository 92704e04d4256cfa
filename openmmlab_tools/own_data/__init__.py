"""From a folder of labels to a config: what the commands new-config and check do with the records of `readers`.

- `written_labels` writes the records beside a config, in one form.
- `config_of_data`, `image_sizes`, `fitted_model` make a config, and fit it to the data.
- `checking`, `file_checks`, `measuring` are behind the command check.
"""
