"""The `parity` fixture in people's own tests."""

from __future__ import annotations

import pytest
import torch

from parity.faces import commandline
from parity.store import run_file

FAULTY = """
from parity.devices import Fault
from parity.devices.sim.faults import fall_back

FAULTS = [
    Fault("twice", ops=("tanh",), effect=lambda call: call.run() * 2 + 1),
    Fault("back", ops=("sin",), effect=fall_back),
]
"""
OPTIONS = ("--parity-device", "sim", "-p", "no:cacheprovider")


def test_the_fixture_compares_a_module_of_ones_own(pytester: pytest.Pytester) -> None:
    """`parity(module, *inputs)` passes on a healthy device and fails under a fault, naming the parameter."""
    pytester.makepyfile(
        """
        import torch

        def test_block(parity):
            torch.manual_seed(0)
            parity(torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh()), torch.randn(2, 4, requires_grad=True))
        """
    )
    pytester.runpytest_subprocess(*OPTIONS).assert_outcomes(passed=1)
    faults = pytester.makepyfile(faults=FAULTY)
    done = pytester.runpytest_subprocess(*OPTIONS, "--parity-faults", str(faults))
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(["*Sequential float32 on sim: wrong in out, *"])


def test_the_fixture_tells_a_device_that_is_not_there_in_one_sentence(pytester: pytest.Pytester) -> None:
    """And no second error with its traceback."""
    pytester.makepyfile("def test_block(parity):\n    pass\n")
    done = pytester.runpytest_subprocess("--parity-device", "mpz", "-p", "no:cacheprovider")
    done.assert_outcomes(errors=1)
    done.stdout.fnmatch_lines(["*no device 'mpz'; allowed: *"])
    assert "During handling" not in done.stdout.str()


@pytest.mark.skipif(torch.accelerator.is_available() and not hasattr(torch, "sim"), reason="auto finds a real device here")
def test_the_fixture_warns_where_auto_finds_no_hardware(pytester: pytest.Pytester) -> None:
    """A machine that lost its accelerator must not look as if it had tested one."""
    pytester.makepyfile("import torch\n\ndef test_exp(parity):\n    parity(torch.exp, torch.ones(2))\n")
    done = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    done.assert_outcomes(passed=1, warnings=1)
    done.stdout.fnmatch_lines(["*torch reports no accelerator, so everything is compared on sim:mps, a SIMULATED device*"])


IMPORTS = """import torch
        from parity.devices import Fault, resolve

        def refuse(call):
            raise NotImplementedError("Could not run 'aten::exp' with arguments from the 'SIM' backend")

        REFUSED = Fault("refuses", ("exp",), refuse, level="kernel")
"""


@pytest.mark.slow
def test_a_test_that_never_calls_the_fixture_fails(pytester: pytest.Pytester) -> None:
    """Nothing was compared; but who skips, fails or is refused otherwise hears of that alone."""
    pytester.makepyfile(
        """
        import pytest
        import torch
        from parity.core.errors import UsageError

        def test_nothing(parity):
            pass

        @pytest.mark.usefixtures("parity")
        def test_marked():
            pass

        def test_skips(parity):
            pytest.skip("not here")

        def test_fails(parity):
            assert 0, "of its own"

        def test_calls(parity):
            parity(torch.exp, torch.ones(2))

        def test_refused(parity):
            with pytest.raises(UsageError):
                parity(torch.mm, torch.ones(2))

        def test_swallowed(parity):
            try:
                parity(torch.exp, torch.ones(2), fail_on=("unsupported",), device=REFUSES)
            except Exception:
                pass

        def test_without():
            pass
        """.replace("REFUSES", "resolve('sim', (REFUSED,))").replace("import torch\n", IMPORTS, 1)
    )
    done = pytester.runpytest_subprocess(*OPTIONS, "-rfEs")
    done.assert_outcomes(failed=5, passed=2, skipped=1)
    told = "*parity: the test takes the `parity` fixture and never called it, so nothing was compared; call*"
    done.stdout.fnmatch_lines([told, told, "*of its own*"])
    # Lines, not words: where CI is set, pytest's summary repeats the whole reason.
    assert len([line for line in done.outlines if line.startswith("parity: the test takes")]) == 2


