"""A study to look at, as a file and on localhost."""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import re
import socket
import threading
import time
from dataclasses import replace
from html.parser import HTMLParser

import pytest
import torch

from fedskip.errors import InputError
from fedskip.report.combine_studies import combine
from fedskip.report.figures import look
from fedskip.report.findings import Findings
from fedskip.report.page import (
    Handler,
    PageServer,
    Picture,
    Watched,
    charts,
    content,
    page,
    script,
    serve,
)
from fedskip.report.results import Results
from studies import curve, recorded, run, study


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
    assert names == {*(f"toy.{figure}.svg" for figure in figures)}
    page = (out / "report.html").read_text()
    accuracy = (out / "figures" / "toy.accuracy.svg").read_text()
    for text in ("FedAvg", "FedSkip-3", "centralised"):
        assert text in page
        assert text in accuracy
    pictures = page.count('src="data:image/svg+xml;base64,')
    assert pictures == 3, "accuracy, routing, partition; charts show the other curves"
    assert len(page) < 300_000
    assert "record:" in page  # the study itself
    assert (again / "figures" / "toy.accuracy.svg").read_text() == accuracy


def test_every_figure_of_a_reduced_study_says_so(tmp_path):
    """Also of one that has a sweep, clients, and a way of models to show."""
    keys = {
        "methods": "fedavg, fedskip(period=[2,3])",
        "rounds": 3,
        "seeds": 1,
        "client_accuracy": True,
    }
    study(tmp_path / "s", settings=[{"record": {"full_rounds": 200}}], **keys).run()
    figures = {path.name: path.read_text() for path in (tmp_path / "s" / "figures").iterdir()}
    assert {
        "toy.routing.svg",
        "toy.partition.svg",
        "toy.clients.svg",
        "sweep.svg",
    } <= figures.keys()
    assert [name for name, text in figures.items() if "reduced: 3 of 200 rounds" not in text] == []


class Checked(HTMLParser):
    """Notes what a page would load, and that every tag is closed."""

    def __init__(self):
        super().__init__()
        self.open, self.loaded, self.rows = [], [], []

    def handle_starttag(self, tag, attrs):
        self.loaded += [value for name, value in attrs if name in ("src", "href", "action", "data")]
        if tag not in ("meta", "img"):
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] in (["td"], ["th"]):
            self.rows[-1].append(data)


def test_the_page_loads_nothing_and_cuts_nothing(tmp_path):
    """Names that are HTML stay text; every number of the closing table is there in full."""
    runs = [run(label, s, 0.5 + s / 10) for label in ("FedAvg", "<b>Mine</b>") for s in (0, 1)]
    results = recorded(tmp_path, [*runs, run("MOON", 0, 0.1, diverged=True)])
    (tmp_path / "study.yaml").write_text("name: demo\nsettings: [{name: a}]")
    main = content(
        Findings(results),
        {"a": [Picture("words", "data:image/svg+xml;base64,", True)]},
        ["a note & more"],
    )
    text = page("demo & more", main)
    checked = Checked()
    checked.feed(text)
    assert checked.open == []
    assert all(value.startswith("data:") for value in checked.loaded)
    assert "<b>" not in main
    assert "<script" not in main, "there is nothing to draw"
    assert "<title>demo &amp; more</title>" in text
    assert "a note &amp; more" in text
    assert ["<b>Mine</b>", *["55.00 ± 7.07"] * 3, "122 kB", "5"] in [
        row[:6] for row in checked.rows
    ]
    assert (
        "a.MOON.s0 although the losses of all visits were finite; its numbers are of the first 5"
        in main
    )
    assert "Not finished" not in main
    assert "Not finished" in content(Findings(replace(results, finished=False)), {})


def test_scripts_are_allowed_by_their_hashes_and_no_others(tmp_path):
    text = page("demo", "<main></main>")
    allowed = re.findall("'sha256-([^']+)'", text)
    made = re.findall("<script>(.*?)</script>", text, re.DOTALL)
    assert [
        base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in made
    ] == allowed
    assert "unsafe-eval" not in text.partition("<title>")[0]
    assert (
        "Content-Security-Policy"
        not in page("demo", "<main></main>", served=True).partition("<title>")[0]
    )


def test_a_picture_that_cannot_be_drawn_loses_no_study(tmp_path, monkeypatch, caplog):
    def fail(*_, **__):
        raise RuntimeError("no pencil")

    monkeypatch.setattr("fedskip.study.study.write_report", fail)
    made = study(tmp_path / "s", methods="fedavg", rounds=1, seeds=1)
    made.run()
    assert made.is_finished()
    assert (
        "report.html was not written (RuntimeError: no pencil); try: fedskip report" in caplog.text
    )


