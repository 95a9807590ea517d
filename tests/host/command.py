#!/usr/bin/env python3
"""The kiln command on the host device, end to end: doctor, list, tune, the store.

Usage: KILN. Exits 77 (skipped) where the host device cannot compile."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

KILN = sys.argv[1]


def kiln(*arguments, code=0, stderr=False):
    result = subprocess.run([KILN, *arguments], capture_output=True, text=True, timeout=280)
    assert result.returncode == code, f"kiln {arguments}: exit {result.returncode}\n{result.stdout}{result.stderr}"
    return result.stderr if stderr else result.stdout


def main():
    doctor = json.loads(kiln("doctor", "--json"))
    assert set(doctor["components"]) == {"driver", "nvrtc", "llvm", "compile", "worker", "store"}, doctor
    for name, component in doctor["components"].items():
        said = component["version"] if component["available"] else component["problem"]
        assert said, f"{name}: neither a version nor what is missing"
    has_driver = doctor["components"]["driver"]["available"]
    assert has_driver == any(d["id"].startswith("cuda") for d in doctor["devices"]), doctor
    if not doctor["components"]["llvm"]["available"]:
        print("skipped:", doctor["components"]["llvm"]["problem"])
        return 77
    assert any(d["id"] == "host" for d in doctor["devices"])

    choices = {c["name"]: c["alternatives"] for c in json.loads(kiln("list", "--choices", "--json"))}
    assert choices["gemm_strided_nn"] == ["cublaslt", "template"], choices
    assert kiln("list", "--choices").count("\n") == len(choices)
    names = {k["name"] for k in json.loads(kiln("list", "--json"))}
    gemms = {"gemm" + strided + op for strided in ("", "_strided") for op in ("", "_nn", "_tn", "_tt")}
    gemms |= {"gemm_fp8" + scales + sums for scales in ("", "_rows") for sums in ("", "_fast")}
    gemms |= {"gemm_fp8_block"}
    gemms |= {"gemm_" + rows + scales for rows in ("grouped", "padded", "masked") for scales in ("", "_fp8_block")} | {"interleave_gate_up"}
    gemms |= {"gemm_gated_" + act + rows for act in ("silu", "gelu", "gelu_tanh", "relu") for rows in ("", "_interleaved")}
    gemms |= {"gemm_gated_" + act + "_fp8_" + scales + rows for act in ("silu", "gelu", "gelu_tanh", "relu") for scales in ("tensor", "blocks")
              for rows in ("", "_interleaved")}
    gemms |= {"gemm_fp8" + scales + "_gated_" + act + results + rows for act in ("silu", "gelu", "gelu_tanh", "relu")
              for scales in ("", "_rows", "_fast", "_rows_fast", "_block") for results in ("", "_fp8_tensor", "_fp8_blocks")
              for rows in ("", "_interleaved")}
    gemms |= {act + "_mul" + scales for act in ("silu", "gelu", "gelu_tanh", "relu") for scales in ("", "_fp8_rows", "_fp8_blocks", "_fp8_tensor")}
    rows = {"rmsnorm_residual", "rmsnorm_fp8", "rmsnorm_fp8_blocks", "rmsnorm_residual_fp8", "rmsnorm_residual_fp8_blocks", "layernorm", "softmax", "cross_entropy", "quantize_rows", "quantize_blocks", "quantize_tensor",
            "quantize_tensor_dynamic", "quantize_blocks_masked", "quantize_weights"}
    ropes = {"rope" + norm + paged + order for norm in ("", "_norm") for paged in ("", "_paged") for order in ("", "_interleaved")}
    assert names == {"vector_add", "residual_add", "rmsnorm"} | rows | ropes | gemms | {"sort_by_expert"}, names

    tune = ("tune", "rmsnorm", "--problem", "rows=8,hidden=256", "--device", "host", "--json")
    first = json.loads(kiln(*tune))
    assert not first["from_store"] and first["complete"] and first["compiled"] > 0
    statuses = lambda told: {c["status"] for c in told["candidates"]}
    assert "measured" in statuses(first)
    space = first["space"]
    assert space["exact"] and 0 < space["allowed"] < space["combinations"], space
    assert sum(r["count"] for r in space["rejected"]) == space["combinations"] - space["allowed"], space
    assert all("reason" in c for c in first["candidates"] if c["status"] != "measured")
    measured = [c for c in first["candidates"] if c["status"] == "measured"]
    assert all(c["time_ms"] > 0 and c["samples_ms"] and c["max_error"] <= 1 for c in measured)
    assert first["default"]["config"] == first["candidates"][0]["config"]
    assert first["winner"]["time_ms"] <= first["default"]["time_ms"]
    assert first["launch"]["right"]

    second = json.loads(kiln(*tune))
    assert second["from_store"] and second["compiled"] == 0
    assert second["winner"]["config"] == first["winner"]["config"]

    # A problem is tuned as its bucket, and the answer says so.
    assert first["asked"] == first["problem"] == {"rows": 8, "hidden": 256}, first["asked"]
    like = ("tune", "rmsnorm", "--problem", "rows=7,hidden=256", "--device", "host")
    bucketed = json.loads(kiln(*like, "--json"))
    assert bucketed["from_store"] and bucketed["asked"] == {"rows": 7, "hidden": 256}, bucketed["asked"]
    assert bucketed["problem"] == first["problem"], bucketed["problem"]
    assert "rmsnorm rows=7,hidden=256 belongs to the bucket rows=8,hidden=256:" in kiln(*like)

    # One config, named in part: verified and timed, not remembered.
    default = first["default"]["config"]
    others = [{k: v for k, v in c["config"].items() if v != default[k]} for c in measured]
    one = min((other for other in others if other), key=len)
    text = ",".join(f"{k}={v}" for k, v in one.items())
    time = ("time", "rmsnorm", "--problem", "rows=8,hidden=256", "--device", "host", "--config", text)
    timed = json.loads(kiln(*time, "--json"))
    assert [c["status"] for c in timed["candidates"]] == ["measured"], timed
    assert timed["winner"]["config"] == {**first["default"]["config"], **one}, timed["winner"]
    assert "samples from" in kiln(*time)
    for wrong in ("nonsense=1", "block", "block=x"):
        kiln(*time[:-1], wrong, code=1)

    stats = json.loads(kiln("cache", "stats", "--json"))
    assert stats["records"] == 1 and stats["binaries"] == len(measured), stats
    entries = json.loads(kiln("cache", "explain", "--json"))
    fields = {f["name"] for e in entries for f in e["fields"]}
    assert {"source", "options", "compiler version", "target", "problem.rows"} <= fields, fields

    # A record says what was found, by its key or by kernel and problem.
    record = next(e for e in entries if e["kind"] == "record")
    for words in ((record["key"][:12],), ("rmsnorm", "hidden=256,rows=8"), ("rmsnorm", "rows=8")):
        found = [e for e in json.loads(kiln("cache", "explain", *words, "--json")) if e["kind"] == "record"]
        assert [e["key"] for e in found] == [record["key"]], (words, found)
        said = found[0]["result"]
        assert said["winner"]["config"] == first["winner"]["config"] and said["complete"], said
        assert said["problem"] == {"rows": 8, "hidden": 256}, said["problem"]
        assert len(said["candidates"]) == len(first["candidates"])
    text = kiln("cache", "explain", "rmsnorm", "rows=8")
    assert "winner" in text and "default" in text and "candidates of strategy" in text, text
    assert len(json.loads(kiln("cache", "explain", "rmsnorm", "--json"))) == len(entries)
    assert "no record for rows=9" in kiln("cache", "explain", "rmsnorm", "rows=9", code=1, stderr=True)
    assert "kernels: rmsnorm" in kiln("cache", "explain", "convolution", code=1, stderr=True)

    # One flipped bit is found, is a miss, and is repaired by the next run that needs the entry.
    broken = pathlib.Path(next(e["path"] for e in entries if e["kind"] == "binary"))
    content = bytearray(broken.read_bytes())
    content[len(content) // 2] ^= 1
    broken.write_bytes(content)
    damaged = json.loads(kiln("cache", "verify", "--json", code=2))["damaged"]
    assert [d["path"] for d in damaged] == [str(broken)], damaged
    again = json.loads(kiln(*tune, "--retune"))
    assert again["compiled"] == 1, again["compiled"]
    assert json.loads(kiln("cache", "verify", "--json"))["damaged"] == []

    # Groups of rows with padding, by a file of problems.
    problems = pathlib.Path(os.environ["KILN_CACHE_DIR"]).parent / "problems.json"
    groups = {"m": 64, "n": 40, "k": 128, "groups": 3, "row_alignment": 16}
    problems.write_text(json.dumps([{"kernel": "gemm_padded" + scales, "types": "bf16", "problem": groups} for scales in ("", "_fp8_block")]))
    # Few candidates instead of few seconds: under sanitizers one takes seconds.
    few = ("--max-seconds", "200", "--evaluations", "4")
    for tuned in json.loads(kiln("tune", "--problems", str(problems), "--device", "host", *few, "--json"))["results"]:
        assert tuned["problem"] == tuned["asked"] == groups, tuned
        assert "measured" in statuses(tuned) and "wrong_result" not in statuses(tuned), tuned

    # What a tuning found can be searched again, and its time accounted for.
    folder = pathlib.Path(os.environ["KILN_CACHE_DIR"]).parent
    space, trace = folder / "rmsnorm.t4.json.gz", folder / "trace.json"
    done = json.loads(kiln(*tune, "--retune", "--export", f"t4:{space}", "--trace", str(trace)))
    replayed = json.loads(kiln("replay", str(space), "--strategy", "exhaustive", "--budget", "1000", "--json"))
    assert replayed["fraction_of_optimum"]["mean"] == 1, replayed
    assert abs(replayed["optimum_ms"] / min(
        sum(c["samples_ms"]) / len(c["samples_ms"]) for c in done["candidates"] if "samples_ms" in c) - 1) < 1e-6
    spans = [e for e in json.loads(trace.read_text())["traceEvents"] if e["ph"] == "X"]
    assert {"find", "verify", "time", "finals"} <= {e["name"] for e in spans}, spans[:3]
    parts = sum(done[p] for p in ("compile_s", "verify_s", "time_s", "search_s"))
    assert 0.5 * done["wall_s"] < parts <= done["wall_s"], (parts, done["wall_s"])
    again = json.loads(kiln("tune", "--device", f"recorded:{space}", "--json"))
    assert again["complete"] and again["launch"]["right"], again["end"]
    kiln(*tune, "--export", "csv:x", code=1)

    assert json.loads(kiln("cache", "clear", "--json"))["removed"] >= len(entries)
    assert json.loads(kiln("cache", "stats", "--json"))["binaries"] == 0
    print("doctor, list, tune, store: as documented")
    return 0


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.environ["KILN_CACHE_DIR"] = str(pathlib.Path(folder) / "store")
        sys.exit(main())