UNHEARD = """
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch


def void(parity):
    try:
        parity(lambda x: None, torch.ones(3))
    except Exception:
        pass


def wrong(parity):
    parity(torch.tanh, torch.ones(3))


def right(parity):
    parity(torch.exp, torch.ones(3))


def expected(parity):
    with pytest.raises(AssertionError):
        wrong(parity)


@pytest.fixture
def around(parity, request):
    before, after = request.param
    before(parity)
    yield
    after(parity)


def nothing(parity):
    pass


def skips(parity):
    pytest.skip("of its own")


def void_and_skips(parity):
    void(parity)
    skips(parity)


def in_thread(call):
    def run(parity):
        thread = threading.Thread(target=call, args=(parity,))
        thread.start()
        thread.join()
    return run


def in_pool(parity):
    with ThreadPoolExecutor(1) as pool:
        pool.submit(wrong, parity)
    right(parity)


def too_late(parity):
    def slow(x):
        time.sleep(1.0)
        return x.exp()
    threading.Thread(target=parity, args=(slow, torch.ones(3)), daemon=True).start()
    time.sleep(0.1)


@pytest.mark.parametrize("calls", [[void, expected], [void, skips], [void, right], [in_thread(wrong)], [in_pool]])
def test_red(parity, calls):
    for call in calls:
        call(parity)


@pytest.mark.parametrize("around", [(void, nothing), (void_and_skips, nothing)], indirect=True)
def test_red_before(around, parity):
    right(parity)


def test_red_at_once(parity):
    parity(lambda x: None, torch.ones(3))


def test_red_by_name(request):
    void(request.getfixturevalue("parity"))


@pytest.mark.parametrize("calls", [[expected, right], [in_thread(right)]])
def test_green(parity, calls):
    for call in calls:
        call(parity)


@pytest.mark.parametrize("around", [(right, right)], indirect=True)
def test_green_around(around):
    pass


@pytest.mark.parametrize("around", [(right, void), (right, too_late)], indirect=True)
def test_green_until_it_is_torn_down(around):
    pass
"""


@pytest.mark.slow
def test_a_call_that_went_wrong_unheard_fails_its_test(pytester: pytest.Pytester) -> None:
    """One that compared nothing, whatever follows it, or found something in another thread, or has not come back: in the test
    and in its fixtures. What a test expects of its own call, and what other threads find right, does not."""
    faults = pytester.makepyfile(faults=FAULTY)
    pytester.makepyfile(UNHEARD)
    done = pytester.runpytest_subprocess(*OPTIONS, "--parity-faults", str(faults))
    done.assert_outcomes(failed=7, passed=5, errors=4, warnings=1)
    assert "FAILED" not in "".join(line for line in done.outlines if "test_green" in line)
    said = done.stdout.str().partition("short test summary")[0]  # which repeats it, whole or cut, as the variable CI says
    assert said.count("and the test went on: it compared nothing (NothingCompared") == 7
    assert said.count("in another thread, where no test hears of it (ParityFailure: tanh float32 on sim") == 2
    assert said.count("was still running in another thread when the test ended") == 1


KNOWN = """
import torch

def test_tanh(parity):
    parity(torch.tanh, torch.ones(3))
    parity(torch.exp, torch.ones(3))

def test_new(parity):
    parity(torch.tanh, torch.ones(4))

def test_exp(parity):
    parity(torch.exp, torch.ones(3))
"""


@pytest.mark.slow
def test_known_findings_are_expected_failures(pytester: pytest.Pytester) -> None:
    """By the option and by the settings, in a worker too; what is in no entry fails, and strictly what is fixed does."""
    faults = pytester.makepyfile(faults=FAULTY)
    pytester.makepyfile(test_net=KNOWN)
    options = ("--parity-device=sim", f"--parity-faults={faults}", "-p", "no:cacheprovider")
    pytester.runpytest_subprocess(*options, "--parity-output=a.jsonl", "-k", "not new").assert_outcomes(failed=1, passed=1)
    assert commandline.main(["known", "add", "a.jsonl", "--reason", "reported"]) == 0
    entry = "*[[]test_tanh-*[]] test_net.py::test_tanh gives wrong values (reported)*"
    done = pytester.runpytest_subprocess(*options, "--parity-known=parity-known.toml", "--parity-output=b.jsonl", "-rx")
    done.assert_outcomes(xfailed=1, failed=1, passed=1)
    done.stdout.fnmatch_lines(["*known findings*", entry])
    run = run_file.read(pytester.path / "b.jsonl")
    assert {r.op: bool(r.known) for r in run.records if r.counts} == {
        "test_net.py::test_tanh": True,
        "test_net.py::test_new": False,
    }
    assert run.header.known.digest
    pytester.makepyprojecttoml('[tool.parity]\nknown = "parity-known.toml"\n')
    done = pytester.runpytest_subprocess(*options, "-k", "tanh", "-n", "1")
    done.assert_outcomes(xfailed=1)
    assert done.ret == 0
    done.stdout.fnmatch_lines(["*known findings*", entry])
    done = pytester.runpytest_subprocess("--parity-device=sim", "--parity-fail-on=known")
    done.assert_outcomes(passed=3)
    assert done.ret == 1
    done.stdout.fnmatch_lines(["*fixed [[]test_tanh-*"])
    done = pytester.runpytest_subprocess("--parity-device=sim", "--parity-known=none.toml", "-k", "exp")
    done.assert_outcomes(errors=1)
    done.stdout.fnmatch_lines(["*parity: there is no file of known findings none.toml*"])


