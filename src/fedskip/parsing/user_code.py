"""Imports users' own code by name: `my_package.my_module:MyMethod`."""

import importlib
import os
import sys
from operator import attrgetter
from typing import Any

from fedskip.errors import InputError


def is_own(name: str) -> bool:
    """Whether a name stands for a user's own code."""
    return ":" in name


def load(name: str, field: str = "") -> Any:
    """The object that `MODULE:NAME` stands for. Modules in the working folder are found, too.

    Args:
        field: the key that has this value, for errors.
    """
    module, _, path = name.partition(":")
    of = f"{field} {name}: {module}" if field else module
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # for good: it may import more later
    try:
        imported = importlib.import_module(module)
    except ModuleNotFoundError as error:
        fix = "write the module as in `import`, without .py, and run from its folder or install it"
        raise InputError(of, f"cannot be imported: {error}", fix=fix) from error
    except (Exception, SystemExit) as error:  # whatever a user's module does when it is imported
        raise InputError(of, f"fails when imported: {type(error).__name__}: {error}") from error
    try:
        return attrgetter(path)(imported)
    except AttributeError:
        fix = "check the name of the class or function"
        raise InputError(of, f"has no {path!r}", fix=fix) from None
