"""What every room stands on: errors, trees, files, time, metrics.

No devices and no processes here. Import the module: `from paxlike.core import
errors`; the package itself loads none of them, so that reading a config never
pays for JAX.
"""