def test_studies_of_references_alone_and_of_metrics_that_are_not_defined(tmp_path):
    def undefined(output, target):
        right = (output.max(1).indices == target).float()
        return torch.where(target == 0, float("nan"), right)

    few = {"rounds": 2, "seeds": 2, "methods": "fedavg, fedprox"}
    study(tmp_path / "nan", metric=undefined, **few).run()
    study(tmp_path / "alone", settings=[{"name": "one", "reference": True}], **few).run()
    for name in ("nan", "alone"):
        assert (tmp_path / name / "report.html").exists(), name


# --- sections ------------------------------------------------------------------------------------------


def shown(results):
    """The page of results that no study has written."""
    (results.out / "study.yaml").touch()
    return content(Findings(results), {})


def test_the_set_up_at_a_glance(tmp_path):
    keys = {"data": {"name": "synthetic"}, "local": {"epochs": 1, "batch": 8}, "cohort": 4}
    runs = [run("FedAvg", 0, 0.5), run("MOON", 0, 0.6)]
    table = shown(recorded(tmp_path, runs, methods=["fedavg", "moon"], **keys))
    for name, value in {
        "methods": "fedavg, moon",
        "clients": "20, 4 of them in a round",
        "metrics": "accuracy, on 1,001 test samples",
        "seeds": "0",
    }.items():
        assert f"<th>{name}</th><td>{value}</td>" in table


def test_the_set_up_has_every_hyper_parameter_that_was_noted(tmp_path):
    results = study(tmp_path / "s", methods="fedavg, moon", rounds=1, seeds=1).run()
    assert "<td>FedAvg, MOON(mu=1.0, temperature=0.5)</td>" in shown(results)


def test_runs_that_diverged_say_where(tmp_path):
    broke = run("MOON", 0, 0.1, diverged=True) | {
        "broke_round": 6,
        "broke_client": 3,
        "broke_slot": 1,
    }
    title = "Runs that diverged"
    assert title not in shown(recorded(tmp_path, [run("FedAvg", 0, 0.5)]))
    _, _, text = shown(recorded(tmp_path, [run("FedAvg", 0, 0.5), broke])).partition(title)
    assert (
        "a.MOON.s0 in round 6, in slot 1 at client 3; its numbers are of the first 5 rounds" in text
    )
    assert "What helps: a smaller local.lr, a local.clip" in text


def test_studies_put_together_each_say_where_they_come_from(tmp_path):
    for seed in (0, 1):
        study(tmp_path / str(seed), methods="fedavg", rounds=2, seeds=[seed]).run()
    results, _ = combine([Results.read(tmp_path / str(seed)) for seed in (0, 1)])
    text = content(Findings(results), {})
    for seed in (0, 1):
        assert f"in the folder {seed}." in text
    assert text.count("<details>") - 1 == text.count("Hash of the study: ") == 2
    assert text.count("<td>1 run</td><td>2 rounds</td>") == 2


# --- charts --------------------------------------------------------------------------------------------


def test_numbers_looks_and_notes(tmp_path):
    odd = "</script><b>"
    rows = [
        *curve("FedAvg", 0, {1: 0.25, 2: 0.5}),
        *curve("FedAvg", 1, {1: 0.75, 2: 0.5}),
        *curve(odd, 0, {2: 1 / 3}),
    ]
    runs = [run("FedAvg", 0, 0.5), run("FedAvg", 1, 0.5), run(odd, 0, 0.5)]
    text = charts(recorded(tmp_path, runs, rows=rows))
    assert "<" not in text, "it stands in a page"
    data = json.loads(text)
    [chart] = data["charts"]
    assert chart["methods"]["FedAvg"] == {"colour": look("FedAvg").colour, "dash": "-"}
    view = chart["views"]["test_accuracy"]
    assert (view["name"], view["log"], view["banded"]) == ("test accuracy (%)", False, True)
    line = view["lines"]["FedAvg"]
    across = chart["across"]["FedAvg"][line["at"]]
    assert (across["round"], across["merges"], line["mean"]) == ([1, 2], [1, 2], [50, 50])
    assert (line["low"], line["high"]) == ([25, 50], [75, 50])
    assert view["lines"][odd]["mean"] == [33.33]
    assert chart["views"]["drift_mean"]["log"] is True
    assert "slot_accuracy" not in chart["views"], "it was not measured"


