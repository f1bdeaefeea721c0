"""What a study tells while it works."""

from fedskip.report.progress import Status


def test_the_status_of_groups_adds_up():
    one = Status({"a": 2.0}, frozenset(), 100, 3.0, "", 2, 5)
    other = Status({"b": 1.0}, frozenset({"b"}), 50, 4.0, "compiling", 1, 3)
    both = Status({"a": 2.0, "b": 1.0}, frozenset({"b"}), 150, 4.0, "compiling", 3, 8)
    assert one | other == both
    assert other | one == both
    assert (one.step(), both.step()) == ("", "compiling step 3 of at most 8")
