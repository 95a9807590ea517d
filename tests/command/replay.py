#!/usr/bin/env python3
"""`kiln replay` on measured spaces that this script makes: its output, its exit codes, its mistakes.

Usage: KILN"""
import gzip
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile

from replay_space import space

DONE, USER = 0, 1
KILN = sys.argv[1]
STRATEGIES = {"exhaustive", "random", "local_search"}  # some of those that must be there


def kiln(*arguments, code=DONE):
    result = subprocess.run([KILN, *map(str, arguments)], capture_output=True, text=True, timeout=100)
    assert result.returncode == code, f"kiln {arguments}: exit {result.returncode}\n{result.stdout}{result.stderr}"
    return result.stdout


def refused(words, *arguments):
    """Exit 1, and a message with all `words`; with --json the same as JSON."""
    result = subprocess.run([KILN, "replay", *map(str, arguments)], capture_output=True, text=True, timeout=100)
    missing = [w for w in words if w not in result.stderr]
    assert result.returncode == USER and not missing, f"{arguments}: {result.returncode}, without {missing}:\n{result.stderr}"
    return result.stderr


def well_formed(row, budget, repeats):
    assert row["evaluations"] == budget and row["repeats"] == repeats, row
    assert 0 < row["fraction_of_optimum"]["min"] <= row["fraction_of_optimum"]["mean"] + 1e-12 <= 1 + 1e-9, row
    evaluations = [point[0] for point in row["curve"]]
    assert evaluations == sorted(set(evaluations)) and evaluations[-1] == budget
    assert {n for n in (1, 25, 50, 100, 200) if n <= budget} <= set(evaluations)
    assert row["curve"][-1][1] == row["fraction_of_optimum"]["mean"]
    assert all(0 <= point[1] <= 1 + 1e-9 for point in row["curve"])