def test_every_line_has_a_dash(tmp_path):
    """Of methods, of those that skip, and of rules for the period."""
    labels = {
        "FedAvg": "-",
        "FedSkip-5": "-",
        "SCAFFOLD+skip-5": "--",
        "FedSkip-1x10,5": "-.",
    }
    rows = [row for label in labels for row in curve(label, 0, {1: 0.25, 2: 0.5})]
    text = charts(recorded(tmp_path, [run(label, 0, 0.5) for label in labels], rows=rows))
    [chart] = json.loads(text)["charts"]
    assert {label: look["dash"] for label, look in chart["methods"].items()} == labels


def test_nothing_to_draw(tmp_path):
    assert charts(recorded(tmp_path, [run("FedAvg", 0, 0.5)])) == ""


def test_the_script_may_stand_in_a_page():
    assert "</script" not in script()


# --- on localhost ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("watched") / "s"
    study(out, methods="fedavg, fedskip(period=2)", rounds=4, seeds=1).run()
    return out


@pytest.fixture
def server(folder):
    """A server of that folder."""
    started = []
    thread = threading.Thread(target=serve, args=(folder, 0, started.append), daemon=True)
    thread.start()
    deadline = time.monotonic() + 10
    while not started and time.monotonic() < deadline:
        time.sleep(0.01)
    yield started[0]
    started[0].shutdown()
    thread.join(10)
    assert not thread.is_alive()


def ask(server, name="", method="GET", token=None, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    path = f"/{server.token if token is None else token}/{name}"
    connection.request(method, path, headers=headers)
    return connection.getresponse()


def test_the_page_and_what_it_may_do(server):
    answer = ask(server)
    text = answer.read().decode()
    assert answer.status == 200
    assert "FedSkip-2" in text
    policy = answer.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'")
    for code in re.findall("<script>(.*?)</script>", text, re.DOTALL):
        assert base64.b64encode(hashlib.sha256(code.encode()).digest()).decode() in policy
    assert text.count("<script") == text.count("<script>") + 1 == 2, "the second holds numbers"
    assert "unsafe-inline" not in policy.partition("script-src")[2]
    assert answer.headers["Cache-Control"] == "no-store"
    assert ask(server).read().decode() == text, "rendered once"
    assert ask(server, "main").read().decode() in text


def test_only_what_it_is_asked_for_and_only_from_here(server):
    assert ask(server, "study.yaml").status == 404
    assert ask(server, "../../etc/passwd").status == 404
    assert ask(server, Host=f"evil.example:{server.server_port}").status == 403
    assert ask(server, Host="localhost").status == 200
    assert ask(server, method="POST").status == 501


def test_other_users_of_the_machine_do_not_know_the_token(server, folder):
    assert server.url.endswith(f":{server.server_port}/{server.token}/")
    assert ask(server, token="").status == ask(server, "events", token="x").status == 403
    assert PageServer(0, server.watched).token != server.token


def test_an_idle_connection_is_dropped(server, monkeypatch):
    monkeypatch.setattr(Handler, "timeout", 0.2)
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=20) as idle:
        idle.sendall(b"GET / HT")
        assert idle.recv(1) == b"", "closed"


def test_a_new_row_is_told(server, folder):
    events = ask(server, "events")
    assert events.headers["Content-Type"] == "text/event-stream"
    first = events.readline()
    assert first.startswith(b"data: ")
    assert events.readline() == b"\n"
    history = folder / "history.csv"
    before = history.read_text()
    history.write_text(before + before.splitlines()[-1] + "\n")
    told = events.readline()
    assert told.startswith(b"data: ")
    assert told != first
    history.write_text(before)


def test_a_study_without_results_is_waited_for(tmp_path, folder):
    watched = Watched(tmp_path)
    (tmp_path / "study.yaml").write_bytes((folder / "study.yaml").read_bytes())
    assert "holds a study without results yet" in watched.page()
    (tmp_path / "history.csv").write_bytes((folder / "history.csv").read_bytes())
    assert "Not finished" in watched.page()


def test_bad_input(server, folder, tmp_path):
    with pytest.raises(InputError, match=r"port cannot be used \(Address already in use\)"):
        serve(folder, server.server_port)
    with pytest.raises(InputError, match="port must be from 0 to 65535, got 70000"):
        serve(folder, 70000)
    with pytest.raises(InputError, match="out holds no study"):
        serve(tmp_path, 0)
