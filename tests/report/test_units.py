"""Numbers as people read them."""

import doctest

from fedskip.report import units


def test_units():
    found = doctest.testmod(units)
    assert (found.failed, found.attempted) == (0, 12)
