"""Commands, for `cpvt_mm` and for tools/: they parse arguments, call the library, and print.

What takes long to import and is not needed for `--help` is imported after the arguments are parsed.
"""
