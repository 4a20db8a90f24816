"""A call of the fixture that failed, and a test that did not hear of it, or went on."""

from acquitted import Way, way

HEAD = """
import threading, time
from concurrent.futures import ThreadPoolExecutor
import pytest, torch
def void(parity):
    try: parity(lambda x: None, torch.ones(3))
    except Exception: pass
def wrong(parity): parity(torch.sinh, torch.ones(3))
def right(parity): parity(torch.cosh, torch.ones(3))
"""
FAULTS = "from parity.devices import Fault\nFAULTS = [Fault('sinh', ('sinh',), lambda c: c.run() * 1.5)]\n"
PYTEST = "pytest test_net.py --parity-device sim --parity-faults=faults.py"


def fixture(
    name: str, bad: str, good: str, command: str = PYTEST, says: str = "and the test went on: it compared nothing"
) -> Way:
    """A test that is green wrongly, and its twin."""
    return way(name, command, {"faults.py": FAULTS, "test_net.py": (HEAD + bad, HEAD + good)}, says)


EXPECTED = """
def test_net(parity):
    {}
    with pytest.raises(AssertionError): wrong(parity)
"""
SKIPPED = """
def test_net(parity):
    {}
    pytest.skip("not here")
"""
THREAD = """
def test_net(parity):
    thread = threading.Thread(target={}, args=(parity,))
    thread.start()
    thread.join()
"""
POOL = """
def test_net(parity):
    with ThreadPoolExecutor(1) as pool: pool.submit({}, parity)
    right(parity)
"""
LATE = """
def slow(x):
    time.sleep(6.0)
    return x.cosh()
def test_net(parity):
    thread = threading.Thread(target=parity, args=(slow, torch.ones(3)), daemon=True)
    thread.start()
    thread.join({})
"""
MADE = """
@pytest.fixture
def made(parity): {}(parity)
def test_net(made, parity): right(parity)
"""
TORN = """
@pytest.fixture
def torn(parity):
    yield
    {}(parity)
def test_net(torn, parity): right(parity)
"""
BY_NAME = """
def test_net(request): {}(request.getfixturevalue("parity"))
"""
ELSEWHERE = "in another thread, where no test hears of it"

WAYS = (
    fixture("compared nothing, then an expected failure", EXPECTED.format("void(parity)"), EXPECTED.format("right(parity)")),
    fixture("compared nothing, then skipped", SKIPPED.format("void(parity)"), SKIPPED.format("right(parity)")),
    fixture("a failure in a thread", THREAD.format("wrong"), THREAD.format("right"), says=ELSEWHERE),
    fixture("a failure in a pool whose result is not asked for", POOL.format("wrong"), POOL.format("right"), says=ELSEWHERE),
    fixture("a call that the test does not wait for", LATE.format("2.0"), LATE.format("None"), says="was still running"),
    fixture("compared nothing in a fixture, before the test", MADE.format("void"), MADE.format("right")),
    fixture("compared nothing in a fixture, after the test", TORN.format("void"), TORN.format("right")),
    fixture("compared nothing, by a fixture that is asked for by name", BY_NAME.format("void"), BY_NAME.format("right")),
    fixture("in a worker of pytest-xdist", EXPECTED.format("void(parity)"), EXPECTED.format("right(parity)"), f"{PYTEST} -n 1"),
)
