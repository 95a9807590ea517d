#!/usr/bin/env python3
"""`kiln report`: what it reads and refuses, and what its page draws in a browser that reaches no network.

Usage: KILN [--browser]. With --browser it exits 77 (skipped) without a Chromium that starts, or where Kiln was built without plots."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import browser
from replay_space import space

DONE, USER, ENVIRONMENT, SKIPPED = 0, 1, 2, 77
KILN = sys.argv[1]
NASTY = "<b class=injected>x</b></script><script>document.title='injected'</script><!--"


def kiln(*arguments, code=DONE):
    result = subprocess.run([KILN, *map(str, arguments)], capture_output=True, text=True, timeout=100 * browser.FACTOR)
    assert result.returncode == code, f"kiln {arguments}: exit {result.returncode}, not {code}\n{result.stdout}{result.stderr}"
    return result


def tuned(folder, name, dip):
    """A real tuning, of a recorded device: needs neither a compiler nor a GPU."""
    recorded = folder / f"{name}.t4.json"
    recorded.write_text(json.dumps(space(dip)))
    first, result = (json.loads(kiln("tune", "--device", f"recorded:{recorded}", "--evaluations", evaluations, "--json",
                                     "--cache-dir", folder / "store").stdout) for evaluations in (15, 40))
    # A search that is continued goes on counting its seconds.
    after = {str(c["config"]): c["after_seconds"] for c in result["candidates"]}
    earlier = {str(c["config"]): c["after_seconds"] for c in first["candidates"]}
    assert len(earlier) == 15 and len(after) == 40 and earlier.items() <= after.items(), (earlier, after)
    assert max(earlier.values()) < min(t for config, t in after.items() if config not in earlier), (earlier, after)
    return result


def problem(result, kernel, n, **more):
    return dict(result, kernel=kernel, problem_fields=["n"], problem={"n": n}, flops=1e6 * n, bytes=1e5 * n, **more)


def choice(result):
    """As of kiln::Choice: the first parameter names the alternative."""
    candidates = []
    for i, c in enumerate(result["candidates"]):
        config = {"alternative": ["cublaslt", "mine"][i % 2], "mine.block": i}
        candidates.append(dict(c, config=config, host_ms=0.004))
    by_config = {json.dumps(c["config"], sort_keys=True): k for c, k in zip(result["candidates"], candidates)}
    return dict(result, kernel="choice", parameters=["alternative", "mine.block"], candidates=candidates,
                left_out=[{"name": "absent", "why": "it needs <i>100</i> elements"}],
                enumerators={"alternative": [[7, "cublaslt"], [9, "mine"]]},
                **{which: by_config[json.dumps(result[which]["config"], sort_keys=True)] for which in ("default", "winner")})


def data_in(page):
    return json.loads(re.search(r'id="data">(.*?)</script>', page, re.S)[1])


def check_reading(folder, one):
    page, store = folder / "report.html", folder / "store"
    said = kiln("report", store, "-o", page)
    assert "2 results" in said.stdout, said
    data = data_in(page.read_text())
    assert data == json.loads(kiln("report", store, "--json").stdout)
    assert {p["kernel"] for p in data["problems"]} == {"recorded_one", "recorded_two"}, data["problems"]
    result = next(p for p in data["problems"] if p["kernel"] == "recorded_one")["results"][0]
    counts = {status: count for status, count in one["counts"].items() if count}
    assert result["counts"] == counts and sum(counts.values()) == 40, (result["counts"], counts)
    # When each outcome was known is in the record, and so is the order.
    after = [result["candidates"]["after"][i] for i in result["order"]]
    assert len(after) == 40 and all(after) and after == sorted(after), after
    assert result["best_so_far"][-1]["best"] == min(s for s in result["candidates"]["seconds"] if s), result["best_so_far"]
    assert result["best_so_far"][-1]["evaluation"] == 40

    # A record cut off, as by a copy that is still running, and one of a killed writer.
    record = next(store.glob("v1/records/*/*.json"))
    (record.parent / "cut.json").write_bytes(record.read_bytes()[:-200])
    (record.parent / ".kiln-1-2.tmp").write_bytes(record.read_bytes()[:100])
    said = kiln("report", store, "-o", page)
    assert "2 results" in said.stdout and "cut.json" in said.stderr and ".tmp" not in said.stderr, said
    assert [p["path"].rsplit("/", 1)[1] for p in data_in(page.read_text())["passed_over"]] == ["cut.json"]
    for i in range(9):
        (record.parent / f"cut{i}.json").write_text("{")
    said = kiln("report", store, "-o", page)
    assert said.stderr.count("passed over") == 5 and "and 5 more" in said.stderr, said.stderr
    for cut in record.parent.glob("cut*"):
        cut.unlink()


def check_mistakes(folder):
    page, store = folder / "never.html", folder / "store"
    for words, code, *arguments in (
            (["/no/such"], ENVIRONMENT, "/no/such", "-o", page),
            (["no results"], USER, folder / "empty", "-o", page),
            (["not JSON"], USER, folder / "empty" / "a.txt", "-o", page),
            (["sources"], USER, "-o", page),
            (["--output"], USER, store),
            (["--output", "/no/such/folder"], ENVIRONMENT, store, "-o", "/no/such/folder/x.html"),
            (["--problems"], USER, store, "-o", page, "--problems", "/no/such.json")):
        (folder / "empty").mkdir(exist_ok=True)
        if words == ["not JSON"]:
            (folder / "empty" / "a.txt").write_text("text")
        said = kiln("report", *arguments, code=code).stderr
        assert all(w in said for w in words), f"{arguments}: not all of {words} in:\n{said}"
    assert not page.exists()
    if os.path.exists("/dev/full"):
        assert "/dev/full" in kiln("report", store, "-o", "/dev/full", code=ENVIRONMENT).stderr


def model(folder, one):
    """200 problems, of which one has names that are HTML, one is a choice, and one has the results of three ranks."""
    results = [problem(one, f"kernel{i % 4}", i + 1, weight=i % 7 + 1) for i in range(197)]
    results += [problem(one, NASTY, 1000, types=[NASTY], warnings=[NASTY]), choice(problem(one, "choice", 1000))]
    (folder / "model.json").write_text(json.dumps({"results": results}))
    logs = folder / "logs"
    logs.mkdir()
    for rank in (2, 0, 1):
        ranks = {"rank": rank, "size": 3, "outcome": "plan", "why": "", "broken": False, "measured": 14}
        (logs / f"rank-{rank}.json").write_text(json.dumps(
            {"results": [problem(one, "ranks", 1, ranks=ranks, plan_digest="5ea1" * 16)], "wall_s": 1}))
    (logs / "compile_commands.json").write_text(json.dumps([{"directory": "/", "file": f"{i}.cpp"} for i in range(500)]))
    (logs / "rank-3.json").write_text(json.dumps({"error": {"kind": "environment", "message": "the GPU is gone"}}))
    page = folder / "model.html"
    said = kiln("report", folder / "model.json", logs, "-o", page)
    assert "202 results" in said.stdout and "the GPU is gone" in said.stderr, said
    assert said.stderr.count("passed over") == 2 and "500 of its 500 entries" in said.stderr, said.stderr
    data = data_in(page.read_text())
    assert len(data["problems"]) == 200
    assert [r["ranks"]["rank"] for r in next(p for p in data["problems"] if p["kernel"] == "ranks")["results"]] == [0, 1, 2]
    hosts = next(p for p in data["problems"] if p["kernel"] == "choice")["results"][0]["candidates"]["host"]
    assert set(hosts) == {4e-6, None}, hosts  # None: it was not timed
    device = data["devices"][0]
    assert device["weighted"] and device["problems"] == 200 and device["default"] > device["winner"] > 0, device
    return page, [p["kernel"] for p in data["problems"]]


def check_weights(folder):
    """The registered kernels' problems may be given weights beside the results."""
    weights = folder / "weights.json"
    weights.write_text(json.dumps([{"kernel": "vector_add", "problem": {"n": 64}, "weight": 5}] * 2))
    result = json.loads((folder / "one.json").read_text())
    source = folder / "vector_add.json"
    source.write_text(json.dumps(dict(problem(result, "vector_add", 64), types=["float"])))
    data = json.loads(kiln("report", source, "--problems", weights, "--json").stdout)
    assert data["problems"][0]["weight"] == 10, data["problems"][0]["weight"]
    good = {"kernel": "vector_add", "problem": {"n": 64}}
    gemm = {"choice": "gemm_nn", "types": "bf16", "problem": {"m": 1, "n": 64, "k": 64}, "weight": 2}
    weights.write_text(json.dumps([good, gemm, dict(gemm, choice="gemm_fp8"), dict(gemm, choice="gemm_fp8_fast")]))
    kiln("report", source, "--problems", weights, "--json")
    # What is wrong is said with the file and the entry.
    for entry, *words in (
            (dict(good, weight=-1), "weight -1"),
            (dict(good, weight="often"), 'weight "often"'),
            (dict(good, kernel="vector_ad"), "unknown kernel 'vector_ad'", "vector_add"),
            (dict(good, types="f8"), "no types 'f8'", "f32"),
            (dict(good, problem={"m": 1}), "m"),
            (dict(good, problem={"n": 0.5}), "n=0.5 is not an integer"),
            (dict(good, wieght=1), "unknown field 'wieght'"),
            (dict(gemm, choice="gem"), "unknown choice 'gem'", "gemm_nn"),
            (dict(gemm, kernel="gemm_nn"), "one of `kernel` and `choice`"),
            ({"problem": {"n": 1}}, "one of `kernel` and `choice`"),
            (7, "not an object")):
        weights.write_text(json.dumps([good, good, entry]))
        said = kiln("report", source, "--problems", weights, "--json", code=USER).stderr
        assert all(w in said for w in (str(weights), "entry 3: ", *words)), (entry, said)
    weights.write_text("[")
    assert str(weights) in kiln("report", source, "--problems", weights, "--json", code=USER).stderr


