"""What a user wrote themselves, imported by name: `my_package.my_module:MyMethod`."""

import importlib
import os
import sys
from operator import attrgetter
from typing import Any

from fedskip.input.errors import InputError


def is_own(name: str) -> bool:
    """Whether a name stands for something of a user's own."""
    return ":" in name


def load(name: str, field: str = "") -> Any:
    """What `MODULE:NAME` stands for; modules in the current folder are found, too.

    Errors say that it is the value of `field`, where one is given.
    """
    module, _, path = name.partition(":")
    of = f"{field} {name}: {module}" if field else module
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # for good: it may import more later
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        fix = "write the module as in `import`, without .py, and run from its folder or install it"
        raise InputError(of, f"cannot be imported: {error}", fix=fix) from error
    except (Exception, SystemExit) as error:  # whatever a user's module does when it is imported
        raise InputError(of, f"fails when imported: {type(error).__name__}: {error}") from error
    try:
        return attrgetter(path)(found)
    except AttributeError:
        raise InputError(of, f"has no {path!r}", fix="check the name of the class or function") from None
