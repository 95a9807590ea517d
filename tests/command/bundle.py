#!/usr/bin/env python3
"""The way of a bundle, through the command alone: precompiled, looked into, damaged, merged, signed, and served from
by a program that has no compiler, no writable file and no kernel sources.

Usage: KILN OWN_COMMAND ENGINE. Exits 77 (skipped) where the host device cannot compile."""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

DONE, USER, ENVIRONMENT, MISSING, INCOMPLETE, INTERRUPTED = 0, 1, 2, 4, 4, 130
KILN, OWN, ENGINE = (str(pathlib.Path(p).resolve()) for p in sys.argv[1:4])


def run(*arguments, code=DONE, **environment):
    result = subprocess.run([str(a) for a in arguments], capture_output=True, text=True, timeout=600,
                            env=dict(os.environ, **environment))
    assert result.returncode == code, f"{arguments}: exit {result.returncode}, not {code}\n{result.stdout}{result.stderr}"
    return result


def answer(*arguments, **more):
    return json.loads(run(*arguments, "--json", **more).stdout)


def refused(words, *arguments, code=USER):
    said = run(*arguments, code=code).stderr
    assert all(w in said for w in words), f"{arguments}: not all of {words} in:\n{said}"


def flip(source, place, target):
    content = bytearray(source.read_bytes())
    content[place] ^= 0x10
    target.write_bytes(content)
    target.chmod(0o600)


def check_precompile(folder):
    """Bundles of a user's own kernel and of shipped ones; from a warm store the same bytes."""
    own = answer(OWN, "precompile", "saxpy", "--problem", "n=4096", "--arch", "host", "-o", folder / "own.kiln")
    # 4 x 4 configs, of which one has too large a tile.
    assert own["instances"] == own["compiled"] == own["bundle"]["binaries"] == 15, own
    assert own["failures"] == [] and not own["stopped"] and own["threads"] >= 1, own
    assert 0 < own["busy_s"] <= own["wall_s"] * own["threads"] * 1.01, own

    problems = folder / "problems.json"
    problems.write_text(json.dumps(
        [{"kernel": "vector_add", "problem": {"n": n}} for n in (1024, 1000, 8192)] +
        [{"kernel": "rmsnorm", "problem": {"rows": rows, "hidden": 256}} for rows in (1, 4)] +
        [{"kernel": "gemm", "problem": {"m": 1, "n": 1, "k": 1}},
         {"kernel": "rmsnorm", "problem": {"rows": 1, "hidden": 512}, "devices": ["cuda"]}]))
    command = [KILN, "precompile", "vector_add", "rmsnorm", "--problems", problems, "--arch", "host,host", "-o"]
    first = answer(*command, folder / "shipped.kiln", "--threads", 1)
    parts = {(p["kernel"], p["records"]): p["binaries"] for p in first["bundle"]["parts"]}
    # Problems share instances: 5 x 6 blocks and items, whatever n is.
    assert first["threads"] == 1 and parts[("vector_add", 0)] == 30 and set(parts) == {("vector_add", 0), ("rmsnorm", 0)}, first
    again = answer(*command, folder / "again.kiln")
    assert again["compiled"] == 0 and again["instances"] == first["instances"], again
    assert (folder / "again.kiln").read_bytes() == (folder / "shipped.kiln").read_bytes()
    text = run(*command, folder / "again.kiln").stdout
    assert "0 compiled, 0 failed" in text and "vector_add" in text and "\033" not in text, text
    return first


