"""The program on a disk from which every restore takes two seconds longer."""

import time

from paxlike import main
from paxlike.core import fs

_open_read = fs.LocalFileSystem.open_read


def _open_late(self, path):
  reader = _open_read(self, path)
  time.sleep(2.0)
  return reader


if __name__ == '__main__':
  fs.LocalFileSystem.open_read = _open_late
  main.console()
