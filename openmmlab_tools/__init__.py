"""Tools for any mmengine project: training, testing, predicting, and reading data. README.md lists them.

Importing this package imports nothing. Types in configs have its name, such as
`type='openmmlab_tools.DurableCheckpointHook'`.
"""