def check_mistakes(folder):
    precompile = [KILN, "precompile"]
    out = ["-o", folder / "none.kiln"]
    refused(["--problem", "rows=N,hidden=N", "--problems"], *precompile, "rmsnorm", "--arch", "host", *out)
    refused(["--problem", "one kernel"], *precompile, "rmsnorm", "gemm", "--problem", "rows=1", "--arch", "host", *out)
    refused(["--arch"], *precompile, "vector_add", "--problem", "n=8", *out)
    refused(["sm_12x", "sm_90a", "host"], *precompile, "vector_add", "--problem", "n=8", "--arch", "sm_12x", *out)
    refused(["no_such_kernel", "gemm"], *precompile, "no_such_kernel", "--problem", "n=8", "--arch", "host", *out)
    refused(["residual_add"], *precompile, "residual_add", "--problems", folder / "problems.json", "--arch", "host", *out)
    refused(["--manifest"], *precompile, *out)
    refused(["--output"], *precompile, "vector_add", "--problem", "n=8", "--arch", "host")
    refused(["--types"], *precompile, "--problems", folder / "problems.json", "--types", "f32", "--arch", "host", *out)
    refused(["f7", "bf16"], *precompile, "vector_add", "--problem", "n=8", "--types", "f32,f7", "--arch", "host", *out)
    refused(["/no/such/records"], *precompile, "vector_add", "--problem", "n=8", "--arch", "host", "--records",
            "/no/such/records", *out)
    refused(["/no/such/key.pem"], *precompile, "vector_add", "--problem", "n=8", "--arch", "host", "--sign",
            "/no/such/key.pem", *out)
    refused(["/no/such/folder"], *precompile, "vector_add", "--problem", "n=8", "--arch", "host", "-o",
            "/no/such/folder/x.kiln", code=ENVIRONMENT)
    manifest = folder / "bad.json"
    manifest.write_text(json.dumps({"format": "kiln manifest", "version": 1, "wanted": [
        {"kernel": "vector_add", "types": ["quaternion"], "target": "sm_90a", "problem": {"n": 8}}]}))
    refused(["entry 0", "vector_add", "known"], *precompile, "--manifest", manifest, *out)
    assert not (folder / "none.kiln").exists()


