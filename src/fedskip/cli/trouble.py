"""What is said when the machine fails a command: which file, why, and what helps."""

import errno
import re

from fedskip.input.errors import short

MOVE = "move it away"
SPACE = "free some space"
LATER = "see that the disk or the network is well"

REASONS: dict[int, tuple[str, str]] = {  # by the system's number: what is the matter, and what helps
    errno.ENOSPC: ("cannot be written: the disk is full", SPACE),
    errno.EDQUOT: ("cannot be written: the quota is used up", f"{SPACE}, or have the quota raised"),
    errno.EFBIG: ("cannot be written: files may not be so large here", "raise `ulimit -f`"),
    errno.EROFS: ("cannot be written: its file system is read-only", "make it writable"),
    errno.EACCES: ("cannot be used: permission is denied", "change its owner or permissions"),
    errno.EPERM: ("cannot be used: it is not permitted", "change its owner or attributes"),
    errno.EISDIR: ("is a folder, and a file should be there", MOVE),
    errno.ENOTDIR: ("lies under a file, and a folder should be there", f"{MOVE}, or choose another"),
    errno.EEXIST: ("is there, and is not the folder that it should be", MOVE),
    errno.ENOTEMPTY: ("is a folder that is not empty", MOVE),
    errno.ENOENT: ("is not there, or its folder is not", "see whether it was moved or deleted"),
    errno.ELOOP: ("is a link that leads back to itself", "remove the link"),
    errno.ENAMETOOLONG: ("has a name that is too long for this file system", "choose shorter names"),
    errno.EMFILE: ("cannot be opened: this process has too many files open", "raise `ulimit -n`"),
    errno.ENFILE: ("cannot be opened: this machine has too many files open", "close other programs"),
    errno.EIO: ("cannot be read or written: the disk reports an error", "look after the disk"),
    errno.ENOLCK: ("cannot be locked: the system has no locks left", LATER),
    errno.ESTALE: ("is lost: the network's file system has another in its place", LATER),
    errno.ETIMEDOUT: ("cannot be reached", LATER),
    errno.ENODEV: ("is on a disk that is gone", LATER),
    errno.ENXIO: ("is on a disk that is gone", LATER),
    errno.ETXTBSY: ("is in use", "wait until it is not"),
    errno.EBUSY: ("is in use", "wait until it is not"),
}
# what torch says, of the CPU and of GPUs
MEMORY = re.compile(
    "can(?:'t|not) allocate memory|not enough memory|out of memory|bad_alloc|_ALLOC_FAILED"
    "|Storage size calculation overflowed",
    re.I,
)


def trouble(error: BaseException) -> tuple[str, str] | None:
    """What is the matter, and what helps, with an error that is the machine's; None for one that is not."""
    said = str(error)
    full = error.errno == errno.ENOMEM if isinstance(error, OSError) else bool(MEMORY.search(said))
    if full or isinstance(error, MemoryError):
        fix = "free some, take a smaller batch, cohort or model, or use a machine that has more"
        return f"the memory ran out{_wanted(said)}", fix
    if not isinstance(error, OSError):
        return None
    rule, fix = REASONS.get(error.errno or 0, (f"failed: {error.strerror or error}", "see to that"))
    file = "a file" if error.filename is None else short(str(error.filename), 160)
    return f"{file} {rule}", fix


def in_words(what: str, *more: str) -> str:
    """Sentences in one line, without the last full stop: they may end in a command."""
    return ". ".join([what, *(text[0].upper() + text[1:] for text in more)])


def _wanted(text: str) -> str:
    """How much was asked for, as numpy, torch's CPU and its GPUs say it."""
    found = re.search(r"llocate (\d[\d.,]* ?[KMGTP]?i?B(?:ytes)?)\b", text, re.I)
    return f" ({found[1]} were asked for)" if found else ""
