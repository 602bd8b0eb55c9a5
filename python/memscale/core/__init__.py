"""The values that pass between stages and the objects that touch torch for them.

Import the submodules directly; this package imports nothing, so that `import
memscale` stays cheap.
"""
