"""The errors of sinks: those that end while a member waits, and those that only an operator can repair.

All waits for a sink decide by this table: `submit`, the staging at a checkpoint, tasks of Spark queries, and the
comparison with the region's topic before a member registers.
"""

from __future__ import annotations

import errno
import ssl
from typing import Final

from kohort.errors import InvalidInputError, NotAuthorizedError, RetriableError

AWAY: Final = (OSError, RetriableError)
"""Errors of a sink that may be unavailable; `is_temporary_error` decides."""
FINAL: Final = (
    FileNotFoundError,
    PermissionError,
    NotADirectoryError,
    IsADirectoryError,
    ssl.SSLCertVerificationError,
    NotAuthorizedError,
    InvalidInputError,
)
"""Errors of a sink that was removed or made differently, gives no right, or refuses the rows."""
NO_LINKS_ERRNOS: Final = frozenset({errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS})
"""Errors of a file system that cannot link and rename as exactly-once writing needs."""
FINAL_ERRNOS: Final = NO_LINKS_ERRNOS | {
    errno.EROFS,
    errno.EACCES,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.EFBIG,
    errno.EMLINK,
    errno.EINVAL,
    errno.ENODEV,
}
"""Errors of a place that was removed, has other permissions, is read-only or does not support what is needed. All
others pass: a disk that is full (ENOSPC, EDQUOT) or fails (EIO), a file server that has restarted (ESTALE), a network
(ETIMEDOUT, ECONNRESET), too many open files (EMFILE), no memory (ENOMEM)."""


def is_permanent_error(error: BaseException) -> bool:
    """Return whether a sink's error is permanent, so that no wait helps: a missing permission, or refused rows.

    False: the sink may accept the same call later, or the error is none of a sink's known ones.
    """
    if isinstance(error, FINAL):
        return True
    if not isinstance(error, OSError) or isinstance(error, ssl.SSLError):  # whose numbers are OpenSSL's
        return False
    return error.errno in FINAL_ERRNOS


def is_temporary_error(error: BaseException) -> bool:
    """Return whether a sink's error may be temporary, such as a full disk, so that the same call is worth a retry."""
    return isinstance(error, AWAY) and not is_permanent_error(error)
