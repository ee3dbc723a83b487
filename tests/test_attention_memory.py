"""The peak memory of forward mode through fused attention grows with the length, and not with its square."""

import json

from benchmarks import attention_memory


def test_peak_grows_with_the_length(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(attention_memory, "RECORDED", tmp_path / "memory.json")
    assert attention_memory.main(["--lengths", "512,1024", "--written-out", "1024", "--record"]) == 0
    assert "2 times the length" in capsys.readouterr().out
    rows = json.loads((tmp_path / "memory.json").read_text())["rows"]
    for mode in attention_memory.MODES:
        assert attention_memory.growth(rows, mode) < 2.2
        assert attention_memory.growth(rows, f"{mode}, written out") > 3.5
        assert max(row[f"{mode}, difference"] for row in rows) < 1e-4


def test_recorded_peaks_grow_with_the_length():
    rows = json.loads(attention_memory.RECORDED.read_text())["rows"]
    assert [row["length"] for row in rows] == list(attention_memory.LENGTHS)
    assert all(attention_memory.growth(rows, mode) < 8.8 for mode in attention_memory.MODES)
