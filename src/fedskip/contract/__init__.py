"""The contract of a method, open to everyone: `check_method(MyMethod)`."""

from fedskip.contract.rules import check_conduct, check_method

__all__ = ["check_conduct", "check_method"]