def check_damage(folder):
    """Every kind of damage is found; what is whole is not called damaged."""
    bundle = folder / "shipped.kiln"
    shown = answer(KILN, "bundle", "show", bundle, "--entries")
    assert shown["binaries"] == len(shown["entries"]) == sum(p["binaries"] for p in shown["parts"]), shown
    assert shown["bytes"] == bundle.stat().st_size and shown["signer"] == "" and shown["records"] == 0, shown
    assert {e["kernel"] for e in shown["entries"]} == {"vector_add", "rmsnorm"}
    table = run(KILN, "bundle", "show", bundle, folder / "own.kiln").stdout
    assert "not signed" in table and "saxpy" in table and "rmsnorm" in table, table

    assert answer(KILN, "bundle", "verify", bundle)["damaged"] == []
    whole = answer(KILN, "bundle", "verify", bundle, folder / "own.kiln")
    assert [w["checked"] for w in whole] == [shown["binaries"], 15], whole
    damaged, size = folder / "damaged.kiln", bundle.stat().st_size
    places = sorted({0, 9, 40, size - 1, *(size * i // 12 for i in range(12))})
    for place in places:
        flip(bundle, place, damaged)
        found = answer(KILN, "bundle", "verify", damaged, code=ENVIRONMENT)
        assert found["damaged"], f"a flipped bit at {place} of {size} is not found"
    for length in (0, 1, size // 2, size - 1):
        damaged.write_bytes(bundle.read_bytes()[:length])
        assert answer(KILN, "bundle", "verify", damaged, code=ENVIRONMENT)["damaged"], length
    damaged.write_text("no bundle")
    refused([str(damaged)], KILN, "bundle", "show", damaged)
    run(KILN, "bundle", "show", folder / "none.kiln", code=ENVIRONMENT)
    return len(places)


def check_merge(folder):
    everything = folder / "all.kiln"
    parts = [answer(KILN, "bundle", "show", folder / name) for name in ("own.kiln", "shipped.kiln")]
    merged = answer(KILN, "bundle", "merge", folder / "own.kiln", folder / "shipped.kiln", folder / "own.kiln",
                    "-o", everything)
    assert merged["binaries"] == sum(p["binaries"] for p in parts), merged
    run(KILN, "bundle", "merge", everything, folder / "own.kiln", "-o", folder / "twice.kiln")
    assert (folder / "twice.kiln").read_bytes() == everything.read_bytes()
    store = folder / "extracted"
    assert answer(KILN, "bundle", "extract", everything, "-o", store)["entries"] == merged["binaries"]
    stats = answer(KILN, "--cache-dir", store, "cache", "stats")
    assert stats["binaries"] == merged["binaries"] and stats["roots"] == [], stats
    assert answer(KILN, "cache", "verify", "--cache-dir", store)["damaged"] == []
    # What was extracted is an entry like any other.
    again = answer(OWN, "precompile", "saxpy", "--problem", "n=4096", "--arch", "host", "-o", folder / "own2.kiln",
                   "--cache-dir", store)
    assert again["compiled"] == 0 and (folder / "own2.kiln").read_bytes() == (folder / "own.kiln").read_bytes()
    # And a bundle under an empty store is as good.
    rooted = answer(OWN, "precompile", "saxpy", "--problem", "n=4096", "--arch", "host", "-o", folder / "own2.kiln",
                    "--no-cache", "--root", everything)
    assert rooted["compiled"] == 0 and (folder / "own2.kiln").read_bytes() == (folder / "own.kiln").read_bytes()
    check_cache(store, everything, merged["binaries"])


def check_cache(store, bundle, binaries):
    cache = [KILN, "--cache-dir", store, "cache"]
    stats = answer(*cache, "stats", "--root", bundle, "--root", "/no/such/root", KILN_CACHE_SIZE="3M")
    assert stats["max_bytes"] == 3 << 20, stats
    assert [(r["binaries"], bool(r["problem"])) for r in stats["roots"]] == [(binaries, False), (0, True)], stats
    entries = answer(*cache, "list")
    assert len(entries) == binaries == len(run(*cache, "list").stdout.splitlines())
    assert all(e["kind"] == "binary" and e["target"] and e["bytes"] > 0 for e in entries)
    assert {e["kernel"] for e in entries} == {"saxpy", "vector_add", "rmsnorm"}
    one = answer(*cache, "explain", entries[0]["key"][:20])
    portable = {f["name"]: f["portable"] for f in one[0]["fields"]}
    assert len(one) == 1 and portable["target"] and portable["config"] and not portable["compiler version"], portable
    assert "made with" in run(*cache, "explain", entries[0]["key"]).stdout
    for bad in ("", "2X", "-1", "1KB", "99999999999G"):
        refused(["--max-size"], *cache, "trim", f"--max-size={bad or 'none'}")
    half = sum(e["bytes"] for e in entries) // 2
    trimmed = answer(*cache, "trim", "--max-size", half)
    left = answer(*cache, "stats")
    assert 0 < trimmed["removed"] == binaries - left["binaries"] and left["bytes"] == trimmed["left"] <= half, trimmed
    assert answer(*cache, "trim")["removed"] == 0  # the default limit is far away
    assert answer(*cache, "trim", "--max-size", "1K")["left"] <= 1024


def check_signing(folder):
    """Signed, verified, refused: by the command and by the engine."""
    if not shutil.which("openssl"):
        return "signatures not tried: no openssl"
    keys = []
    for name in ("ours", "theirs"):
        key, public = folder / f"{name}.pem", folder / f"{name}.pub.pem"
        run("openssl", "genpkey", "-algorithm", "ed25519", "-out", key)
        run("openssl", "pkey", "-in", key, "-pubout", "-out", public)
        key.chmod(0o600)
        public.chmod(0o644)
        keys.append((key, public))
    (ours, our_public), (_, their_public) = keys
    signed, plain = folder / "signed.kiln", folder / "shipped.kiln"
    info = answer(KILN, "bundle", "sign", plain, "--key", ours, "-o", signed)
    assert len(info["signer"]) == 16 and info["binaries"] == answer(KILN, "bundle", "show", plain)["binaries"], info
    answer(KILN, "bundle", "verify", signed, "--public-key", our_public)
    answer(KILN, "bundle", "verify", signed)
    for bundle, public in ((signed, their_public), (plain, our_public)):
        assert answer(KILN, "bundle", "verify", bundle, "--public-key", public, code=ENVIRONMENT)["damaged"]
    tampered = folder / "tampered.kiln"
    flip(signed, signed.stat().st_size // 2, tampered)
    assert answer(KILN, "bundle", "verify", tampered, "--public-key", our_public, code=ENVIRONMENT)["damaged"]
    in_place = folder / "in_place.kiln"
    shutil.copy(plain, in_place)
    run(KILN, "bundle", "sign", in_place, "--key", ours)
    assert in_place.read_bytes() == signed.read_bytes()
    made = folder / "made_signed.kiln"
    run(OWN, "precompile", "saxpy", "--problem", "n=4096", "--arch", "host", "-o", made, "--sign", ours)
    run(KILN, "bundle", "verify", made, "--public-key", our_public)
    refused([str(our_public)], KILN, "bundle", "sign", plain, "--key", our_public, "-o", folder / "no.kiln")
    wanted = folder / "signed_wanted.json"
    closed_loop(folder, signed, wanted, "host", our_public)
    for bundle, public in ((signed, their_public), (plain, our_public)):
        assert str(bundle) in engine(folder, bundle, wanted, "host", public, code=USER).stderr
    return "signed, verified, refused"


def engine(folder, *arguments, code):
    """Without compilers, kernel sources or a home to write to."""
    result = run(ENGINE, *arguments, code=code, KILN_NVRTC="/nonexistent", KILN_LLVM_PLUGIN="/nonexistent",
                 KILN_ROOT="/nonexistent", HOME="/proc", XDG_CACHE_HOME="", KILN_CACHE_DIR="")
    return result


def engine_in_read_only(folder, bundle, wanted, code):
    """The same where every file system but that of `wanted` is read-only; nothing where that cannot be made."""
    script = ('mount --make-rprivate / && mount -t tmpfs none "$1" && mount -o remount,bind,ro / && '
              '"$2" "$3" "$1/wanted.json"; code=$?; cat "$1/wanted.json"; exit $code')
    point = folder / "scratch"
    point.mkdir(exist_ok=True)
    if not shutil.which("unshare") or subprocess.run(
            ["unshare", "-rm", "sh", "-c", "mount --make-rprivate / && mount -o remount,bind,ro /"],
            capture_output=True).returncode != 0:
        return False
    result = run("unshare", "-rm", "sh", "-c", script, "sh", point, ENGINE, bundle, code=code, KILN_NVRTC="/nonexistent",
                 KILN_LLVM_PLUGIN="/nonexistent", KILN_CACHE_DIR="")
    assert '"kiln manifest"' in result.stdout, result.stdout
    wanted.write_text(result.stdout[result.stdout.index("{\n"):])
    return True


def closed_loop(folder, bundle, wanted, *arguments):
    """The first run meets a problem that it did not expect, and the second has prepared it."""
    first = engine(folder, bundle, wanted, *arguments, code=MISSING)
    assert "5 of 5 problems are ready" in first.stdout and "all right, 1 unprepared launches, 1 wanted" in first.stdout, first
    listed = json.loads(wanted.read_text())["wanted"]
    assert [(w["kernel"], w["problem"], "config" in w) for w in listed] == [("rmsnorm", {"rows": 32, "hidden": 256}, False)], listed
    second = engine(folder, bundle, wanted, *arguments, code=DONE)
    assert "6 of 6 problems are ready" in second.stdout and "all right, 0 unprepared launches, 0 wanted" in second.stdout, second
    assert json.loads(wanted.read_text())["wanted"] == listed


def check_serving(folder):
    bundle, wanted = folder / "shipped.kiln", folder / "wanted.json"
    # rmsnorm's default of 1 and 4 rows was compiled for all; the sums of 5000 and 100000 as well: they share instances.
    closed_loop(folder, bundle, wanted)

    # A bundle that lacks one kernel: a report that says so, and the list of what to make.
    wanted.unlink()
    lacking, rest = folder / "lacking.kiln", folder / "rest.kiln"
    run(KILN, "precompile", "vector_add", "--problem", "n=1024", "--arch", "host", "-o", lacking)
    missed = engine(folder, lacking, wanted, code=MISSING)
    assert "all right" in missed.stdout and "missing: rmsnorm" in missed.stdout, missed.stdout
    assert "3 of 5 problems are ready" in missed.stdout and "without a kernel: rmsnorm" in missed.stdout, missed.stdout
    assert "rmsnorm rows=1,hidden=256: nothing can be launched" in missed.stderr, missed.stderr
    assert "no other binary of this kernel" in missed.stderr, missed.stderr
    manifest = json.loads(wanted.read_text())
    assert {w["kernel"] for w in manifest["wanted"]} == {"rmsnorm"}, manifest
    # For prepared problems the instance is known, for the one that was met by surprise only the problem.
    assert {w["problem"]["rows"]: "config" in w for w in manifest["wanted"]} == {1: True, 4: True, 32: False}, manifest
    read_only = engine_in_read_only(folder, lacking, folder / "wanted2.json", code=MISSING)
    if read_only:
        assert json.loads((folder / "wanted2.json").read_text()) == manifest
    refused(["--arch"], KILN, "precompile", "--manifest", wanted, "--arch", "host", "-o", rest)
    filled = answer(KILN, "precompile", "--manifest", wanted, "-o", rest)
    assert filled["instances"] >= 1 and filled["failures"] == [], filled
    run(KILN, "bundle", "merge", lacking, rest, "-o", lacking)
    served = engine(folder, lacking, wanted, code=DONE)
    assert "all right, 0 unprepared launches, 0 wanted" in served.stdout, served.stdout
    if read_only:
        assert engine_in_read_only(folder, lacking, folder / "wanted2.json", code=MISSING)
    engine(folder, folder / "damaged.kiln", wanted, code=USER)
    return "read-only file systems too" if read_only else "read-only file systems not tried: no unshare"


def check_prepare(folder):
    """`kiln prepare`: from nothing in the store to a manifest that is complete, by exit codes."""
    store, wanted = folder / "prepared", folder / "prepare.json"
    arch = json.loads((folder / "wanted.json").read_text())["wanted"][0]["target"]
    entry = {"kernel": "vector_add", "types": ["float"], "target": arch, "problem": {"n": 4096}}
    write = lambda entries: wanted.write_text(json.dumps({"format": "kiln manifest", "version": 1, "wanted": entries}))
    write([entry, dict(entry, problem={"n": 8192})])
    prepare = [KILN, "prepare", "--manifest", wanted, "--device", "host", "--cache-dir", store]
    missing = answer(*prepare, "--work", "look_up", "--require-complete", code=INCOMPLETE)
    assert [p["state"] for p in missing["problems"]] == ["missing"] * 2 and not missing["complete"], missing
    assert missing["problems"][0]["missing"]["why"] == "this request compiles nothing (look_up)", missing
    assert not answer(*prepare, "--work", "look_up")["complete"]
    compiled = answer(*prepare, "--work", "compile", "--require-complete")
    assert compiled["complete"] and compiled["compiled"] > 0 and compiled["searched"] == 0, compiled
    tuned = answer(*prepare, "--max-seconds", 60, "--require-complete")
    assert [p["state"] for p in tuned["problems"]] == ["tuned"] * 2 and tuned["searched"] == 2, tuned
    again = answer(*prepare, "--require-complete")
    assert [p["state"] for p in again["problems"]] == ["known"] * 2 and again["compiled"] == again["searched"] == 0, again
    assert "2 of 2 problems ready, 0 compiled, 0 tuned" in run(*prepare).stdout
    write([entry, dict(entry, target="sm_80"), dict(entry, types=["quaternion"])])
    text = run(*prepare, "--require-complete", code=INCOMPLETE).stdout
    assert "the entry is for sm_80" in text and "no handle of kernel vector_add<quaternion>" in text, text
    write([dict(entry, launches=3), dict(entry, problem={"n": 8192}), dict(entry, launches=2, config={"block": 128, "items": 4}),
           dict(entry, target="sm_90a", launches=9)])
    told = answer(KILN, "tune", "--problems", wanted, "--device", "host", "--cache-dir", store, "--max-seconds", 5)
    assert {r["asked"]["n"]: r.get("weight", 0) for r in told["results"]} == {4096: 5, 8192: 0}, told
    gemm = {"choice": "gemm", "types": ["float", "nt"], "target": arch, "problem": {"m": 64, "n": 64, "k": 64}, "launches": 3}
    write([gemm, dict(gemm, types=["float"])])
    chosen = answer(*prepare, "--work", "compile", "--require-complete", code=INCOMPLETE)
    assert [(p["choice"], p["state"]) for p in chosen["problems"]] == [("gemm", "untuned"), ("gemm", "missing")], chosen
    assert chosen["problems"][0]["alternative"] == "template" and chosen["problems"][0]["config"], chosen
    text = run(*prepare, "--work", "compile").stdout
    assert "gemm<float, nt> k=64,m=64,n=64: untuned, template" in text, text
    assert "there is no choice gemm<float>" in text, text
    strided = dict(gemm["problem"], ldc=64, lda=64, ldb=64, batch=1, stride_c=4096, stride_a=4096, stride_b=4096)
    write([gemm, dict(gemm, problem=strided)])
    both = answer(*prepare, "--work", "compile", "--require-complete")
    assert [sorted(p["problem"]) for p in both["problems"]] == [sorted(gemm["problem"]), sorted(strided)], both
    write([gemm])
    told = answer(KILN, "tune", "--problems", wanted, "--device", "host", "--cache-dir", store, "--max-seconds", 2)
    assert [r["weight"] for r in told["results"]] == [3] and "kernels" in told["results"][0], told
    write([])
    assert answer(*prepare, "--require-complete")["complete"]
    refused(["none.json"], KILN, "prepare", "--manifest", folder / "none.json")
    refused(["--manifest"], KILN, "prepare")
    refused(["--work"], *prepare, "--work", "everything")
    refused(["--max-seconds"], *prepare, "--max-seconds", "-1")
    refused(["max_seconds"], *prepare, "--max-seconds", "inf")
    blocked = folder / "blocked"
    blocked.write_text("no folder")
    write([entry])
    refused(["not kept"], KILN, "prepare", "--manifest", wanted, "--device", "host", "--cache-dir", blocked / "store",
            "--work", "compile", "--require-complete", code=ENVIRONMENT)
    write([])
    own = answer(OWN, "prepare", "--manifest", wanted, "--device", "host", "--cache-dir", store)
    write([{"kernel": "saxpy", "types": ["float"], "target": arch, "problem": {"n": 4096}}])
    own = answer(OWN, "prepare", "--manifest", wanted, "--device", "host", "--cache-dir", store, "--work", "compile")
    assert own["complete"] and own["ready"] == 1, own
    return "prepared by exit codes 0 and 4"


def check_records(folder):
    """A problem with a tuning record ships only its winner and default, and the record."""
    store = folder / "tuned"
    tuned = answer(KILN, "tune", "rmsnorm", "--problem", "rows=4,hidden=256", "--device", "host", "--evaluations", 4,
                   "--seconds", 20, "--cache-dir", store)
    configs = {json.dumps(tuned[c]["config"], sort_keys=True) for c in ("default", "winner")}
    bundle = folder / "tuned.kiln"
    made = answer(KILN, "precompile", "rmsnorm", "--problem", "rows=4,hidden=256", "--arch", "host", "--records", store,
                  "-o", bundle)
    assert made["records"] == made["bundle"]["records"] == 1 and made["instances"] == len(configs), (made, configs)
    # The same from the bundle's own record, which a frozen program takes its winner from.
    again = answer(KILN, "precompile", "rmsnorm", "--problem", "rows=3,hidden=256", "--arch", "host", "--records", bundle,
                   "-o", folder / "tuned2.kiln")
    assert (folder / "tuned2.kiln").read_bytes() == bundle.read_bytes() and again["records"] == 1
    known = answer(KILN, "tune", "rmsnorm", "--problem", "rows=4,hidden=256", "--device", "host", "--evaluations", 4,
                   "--no-cache", "--root", bundle)
    assert known["from_store"] and known["compiled"] == 0 and known["winner"]["config"] == tuned["winner"]["config"]
    # A problem without a record keeps all its configs.
    other = answer(KILN, "precompile", "rmsnorm", "--problem", "rows=4,hidden=64", "--arch", "host", "--records", store,
                   "-o", folder / "other.kiln")
    assert other["records"] == 0 and other["instances"] > 2, other


def check_interrupt(folder):
    """Ctrl-C: no bundle, and what was compiled is not compiled again."""
    store, bundle = folder / "interrupted", folder / "interrupted.kiln"
    command = [KILN, "precompile", "gemm", "--problem", "m=64,n=64,k=1024", "--arch", "host", "-o", str(bundle), "--json",
               "--cache-dir", str(store)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not list(store.rglob("*.kiln")) and not list(store.rglob("v*/*/*")) and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=600)
    assert process.returncode == INTERRUPTED, (process.returncode, out, err)
    report = json.loads(out)
    assert report["stopped"] and report["bundle"] is None and not bundle.exists(), report
    assert 0 < report["compiled"] < report["instances"], report
    stats = answer(KILN, "--cache-dir", store, "cache", "stats")
    assert stats["binaries"] == report["compiled"] - len(report["failures"]), (stats, report)
    assert answer(KILN, "--cache-dir", store, "cache", "verify")["damaged"] == []
    return f"{report['compiled']} of {report['instances']} before Ctrl-C"


def check_cuda(folder):
    """Three architectures in one file, whatever is here of GPUs: none is needed."""
    bundle = folder / "cuda.kiln"
    made = answer(OWN, "precompile", "saxpy", "--problem", "n=4096", "--arch", "sm_80,sm_90a,sm_100a", "-o", bundle)
    parts = {p["target"]: p["binaries"] for p in made["bundle"]["parts"]}
    assert parts == {"sm_80": 15, "sm_90a": 15, "sm_100a": 15} and made["failures"] == [], made
    assert answer(KILN, "bundle", "verify", bundle)["checked"] == 45
    both = answer(KILN, "bundle", "merge", bundle, folder / "own.kiln", "-o", folder / "both.kiln")
    assert both["binaries"] == 60 and len(both["parts"]) == 4, both


def main(folder):
    components = json.loads(run(KILN, "doctor", "--json").stdout)["components"]
    if not components["llvm"]["available"]:
        print("skipped:", components["llvm"]["problem"])
        return 77
    first = check_precompile(folder)
    check_mistakes(folder)
    places = check_damage(folder)
    check_merge(folder)
    serving = check_serving(folder)
    prepared = check_prepare(folder)
    signing = check_signing(folder)
    check_records(folder)
    interrupt = check_interrupt(folder)
    if components["nvrtc"]["available"]:
        check_cuda(folder)
    print(f"bundles: {first['instances']} instances; {places} flipped bits found; {signing}; served without compilers, "
          f"{serving}; {prepared}; {interrupt}; {'three' if components['nvrtc']['available'] else 'no'} GPU architectures")
    return 0


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        os.environ["KILN_CACHE_DIR"] = str(pathlib.Path(temporary) / "store")
        for name in ("KILN_ROOTS", "KILN_BUNDLE_KEY", "KILN_CACHE_SIZE"):
            os.environ.pop(name, None)
        sys.exit(main(pathlib.Path(temporary)))