SETTLED = "window.kilnReport && kilnReport.drawing === 0"


def plots(page):
    # In one look: the page may go on drawing after it.
    drawn, counted, errors = page.wait_for(SETTLED + " && [document.querySelectorAll('.plot svg').length, kilnReport.plots, kilnReport.errors]")
    assert drawn == counted and not errors, (drawn, counted, errors)
    return drawn


def opened(page, number):
    """The titles of what a problem's detail draws, all of it scrolled into sight."""
    page.evaluate(f"document.getElementById('problem-{number}').click()")
    detail = f"document.getElementById('problem-{number}').nextElementSibling"
    count = page.evaluate(f"{detail}.querySelectorAll('.plot').length")
    for i in range(count):
        page.evaluate(f"{detail}.querySelectorAll('.plot')[{i}].scrollIntoView()")
        page.wait_for(f"{detail}.querySelectorAll('.plot')[{i}].querySelector('svg') !== null")
    page.wait_for(SETTLED)
    return page.evaluate(f"[...{detail}.querySelectorAll('h3')].map(h => h.textContent)")


def check_browser(program, page_file, kernels, store_page, screenshots):
    with browser.Browser(program) as page:
        page.open(page_file.as_uri())
        page.wait_for("window.kilnReport && kilnReport.plots > 0")
        summary = plots(page)
        assert 1 <= summary <= 3, f"{summary} plots for 200 problems that nobody has opened"
        assert page.evaluate("document.querySelectorAll('tr.problem').length") == 200
        titles = opened(page, kernels.index("kernel0"))
        for title in ("All candidates", "How the search went", "The fastest, with intervals", "Time against each parameter",
                      "Parallel coordinates", "Why each other lost", "Versions and environment"):
            assert title in titles, f"{title} is not among {titles}"
        assert plots(page) >= summary + 5
        choice_at = kernels.index("choice")
        assert "Alternatives side by side" in opened(page, choice_at)
        shown = page.evaluate(f"document.getElementById('problem-{choice_at}').nextElementSibling.textContent")
        assert "alternativebesthostcandidatesfailed" in shown, shown
        assert "Without absent: see the table" in shown and "took no part: it needs <i>100</i> elements" in shown, shown
        assert "Side by side" in opened(page, kernels.index("ranks"))
        opened(page, kernels.index(NASTY))
        assert page.evaluate("document.querySelectorAll('.injected').length") == 0
        assert page.evaluate("document.title") == "Kiln report"
        assert page.evaluate(f"document.body.textContent.split({json.dumps(NASTY)}).length") == 4
        page.evaluate("document.querySelector('th.sorts').click()")
        page.evaluate("(i => { i.value = 'kernel1 n=2'; i.dispatchEvent(new Event('input')); })(document.querySelector('input'))")
        shown = page.evaluate("[...document.querySelectorAll('tr.problem')].filter(r => !r.hidden).length")
        assert 0 < shown < 50, shown
        assert page.requests == [page_file.as_uri()], page.requests
        assert page.messages == [], page.messages
        if screenshots:
            page.screenshot(pathlib.Path(screenshots) / "model.png")

        page.open(store_page.as_uri() + "#problem-1")
        page.wait_for("document.querySelectorAll('tr.detail').length === 1 && kilnReport.plots > 0")
        assert "How the search went, in seconds" in page.evaluate("[...document.querySelectorAll('h3')].map(h => h.textContent)")
        if screenshots:
            page.screenshot(pathlib.Path(screenshots) / "problem.png")

        # Without the script that draws plots all the rest is there.
        bare = page_file.with_name("bare.html")
        bare.write_text(re.sub(r"<script>\s*/\*.*?</script>", lambda _: "<script></script>", page_file.read_text(), count=1, flags=re.S))
        page.open(bare.as_uri())
        assert "no plots" in page.evaluate("document.querySelector('.notice').textContent")
        page.evaluate("document.getElementById('problem-0').click()")
        assert page.evaluate("document.querySelectorAll('tr.detail .reason').length") > 10
        assert page.messages == [], page.messages


def main(folder):
    program = browser.find()
    if "--browser" in sys.argv and not program:
        print("skipped: there is no Chromium that starts (Debian's package chromium)")
        return SKIPPED
    one = tuned(folder, "one", 5)
    (folder / "one.json").write_text(json.dumps(one))
    tuned(folder, "two", 12)
    if "--browser" not in sys.argv:
        check_reading(folder, one)
        check_mistakes(folder)
        check_weights(folder)
    page, kernels = model(folder, one)
    if "--browser" not in sys.argv:
        print(f"200 problems in {page.stat().st_size >> 10} KiB")
        return DONE
    store_page = folder / "store.html"
    if "no plots" in kiln("report", folder / "store", "-o", store_page).stderr:
        print("skipped: this Kiln was built without plots (scripts/setup fetches them)")
        return SKIPPED
    check_browser(program, page, kernels, store_page, os.environ.get("REPORT_SCREENSHOTS"))
    print("drawn, without a request or a message")
    return DONE


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        sys.exit(main(pathlib.Path(temporary)))
