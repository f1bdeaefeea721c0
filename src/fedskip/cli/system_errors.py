"""Explains errors of the operating system and a lack of memory: which file, why, and what helps."""

import errno
import re

from fedskip.errors import shorten

MOVE = "move it away"
NETWORK = "see that the disk or the network is well"
REASONS: dict[int, tuple[str, str]] = {  # by the number of the error: what is wrong, and what helps
    errno.ENOSPC: ("cannot be written: the disk is full", "free some space"),
    errno.EDQUOT: ("cannot be written: the quota is used up", "free some space"),
    errno.EFBIG: ("cannot be written: files may not be so large here", "raise `ulimit -f`"),
    errno.EROFS: ("cannot be written: its file system is read-only", "make it writable"),
    errno.EACCES: ("cannot be used: permission is denied", "change its owner or permissions"),
    errno.EPERM: ("cannot be used: it is not permitted", "change its owner or attributes"),
    errno.EISDIR: ("is a folder, and a file should be there", MOVE),
    errno.ENOTDIR: ("lies under a file, not a folder", "move the file away, or choose another"),
    errno.EEXIST: ("is there, and is not the folder that it should be", MOVE),
    errno.ENOENT: ("is not there, or its folder is not", "see whether it was moved or deleted"),
    errno.EMFILE: ("cannot be opened: this process has too many files open", "raise `ulimit -n`"),
    errno.ENFILE: ("cannot be opened: too many files open on this machine", "close programs"),
    errno.EIO: ("cannot be read or written: the disk reports an error", "look after the disk"),
    errno.ENOLCK: ("cannot be locked: the system has no locks left", NETWORK),
    errno.ESTALE: ("is gone: the network's file system has another in its place", NETWORK),
    errno.ETIMEDOUT: ("cannot be reached", NETWORK),
    errno.ENODEV: ("is on a disk that is gone", NETWORK),
    errno.EBUSY: ("is in use", "wait until it is not"),
}  # fmt: skip
# messages of torch, about the CPU and about GPUs
MEMORY = re.compile(
    "can(?:'t|not) allocate memory|not enough memory|out of memory|bad_alloc|_ALLOC_FAILED"
    "|Storage size calculation overflowed",
    re.I,
)
WANTED = re.compile(r"llocate (\d[\d.,]* ?[KMGTP]?i?B(?:ytes)?)\b", re.I)


def explain(error: BaseException) -> tuple[str, str] | None:
    """What is wrong and what helps, or None if the error is not one of the machine."""
    text = str(error)
    full = error.errno == errno.ENOMEM if isinstance(error, OSError) else MEMORY.search(text)
    if full or isinstance(error, MemoryError):
        wanted = WANTED.search(text)
        more = f" ({wanted[1]} were asked for)" if wanted else ""
        fix = "free some, take a smaller batch, cohort or model, or use a machine that has more"
        return f"the memory ran out{more}", fix
    if not isinstance(error, OSError):
        return None
    rule, fix = REASONS.get(error.errno or 0, (f"failed: {error.strerror or error}", "see to that"))
    file = "a file" if error.filename is None else shorten(str(error.filename), 160)
    return f"{file} {rule}", fix


def sentences(*texts: str) -> str:
    """Sentences in one line. The last has no full stop, as it may end in a command."""
    return ". ".join(
        text[0].upper() + text[1:] if number else text for number, text in enumerate(texts)
    )
