"""The data plane: decodes row groups in the order of need, shuffles them into windows and assembles frames.

The feed sees `engine.Engine`, `frames.FrameMeta` and `stats.Stats` only.
"""
