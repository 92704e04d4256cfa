"""Commands that need the backbones, for `cpvt_mm` and for tools/: they parse arguments, call the library, and print.

Each module has `parse_args` and `run`. What takes long to import and is not needed for `--help` is imported in `run`.
"""
