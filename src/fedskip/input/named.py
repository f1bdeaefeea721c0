"""What a user wrote themselves, imported by name: `my_package.my_module:MyMethod`."""

import importlib
import os
import sys
from operator import attrgetter
from typing import Any

from fedskip.input.errors import InputError


def load(name: str) -> Any:
    """What `MODULE:NAME` stands for; modules in the current folder are found, too."""
    module, _, path = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # for good: it may import more later
    try:
        return attrgetter(path)(importlib.import_module(module))
    except ModuleNotFoundError as error:
        fix = "write the module as in `import`, without .py, and run from its folder or install it"
        raise InputError(module, f"cannot be imported: {error}", fix=fix) from error
    except AttributeError:
        raise InputError(module, f"has no {path!r}", fix="check the name of the class") from None
    except Exception as error:  # whatever a user's module does when it is imported
        raise InputError(module, f"fails when imported: {type(error).__name__}: {error}") from error
