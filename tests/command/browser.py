"""A headless Chromium that says what a page asks of the network and of the console: over its debugging pipe, without packages."""
import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time


FACTOR = max(1.0, float(os.environ.get("KILN_TIMEOUT_FACTOR") or 1))  # slow machines get more time


def starts(program):
    """Debian and Ubuntu have scripts by this name that only say how to install it; others lack libraries."""
    try:
        return subprocess.run([program, "--version"], stdin=subprocess.DEVNULL, capture_output=True, timeout=30 * FACTOR).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def find():
    return next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name)) and starts(path)), None)


class Browser:
    """One page. `requests` are the URLs it has asked for, `messages` are errors and warnings of its console."""

    def __init__(self, program, seconds=90):
        self.deadline = time.monotonic() + seconds * FACTOR
        self.requests, self.messages = [], []
        self._count, self._rest = 0, b""
        self._profile = tempfile.TemporaryDirectory()
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()

        def descriptors():  # the browser reads 3 and writes 4
            held = os.dup(from_browser), os.dup(to_browser)
            os.dup2(held[1], 3)
            os.dup2(held[0], 4)

        self._process = subprocess.Popen(
            [program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe",
             "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync",
             f"--user-data-dir={self._profile.name}", "about:blank"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, close_fds=False,
            preexec_fn=descriptors)
        os.close(to_browser)
        os.close(from_browser)
        self._session = None
        target = next(t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(domain + ".enable")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self._out)
        os.close(self._in)
        self._process.kill()
        self._process.wait()
        try:
            self._profile.cleanup()
        except OSError:  # a child that is still ending
            pass

    def call(self, method, **parameters):
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._count:
                assert "error" not in answer, f"{method}: {answer}"
                return answer["result"]
            self._note(answer)

    def _next(self):
        while b"\0" not in self._rest:
            left = self.deadline - time.monotonic()
            if left <= 0 or not select.select([self._in], [], [], left)[0]:
                raise TimeoutError("the browser does not answer")
            part = os.read(self._in, 1 << 20)
            if not part:
                raise RuntimeError("the browser has ended")
            self._rest += part
        message, self._rest = self._rest.split(b"\0", 1)
        return json.loads(message)

    def _note(self, event):
        parameters = event.get("params", {})
        if event.get("method") == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"][:200])
        elif event.get("method") == "Runtime.exceptionThrown":
            self.messages.append(str(parameters["exceptionDetails"])[:2000])
        elif event.get("method") == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.messages.append(" ".join(str(a.get("value", a.get("description"))) for a in parameters["args"])[:2000])
        elif event.get("method") == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.messages.append(str(parameters["entry"])[:2000])

    def open(self, url, width=1280, height=900):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Page.navigate", url=url)
        self.wait_for("document.readyState === 'complete'")

    def evaluate(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait_for(self, condition):
        """Returns what the condition came to."""
        while not (value := self.evaluate(condition)):
            assert time.monotonic() < self.deadline, f"this never came true: {condition}; {self.messages}"
            time.sleep(0.05)
        return value

    def screenshot(self, file):
        """The whole page, not only what is in sight."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = dict(x=0, y=0, width=size["width"], height=min(size["height"], 8000), scale=1)
        image = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        with open(file, "wb") as out:
            out.write(base64.b64decode(image["data"]))
