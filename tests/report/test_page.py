"""A study to look at."""

from studies import study


def test_the_page_and_its_figures(tmp_path):
    def files(name):
        out = tmp_path / name
        study(out, methods="fedavg, fedskip(period=3)", settings=[
            {"name": "toy"},
            {"name": "centralised", "reference": True, "partition.kind": "pooled", "cohort": 1},
        ]).run()  # fmt: skip
        return out

    out, again = files("one"), files("two")
    names = {path.name for path in (out / "figures").iterdir()}
    figures = ("accuracy", "bytes", "loss", "drift", "routing", "partition")
    assert names == {"sweep.svg", *(f"toy.{figure}.svg" for figure in figures)}
    page = (out / "report.html").read_text()
    accuracy = (out / "figures" / "toy.accuracy.svg").read_text()
    for text in ("FedAvg", "FedSkip-3", "centralised"):
        assert text in page
        assert text in accuracy
    assert page.count("<svg") == 7
    assert "record:" in page  # the study itself
    assert (again / "figures" / "toy.accuracy.svg").read_text() == accuracy