def main(folder):
    plain, packed = folder / "one.t4.json", folder / "two.t4.json.gz"
    plain.write_text(json.dumps(space(5)))
    packed.write_bytes(gzip.compress(json.dumps(space(12)).encode()))
    names = {row["strategy"] for row in json.loads(kiln("replay", plain, "--strategy", "all", "--budget", 5,
                                                        "--repeats", 2, "--json"))}
    assert STRATEGIES <= names, names

    one = json.loads(kiln("replay", plain, "--strategy", "random", "--budget", 60, "--repeats", 10, "--seed", 3, "--json"))
    well_formed(one, 60, 10)
    assert one["strategy"] == "random" and one["seed"] == 3 and math.isclose(one["optimum_ms"], 1), one
    again = json.loads(kiln("replay", plain, "--strategy", "random", "--budget", 60, "--repeats", 10, "--seed", 3, "--json"))
    assert again["curve"] == one["curve"]
    noisy = json.loads(kiln("replay", plain, "--strategy", "random", "--budget", 60, "--repeats", 10, "--noise", "--json"))
    well_formed(noisy, 60, 10)
    assert noisy["noise"] and not one["noise"]

    everything = json.loads(kiln("replay", packed, "--strategy", "exhaustive", "--budget", 1000, "--repeats", 2, "--json"))
    well_formed(everything, 1000, 2)
    assert everything["fraction_of_optimum"] == {"mean": 1, "min": 1} and everything["evaluations_used"] == 400

    default = json.loads(kiln("replay", plain, "--budget", 30, "--repeats", 4, "--json"))
    assert default["strategy"] in names, default["strategy"]
    rows = json.loads(kiln("replay", plain, packed, "--strategy", "all", "--budget", 30, "--repeats", 4, "--json"))
    means = [row["fraction_of_optimum"]["mean"] for row in rows]
    assert means == sorted(means, reverse=True) and len(rows) == len(names)
    for row in rows:
        well_formed(row, 30, 4)
        assert [s["space"] for s in row["spaces"]] == ["one", "two"]
        each = [s["fraction_of_optimum"]["mean"] for s in row["spaces"]]
        assert math.isclose(sum(each) / 2, row["fraction_of_optimum"]["mean"])

    table = kiln("replay", plain, packed, "--strategy", "all", "--budget", 100, "--repeats", 3)
    listed = [line.split()[0] for line in table.splitlines()[4:] if line.strip()]
    assert listed[0] == "strategy" and set(listed[1:]) == names, table
    assert "25" in table and "50" in table and "100" in table and "\033" not in table
    assert "--budget" in kiln("replay", "--help")

    # What the other space tells: nothing is known better than a space itself.
    knowing = json.loads(kiln("replay", plain, "--budget", 4, "--repeats", 4, "--prior", packed, "--json"))
    well_formed(knowing, 4, 4)
    assert knowing["prior"] == [str(packed)] and default["prior"] == [], knowing
    assert json.loads(kiln("replay", plain, "--budget", 1, "--repeats", 2, "--prior", plain, "--json"))["curve"] == [[1, 1]]
    known = kiln("replay", plain, "--budget", 30, "--repeats", 2, "--prior", packed, "--prior-evaluations", 40)
    assert known.splitlines()[3].split()[1:4] == ["5", "10", "25"], known
    refused(["--prior-evaluations", "-1"], plain, "--prior", packed, "--prior-evaluations", -1)
    refused(["--prior-evaluations", "no --prior"], plain, "--prior-evaluations", 5)
    refused(["/no/such.t4.json"], plain, "--prior", "/no/such.t4.json")
    other = space(5)
    for entry in other["results"]:
        entry["configuration"] = {"x": entry["configuration"]["a"], "y": entry["configuration"]["b"]}
    (folder / "other.t4.json").write_text(json.dumps(other))
    refused(["other.t4.json", "cannot serve as a prior", "a, b, pad"], plain, "--prior", folder / "other.t4.json")

    refused(["guesswork", *STRATEGIES], plain, "--strategy", "guesswork")
    refused(["--budget", "0"], plain, "--budget", 0)
    refused(["--budget", "-3"], plain, "--budget", -3)
    refused(["--repeats"], plain, "--repeats", 0)
    refused(["space"])
    refused(["/no/such.t4.json", "no such file"], "/no/such.t4.json")
    refused(["not a regular file"], folder)

    def broken(words, content, name="broken.t4.json"):
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        refused([name, *words], folder / name)

    whole = space(3)
    text = json.dumps(whole)
    broken(["JSON"], "no")
    broken(["truncated"], text[:len(text) // 2])
    broken(["truncated"], gzip.compress(text.encode())[:-500], "broken.t4.json.gz")
    broken(["fortnights", "milliseconds"], json.dumps(space(3, "fortnights")))
    broken(["empty"], json.dumps({"results": []}))
    broken(["results[400]", "again", "results[1]"], json.dumps(dict(whole, results=whole["results"] + [whole["results"][1]])))
    for value, word in ((-1, "-1"), (0, "0"), (float("nan"), "NaN"), (float("inf"), "Infinity")):
        bad = space(3)
        bad["results"][2]["times"]["runtimes"][1] = value
        broken(["results[2]", word], json.dumps(bad))
    bad = space(3)
    del bad["results"][9]["configuration"]
    broken(["results[9]", "configuration"], json.dumps(bad))
    bad = space(3)
    for entry in bad["results"]:
        entry["invalidity"] = "compile"
    broken(["none of the"], json.dumps(bad))
    # Refused on the way, long before all of its 400 MB are expanded.
    broken(["expands"], gzip.compress(b'{"x":[' + b"0," * (200 << 20)), "bomb.t4.json.gz")

    # JSON output stays JSON when something is wrong.
    failed = subprocess.run([KILN, "replay", folder / "broken.t4.json", "--json"], capture_output=True, text=True)
    assert failed.returncode == USER and json.loads(failed.stdout)["error"]["kind"] == "user", failed.stdout
    print(f"replay: {len(names)} strategies, as documented")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        os.environ["KILN_CACHE_DIR"] = str(pathlib.Path(temporary) / "store")
        main(pathlib.Path(temporary))
        assert not (pathlib.Path(temporary) / "store").exists(), "replay wrote to the store"
