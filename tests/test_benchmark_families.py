"""Every row of the benchmark of batching rules gives what the loop gives, in both precisions; nothing is timed here."""

import json

import pytest
import torch
import torch.func

import pushforward as pf
from benchmarks import families
from benchmarks.agreement import prepare
from benchmarks.timing import Spread, Timing
from benchmarks.workloads import Libraries

LIBRARIES = Libraries(pf, torch.func)


@pytest.mark.parametrize("size", ["tiny", "time"])
@pytest.mark.parametrize("row", families.ROWS, ids=lambda row: row.name)
def test_batching_equals_the_loop(row, size):
    prepared = prepare(row, LIBRARIES, row.make(size))
    assert prepared.status == "ok"
    assert not prepared.refusals


def test_rows_of_the_other_library_exist():
    assert set(families.WITH_OTHER) <= {row.name for row in families.ROWS}


def timed(name, speedup):
    family, workload, transform = name.split(" | ")
    return Timing(name, f"{family} | {workload}", transform, "short", "way", 1, "ok", families.LOOP,
                  speedups={families.LOOP: Spread(speedup, speedup, speedup)})  # fmt: skip


def test_a_family_is_as_good_as_its_rows():
    rows = [timed("a | x | vmap", 2.0), timed("a | y | vmap", 8.0), timed("b | z | vmap", 3.0)]
    first, second = families.summary(rows)
    assert first == {"family": "a", "rows": 2, "mean": pytest.approx(4.0), "least": 2.0, "least of": "x | vmap"}
    assert (second["family"], second["rows"]) == ("b", 1)


def test_the_record_is_json_and_holds_every_row(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(families, "RECORDED", tmp_path / "families.json")
    code = families.main(["--quick", "--only", r"^contractions . dot . vmap$", "--record"])
    record = json.loads((tmp_path / "families.json").read_text())
    assert [t["name"] for t in record["timings"]] == ["contractions | dot | vmap"]
    assert record["families"][0]["family"] == "contractions"
    assert code == (record["timings"][0]["speedups"]["loop"]["median"] < 1)
    assert "times the loop's speed" in capsys.readouterr().out
    assert families.main(["--only", "no such row"]) == 2
