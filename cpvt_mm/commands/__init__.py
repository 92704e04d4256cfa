"""The commands in tools/ that need the backbones: they parse, call the library, and print."""
