"""What a disk's refusal means to a person, and what to do about it."""

import errno
import os

from paxlike.core import errors

_REMEDIES = {
  errno.ENOSPC: 'Make room there',
  errno.EDQUOT: 'Make room within the quota there',
  errno.EROFS: 'Have that disk mounted for writing',
}
_DENIED = (errno.EACCES, errno.EPERM)


def remedy(error: BaseException) -> str:
  """What to do, without a full stop; '' where it is no disk that refuses."""
  number = getattr(error, 'errno', None)
  if number in _DENIED:
    if '://' in str(getattr(error, 'filename', '')):
      return 'Give credentials that allow it'
    return f'Let user {os.geteuid()} in there (chmod, chown)'
  return _REMEDIES.get(number or 0, '')


def unreadable(
  path: str, error: PermissionError
) -> errors.CheckpointAccessError:
  """Tells who may not read which file of a checkpoint."""
  return errors.CheckpointAccessError(
    f'{path} cannot be read: {error.strerror}. {remedy(error)}.'
  )


def is_full(error: BaseException) -> bool:
  """Whether there is no room left, on the disk or for this user."""
  return getattr(error, 'errno', None) in (errno.ENOSPC, errno.EDQUOT)


def is_refusal(error: BaseException) -> bool:
  """Whether a disk refused, so that nothing in the program is wrong."""
  return bool(remedy(error))
