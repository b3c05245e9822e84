"""An experiment trainer for JAX: register an experiment, train, eval, decode.

The package loads nothing by itself; import the room that you need.
"""

__version__ = '0.1.0'
