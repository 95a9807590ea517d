"""A measured space in the T4 format."""


def space(dip, unit="milliseconds"):
    """20 x 20 configs around one best; every seventh does not work."""
    results = []
    for a in range(20):
        for b in range(20):
            ms = 1 + ((a - dip) ** 2 + (b - 7) ** 2) / 50
            works = (a * 20 + b) % 7 != 0 or (a, b) == (dip, 7)
            results.append({"configuration": {"a": 2 ** a, "b": b, "pad": bool(b % 2)},
                            "times": {"compilation": 200, "runtimes": [ms * 0.98, ms * 1.02] if works else []},
                            "invalidity": "correct" if works else "compile",
                            "measurements": [{"name": "time", "value": ms, "unit": unit}]})
    return {"metadata": {"timeunit": unit}, "results": results}
