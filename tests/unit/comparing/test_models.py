"""What a file of users' own functions may hold."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from parity.comparing.models import MODEL, as_call, functions, of_places
from parity.core.errors import UsageError
from parity.engine import own

FILE = """
import torch
from torch import nn


def net():
    return nn.Linear(2, 1), torch.randn(3, 2)


def with_a_parameter(n):
    return None


def nothing():
    pass


def fails():
    raise ValueError("no data")


def _helper():
    return 3
"""


def test_functions_without_parameters_are_taken(tmp_path: Path) -> None:
    """All public ones, or the one that is named; each call has the same random numbers."""
    path = tmp_path / "models.py"
    path.write_text(FILE)
    found = functions(str(path))
    assert list(found) == ["models.py:net", "models.py:nothing", "models.py:fails"]
    (one, x, _), (_, y, _) = found["models.py:net"](), found["models.py:net"]()
    assert x is not y
    assert torch.equal(x[0], y[0])
    assert callable(one)
    assert list(functions(f"{path}:net")) == ["models.py:net"]
    for name, why in (("nothing", "returns nothing; return a model or a function"), ("fails", "raises ValueError: no data")):
        with pytest.raises(UsageError, match=why):
            found[f"models.py:{name}"]()


def test_inputs_may_come_as_torch_export_takes_them(tmp_path: Path) -> None:
    path = tmp_path / "models.py"
    path.write_text("import torch\n\n\ndef named():\n    return torch.add, (torch.ones(2), 3.0), {'alpha': 2}\n")
    fn, inputs, kwargs = functions(str(path))["models.py:named"]()
    assert fn(*inputs, **kwargs).tolist() == [7.0, 7.0]
    assert as_call((torch.add, 1, {"alpha": 2})) == (torch.add, (1, {"alpha": 2}), {})
    assert as_call((torch.nn.Identity, (1, 2))) == (torch.nn.Identity, ((1, 2),), {})
    net = torch.nn.Linear(2, 2)
    assert as_call((net, (1,))) == (net, (1,), {})


def test_a_tuple_that_is_one_input_stays_one() -> None:
    def of_a_pair(pair: tuple[int, int], scale: int = 1) -> int:
        return sum(pair) * scale

    assert as_call((of_a_pair, (1, 2))) == (of_a_pair, ((1, 2),), {})


def test_mistakes_are_one_sentence(tmp_path: Path) -> None:
    """About the file, and about the function."""
    path = tmp_path / "models.py"
    path.write_text(FILE)
    for place, why in (("five", "has no function 'five'; it has net, nothing, fails"), ("with_a_parameter", "has parameters")):
        with pytest.raises(UsageError, match=why):
            functions(f"{path}:{place}")
    path.write_text("import nowhere")
    with pytest.raises(UsageError, match=r"does not run \(ModuleNotFoundError"):
        functions(str(path))
    path.write_text("x = 3")
    with pytest.raises(UsageError, match="no public function without parameters"):
        functions(str(path))
    path.write_text("def three():\n    return 3\n\n\ndef wrong():\n    return [][0]\n")
    for returns, wanted in ((MODEL, "a model or a function, and its inputs after it"), ("make and the batches",) * 2):
        with pytest.raises(UsageError, match=f"models.py:three returns 3; return {wanted}$"):
            functions(str(path), returns)["models.py:three"]()
    with pytest.raises(UsageError, match=r"raises IndexError: list index out of range \(.*models.py:6, in wrong\)$"):
        functions(str(path))["models.py:wrong"]()
    (tmp_path / "models.txt").write_text("")
    for name, why in (("models.txt", "is no Python file; name one"), ("a" * 300 + ".py", "there is no file")):
        with pytest.raises(UsageError, match=why):
            functions(str(tmp_path / name))
    for place, why in (("models", "give a Python file"), ("none.py", "there is no file none.py")):
        with pytest.raises(UsageError, match=why):
            own.names([place])


def test_given_inputs_are_of_one_model(tmp_path: Path) -> None:
    """They take the place of those that a function returns."""
    path = tmp_path / "models.py"
    path.write_text(FILE)
    assert functions(f"{path}:net", given=["float32[5, 2]"])["models.py:net"]()[1][0].shape == (5, 2)
    several = r"--input gives the inputs of one model, and these are \d; name one: models.py:net"
    with pytest.raises(UsageError, match=several):
        functions(str(path), given=["x=3"])
    with pytest.raises(UsageError, match=several):
        of_places([f"{path}:net", f"{path}:fails"], ["x=3"])


def test_a_function_that_is_named_twice_is_there_once(tmp_path: Path) -> None:
    """As a pattern and by --model, alone and with its file; two files must have different names."""
    (tmp_path / "other").mkdir()
    files = [tmp_path / "m.py", tmp_path / "other" / "m.py"]
    for file in files:
        file.write_text("def net():\n    return None\n\ndef more():\n    return None\n")
    assert list(of_places([f"{files[0]}:net", str(files[0]), str(files[0])])) == ["m.py:net", "m.py:more"]
    both = f"two functions are called m.py:net, in {files[0]} and {files[1]}; give the files different names"
    with pytest.raises(UsageError, match=re.escape(both)):
        of_places([f"{file}:net" for file in files])


def test_a_training_names_the_command_that_takes_it(tmp_path: Path) -> None:
    """A function of lists whose one parameter has another name is a function like any other."""
    path = tmp_path / "models.py"
    path.write_text(
        "import torch\n\n\ndef training():\n    def make(device):\n        return None\n    return make, [torch.ones(2)]\n"
        "\n\ndef plain():\n    return (lambda many: many[0] + 1), [torch.ones(2)]\n"
    )
    found = functions(str(path))
    with pytest.raises(UsageError, match=r"models.py:training returns make and the batches, which parity train takes"):
        found["models.py:training"]()
    assert functions(str(path), "make and the batches")["models.py:training"]()[0].__name__ == "make"
    assert len(found["models.py:plain"]()[1]) == 1
