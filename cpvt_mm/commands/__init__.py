"""Commands, for `cpvt_mm` and for tools/: they parse arguments, call the library, and print."""
