"""An experiment module that takes so long to load that a stop comes before."""

import sys
import time

print('loading', file=sys.stderr, flush=True)
time.sleep(60)
