"""Experiments on real data that comes with Python packages.

paxlike list
paxlike --exp=KjvTiny --mode=train --job_log_dir=~/runs/kjv
"""