def test_fail_on_holds_for_the_fixture(pytester: pytest.Pytester) -> None:
    """A fallback is a warning, and with --parity-fail-on fallback a failure; the call's own argument wins."""
    faults = pytester.makepyfile(faults=FAULTY)
    pytester.makepyfile(
        """
        import torch

        def test_sin(parity):
            parity(torch.sin, torch.ones(2))

        def test_tolerant(parity):
            parity(torch.sin, torch.ones(2), fail_on=())
        """
    )
    options = (*OPTIONS, "--parity-faults", str(faults))
    done = pytester.runpytest_subprocess(*options)
    done.assert_outcomes(passed=2, warnings=2)
    done.stdout.fnmatch_lines(["*ParityWarning: sin float32 on sim: ran on the CPU: aten::sin*"])
    done = pytester.runpytest_subprocess(*options, "--parity-fail-on", "fallback")
    done.assert_outcomes(failed=1, passed=1, warnings=1)
    done.stdout.fnmatch_lines(["*sin float32 on sim: fallback: ran on the CPU: aten::sin*"])


def test_the_command_to_go_on_with_names_faults_and_setup(pytester: pytest.Pytester) -> None:
    """What the setup did to the device is part of what was found."""
    faults, setup = pytester.makepyfile(faults=FAULTY), pytester.makepyfile(flags="FLAGS = 'set'")
    pytester.makepyfile("import torch\n\ndef test_tanh(parity):\n    parity(torch.tanh, torch.ones(2))\n")
    done = pytester.runpytest_subprocess(*OPTIONS, "--parity-faults", str(faults), "--parity-setup", str(setup))
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines([f"*next: parity run tanh --dtype float32 --device sim --setup {faults} --setup {setup}"])


def test_the_options_hold_under_xdist(pytester: pytest.Pytester) -> None:
    """Workers get them from the controller."""
    faults = pytester.makepyfile(faults=FAULTY)
    pytester.makepyfile("import torch\n\ndef test_sin(parity):\n    parity(torch.sin, torch.ones(2))\n")
    options = (*OPTIONS, "--parity-faults", str(faults), "-n", "1")
    pytester.runpytest_subprocess(*options, "--parity-fail-on", "unsupported,fallback").assert_outcomes(failed=1)


NETS = """
import torch
from torch import nn

def healthy():
    return nn.Sequential(nn.Linear(4, 3), nn.GELU())

def faulty():
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh())

class Odd(nn.Module):
    def forward(self, a, b):
        return a @ b
"""


def test_a_model_by_its_name_is_a_test_without_code(pytester: pytest.Pytester) -> None:
    """Of a file or of a module, under the model's name, also in a run file; -k chooses among them."""
    pytester.makepyfile(nets=NETS)
    faults = pytester.makepyfile(faults=FAULTY)
    models = [f"--parity-model={m}" for m in ("nets:healthy", "nets.py:faulty", "nets:Odd", "nets:nothing")]
    done = pytester.runpytest_subprocess(
        *OPTIONS, *models, f"--parity-faults={faults}", "--parity-output=run.jsonl", "-k", "not nothing"
    )
    done.assert_outcomes(passed=1, failed=2, deselected=1)
    done.stdout.fnmatch_lines(
        [
            "*Sequential float32 on sim *aten::tanh wrong, *",
            "*no inputs could be made for Odd, *give them: --parity-input 'float32*",
        ]
    )
    assert [i.op for i in run_file.read(pytester.path / "run.jsonl").items] == ["nets:healthy", "nets.py:faulty"]
