"""Where several answers are right: the relation distinguishes them from wrong ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from parity import catalog
from parity.judging.relations import RELATIONS, Bound, Problem

ROW = catalog.row("max_pool2d")  # relations ask a row for its dimensions alone
X = torch.tensor([[3.0, 1.0, 2.0, 2.0], [0.5, 0.5, -1.0, 0.5]])


def problems(relation: str, args: tuple[Any, ...], results: dict[str, Tensor], **kwargs: Any) -> list[str]:
    said = RELATIONS[relation].problems(Bound(ROW, args, kwargs), results)
    return [p.what for p in said if isinstance(p, Problem)]


def pair(values: Tensor, indices: Tensor) -> dict[str, Tensor]:
    return {"out[0]": values, "out[1]": indices}


def named(tensors: tuple[Tensor, ...]) -> dict[str, Tensor]:
    return {f"out[{i}]": t for i, t in enumerate(tensors)}


def test_a_sort_in_any_order_of_ties_is_right() -> None:
    values, indices = X.sort(-1)
    assert problems("sort", (X, -1), pair(values, indices)) == []
    swapped = indices[:, :].clone()
    swapped[0, 1:3] = swapped[0, 1:3].flip(0)
    assert problems("sort", (X, -1), pair(values, swapped)) == []


def test_a_sort_that_lost_an_element_is_wrong() -> None:
    values, indices = X.sort(-1)
    twice = indices.clone()
    twice[1, 0] = twice[1, 1]
    assert problems("sort", (X, -1), pair(values, twice)) == ["the indices are no permutation"]
    other = values.clone()
    other[0, 0] = 2.0
    assert problems("sort", (X, -1), pair(other, indices)) == ["the input at the indices is not the sorted values"]


def test_argsort_must_give_the_order() -> None:
    assert problems("argsort", (X,), {"out": X.argsort(-1)}) == []
    assert problems("argsort", (X,), {"out": X.argsort(-1).flip(-1)}) != []
    assert problems("argsort", (X,), {"out": X.argsort(-1, descending=True)}, descending=True) == []


def test_topk_accepts_ties_and_refuses_what_is_not_extreme() -> None:
    values, indices = X.topk(2, -1)
    assert problems("topk", (X, 2), pair(values, indices)) == []
    tied = indices.clone()
    tied[0, 1] = 2 if int(indices[0, 1]) == 3 else 3
    assert problems("topk", (X, 2), pair(values, tied)) == []
    assert problems("topk", (X, 2), pair(X.gather(1, torch.tensor([[0, 1], [0, 1]])), torch.tensor([[0, 1], [0, 1]]))) != []
    assert problems("topk", (X, 2), pair(values, indices.flip(-1))) != []
    again = torch.tensor([[0, 2], [0, 0]])
    assert "an index is returned twice" in problems("topk", (X, 2), pair(X.gather(1, again), again))
    assert problems("topk", (X, 2), pair(values, indices + 9)) != []


def test_the_index_of_an_extreme_value_may_be_any_of_its_places() -> None:
    values, _ = X.max(1)
    assert problems("max_dim", (X, 1), pair(values, torch.tensor([0, 3]))) == []
    assert problems("max_dim", (X, 1), pair(values, torch.tensor([0, 2]))) != []
    assert problems("argmax", (X, 1), {"out": torch.tensor([0, 1])}) == []
    assert problems("argmax", (X, 1), {"out": torch.tensor([2, 1])}) != []
    assert problems("argmax", (X,), {"out": torch.tensor(0)}) == []
    assert problems("argmax", (X,), {"out": torch.tensor(99)}) == ["the index is out of range"]


def test_a_triangular_system_takes_no_batch_of_vectors() -> None:
    """[1, 4] next to [1, 4, 4] is one row for it, and a vector for solve."""
    a, b = torch.eye(4).expand(1, 4, 4) * 2.0, torch.ones(1, 4)
    x = torch.linalg.solve_triangular(a, b, upper=False, left=False)
    assert problems("solve_triangular", (a, b), {"out": x}, upper=False, left=False) == []
    assert problems("solve_triangular", (a, b), {"out": x * 1.5}, upper=False, left=False) != []


def test_median_and_kthvalue_are_judged_by_their_place() -> None:
    values, indices = X.median(1)
    assert problems("median", (X, 1), pair(values, indices)) == []
    assert problems("median", (X, 1), pair(values, torch.tensor([0, 0]))) != []
    values, indices = X.kthvalue(2, 1)
    assert problems("kthvalue", (X, 2, 1), pair(values, indices)) == []


def test_a_running_maximum_must_point_at_itself() -> None:
    values, indices = X.cummax(1)
    assert problems("cummax", (X, 1), pair(values, indices)) == []
    assert problems("cummax", (X, 1), pair(values, indices + 1)) != []
    ahead = indices.clone()
    ahead[1, 0] = 3
    assert problems("cummax", (X, 1), pair(values, ahead)) == ["an index points ahead of its place"]


def test_unordered_distinct_values_may_come_in_any_order() -> None:
    got = torch.unique(X)
    assert problems("unique", (X, False), {"out": got.flip(0)}) == []
    assert problems("unique", (X, False), {"out": got[1:]}) != []


MATRIX = torch.tensor([[4.0, 1.0, 0.5], [0.25, 3.0, -1.0], [1.0, 0.5, 5.0], [0.0, 2.0, 1.0]])
SQUARE = MATRIX[:3]
HERMITIAN = SQUARE + SQUARE.mH
SIGNS = torch.tensor([1.0, -1.0, -1.0])


def test_singular_vectors_may_have_other_signs() -> None:
    u, s, vh = torch.linalg.svd(MATRIX, full_matrices=False)
    assert problems("svd", (MATRIX,), named((u, s, vh))) == []
    assert problems("svd", (MATRIX,), named((u * SIGNS, s, SIGNS[:, None] * vh))) == []


@pytest.mark.parametrize("broken", [0, 2])
def test_singular_vectors_that_do_not_rebuild_the_matrix_are_wrong(broken: int) -> None:
    parts = list(torch.linalg.svd(MATRIX, full_matrices=False))
    parts[broken] = parts[broken] * SIGNS.view((1, 3) if broken == 0 else (3, 1))
    assert any("does not rebuild" in text for text in problems("svd", (MATRIX,), named(tuple(parts))))


def test_singular_vectors_must_be_orthonormal() -> None:
    u, s, vh = torch.linalg.svd(MATRIX, full_matrices=False)
    assert "columns are not orthonormal" in " ".join(problems("svd", (MATRIX,), named((2 * u, s, vh / 2))))


def test_eigenvectors_may_have_other_signs_and_must_belong_to_their_values() -> None:
    w, v = torch.linalg.eigh(HERMITIAN)
    assert problems("eigh", (HERMITIAN,), named((w, v * SIGNS))) == []
    assert problems("eigh", (HERMITIAN,), named((w, v.flip(-1)))) != []
    w, v = torch.linalg.eig(SQUARE)
    assert problems("eig", (SQUARE,), named((w, v))) == []
    assert problems("eig", (SQUARE,), named((w.flip(0), v))) != []


def test_qr_and_lu_must_rebuild_their_input() -> None:
    q, r = torch.linalg.qr(MATRIX)
    assert problems("qr", (MATRIX,), named((q * SIGNS, SIGNS[:, None] * r))) == []
    assert problems("qr", (MATRIX,), named((q, 1.001 * r))) != []
    assert problems("qr", (MATRIX,), named((q, r + 1))) != []
    assert problems("qr", (MATRIX,), {"out": r}) == [], "without Q there is nothing to rebuild it from"
    p, low, up = torch.linalg.lu(SQUARE)
    assert problems("lu", (SQUARE,), named((p, low, up))) == []
    assert problems("lu", (SQUARE,), named((p.flip(0), low, up))) != []
    factors, pivots = torch.linalg.lu_factor(SQUARE)
    assert problems("lu", (SQUARE,), named((factors, pivots))) == []
    assert problems("lu", (SQUARE,), named((factors * 1.01, pivots))) != []


def test_a_least_squares_solution_is_judged_by_its_residual() -> None:
    b = torch.tensor([[1.0], [2.0], [-1.0], [0.5]])
    x = torch.linalg.lstsq(MATRIX, b).solution
    assert problems("lstsq", (MATRIX, b), {"out": x}) == []
    assert "no least-squares solution" in problems("lstsq", (MATRIX, b), {"out": x * 1.01})[0]
    assert problems("lstsq", (MATRIX[:2], b[:2]), {"out": torch.linalg.lstsq(MATRIX[:2], b[:2]).solution}) == []


def test_values_without_their_vectors_are_judged_by_their_sensitivity() -> None:
    """No relation covers what comes alone."""
    vectors, values = RELATIONS["eigh"], torch.linalg.eigvalsh(SQUARE)
    assert vectors.covers(Bound(ROW, (SQUARE,), {}), {"out": values}) == frozenset()
    assert vectors.covers(Bound(ROW, (SQUARE,), {}), named((values, SQUARE))) == {"out[0]", "out[1]"}


def test_random_results_are_covered_whole() -> None:
    relation = RELATIONS["random"]
    assert relation.covers(Bound(catalog.row("rand_like"), (X,), {}), {"out": X}) == frozenset({"out"})


# ------------------------------------------------------------------------------------------------------------ solvers

G = torch.Generator().manual_seed(5)
A = torch.randn(2, 6, 6, generator=G) + 4 * torch.eye(6)
SPD = A @ A.mT
B = torch.randn(2, 6, 3, generator=G)


UNIT = torch.linalg.solve_triangular(A, B, upper=True, unitriangular=True)


def off(t: Tensor, relative: float = 1e-3) -> Tensor:
    """t with its largest element off."""
    made = t.clone(memory_format=torch.contiguous_format)
    made.view(-1)[made.abs().argmax()] *= 1 + relative
    return made


SOLVED: list[tuple[str, tuple[Any, ...], dict[str, Any], Tensor]] = [
    ("solve", (A, B), {}, torch.linalg.solve(A, B)),
    ("solve", (A, B.mT), {"left": False}, torch.linalg.solve(A, B.mT, left=False)),
    ("solve", (A, B[..., 0]), {}, torch.linalg.solve(A, B[..., 0])),
    ("inv", (A,), {}, torch.linalg.inv(A)),
    ("solve_triangular", (A, B), {"upper": True}, torch.linalg.solve_triangular(A, B, upper=True)),
    # Of ones on the diagonal, whatever lies there.
    ("solve_triangular", (A, B), {"upper": True, "unitriangular": True}, UNIT),
    ("cholesky", (SPD,), {}, torch.linalg.cholesky(SPD)),
    ("cholesky", (SPD,), {"upper": True}, torch.linalg.cholesky(SPD, upper=True)),
    ("cholesky_solve", (SPD, B), {}, torch.cholesky_solve(B, torch.linalg.cholesky(SPD))),
    ("cholesky_inverse", (SPD,), {}, torch.cholesky_inverse(torch.linalg.cholesky(SPD))),
    ("lu_solve", (A, B), {"adjoint": True}, torch.linalg.lu_solve(*torch.linalg.lu_factor(A), B, adjoint=True)),
    ("svdvals", (A,), {}, torch.linalg.svdvals(A)),
    ("eigvalsh", (SPD,), {}, torch.linalg.eigvalsh(SPD)),
    ("pinv", (A[..., :4],), {}, torch.linalg.pinv(A[..., :4])),
    # Of one triangle and its mirror, whatever lies in the other.
    ("pinv", (A,), {"hermitian": True}, torch.linalg.pinv(A, hermitian=True)),
    ("spectral_norm", (A, 2), {}, torch.linalg.matrix_norm(A, 2)),
]


@pytest.mark.parametrize("relation, args, kwargs, solution", SOLVED, ids=[f"{s[0]}-{k}" for k, s in enumerate(SOLVED)])
def test_a_solution_that_leaves_nothing_over_is_right_and_another_is_not(
    relation: str, args: tuple[Any, ...], kwargs: dict[str, Any], solution: Tensor
) -> None:
    assert problems(relation, args, {"out": solution}, **kwargs) == []
    assert problems(relation, args, {"out": off(solution)}, **kwargs) != []


def test_a_factor_with_something_above_its_diagonal_is_wrong() -> None:
    factor = torch.linalg.cholesky(SPD)
    factor[0, 0, 1] = 1e-3
    assert problems("cholesky", (SPD,), {"out": factor}) == ["the factor is not triangular"]


def test_a_spectrum_that_is_off_is_found_beside_right_vectors() -> None:
    w, v = torch.linalg.eigh(SPD)
    assert problems("eigh", (SPD,), {"out[0]": w, "out[1]": v}) == []
    said = problems("eigh", (SPD,), {"out[0]": off(w), "out[1]": v})
    assert [text.partition(":")[0] for text in said] == ["A V is not V diag(w)", "not the spectrum of the input"]


def test_the_mode_of_a_long_row_is_counted_in_little_memory() -> None:
    """All pairs of a hundred thousand numbers would take ten gigabytes."""
    x = torch.arange(100_000) % 777
    x[5] = x[9] = 3
    assert problems("mode", (x, -1), pair(torch.tensor(3), torch.tensor(5))) == []
    assert problems("mode", (x, -1), pair(torch.tensor(700), torch.tensor(700)))
    nan = torch.tensor([float("nan"), 1.0, float("nan"), 1.0, float("nan")])
    assert problems("mode", (nan, -1), pair(torch.tensor(1.0), torch.tensor(3))) == []


def test_of_values_that_occur_equally_often_any_may_be_the_mode() -> None:
    x = torch.tensor([[3.0, 1.0, 2.0], [5.0, 4.0, 4.0]])
    assert problems("mode", (x, -1), pair(torch.tensor([2.0, 4.0]), torch.tensor([2, 1]))) == []
    said = problems("mode", (x, -1), pair(torch.tensor([2.0, 5.0]), torch.tensor([2, 0])))
    assert said == ["another value occurs more often"]


# -------------------------------------------------------------------------------------------------- written more than once


def test_a_place_that_two_indices_name_holds_either_of_their_values() -> None:
    x, index = torch.tensor([[[[1.0, 2.0, 3.0]]]]), torch.tensor([[[[0, 2, 2]]]])
    call = Bound(catalog.row("max_unpool2d"), (x, index), {})
    unpool = RELATIONS["unpool"].problems
    for last in (2.0, 3.0):
        assert unpool(call, {"out": torch.tensor([[[[1.0, 0.0, last, 0.0]]]])}) == []
    for wrong in ([1.0, 0.0, 5.0, 0.0], [1.0, 0.0, 1.0, 0.0], [0.0, 0.0, 2.0, 0.0], [1.0, 0.5, 2.0, 0.0], [1.0, 0.0, 0.0, 0.0]):
        assert unpool(call, {"out": torch.tensor([[[wrong]]])}) != []


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
@pytest.mark.parametrize("uplo", ["L", "U"])
def test_the_spectrum_is_that_of_the_triangle_that_is_read(dtype: torch.dtype, uplo: str) -> None:
    a = torch.randn(5, 5, dtype=dtype, generator=torch.Generator().manual_seed(1))
    read, other = torch.linalg.eigvalsh(a, UPLO=uplo), torch.linalg.eigvalsh(a, UPLO="U" if uplo == "L" else "L")
    assert problems("eigvalsh", (a,), {"out": read}, UPLO=uplo) == []
    assert problems("eigvalsh", (a,), {"out": other}, UPLO=uplo) != []
    assert problems("eigvalsh", (a,), {"out": read * 1.001}, UPLO=uplo) != []


def test_the_diagonal_of_a_hermitian_matrix_is_read_as_real() -> None:
    a = torch.randn(5, 5, dtype=torch.complex64, generator=torch.Generator().manual_seed(1))
    assert problems("eigh", (a,), named(tuple(torch.linalg.eigh(a)))) == []


# ------------------------------------------------------------------------------------- factors of matrices of a low rank


def coarse(t: Tensor) -> Tensor:
    """float32 with ten bits of fraction, as TF32 takes operands."""
    return ((t.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


def factors(m: int, n: int, k: int) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(m + n + k)
    left, right = (torch.linalg.qr(torch.rand(size, k, generator=g)).Q.contiguous() for size in (m, n))
    return left, right


@pytest.mark.parametrize("word", ["lowrank", "pca_lowrank"])
@pytest.mark.parametrize("sides", [(3, 3), (3, 50), (50, 50)])
def test_a_random_start_rebuilds_a_matrix_of_that_rank(word: str, sides: tuple[int, int]) -> None:
    a, b = factors(*sides, 2)
    call = Bound(ROW, (a, b), {"q": 2, "center": False} if word == "pca_lowrank" else {"q": 2, "M": None})
    relation = RELATIONS[word].problems
    for seed in range(3):
        torch.manual_seed(seed)
        found = torch.svd_lowrank(a @ b.mT, q=2)
        assert relation(call, named(found)) == []
        left, s, right = found
        assert relation(call, named((coarse(left.contiguous()), s, right))) != []
        assert relation(call, named((left, s * 1.001, right))) != []
        assert relation(call, named((left, s, -right))) != []
    torch.manual_seed(1)
    assert relation(call, named(torch.svd_lowrank(coarse(a) @ coarse(b).mT, q=2))) != []


def test_what_is_subtracted_has_its_part_found_rightly() -> None:
    a, b = factors(6, 5, 2)
    m = torch.randn(6, 5, generator=torch.Generator().manual_seed(3))
    call = Bound(ROW, (a, b), {"q": 2, "M": m})
    found = torch.svd_lowrank(a @ b.mT, q=2, M=m)
    assert RELATIONS["lowrank"].problems(call, named(found)) == []
    assert RELATIONS["lowrank"].problems(call, named((found[0], found[1] * 1.01, found[2]))) != []


@pytest.mark.parametrize("found", [torch.zeros(4, 3), torch.zeros(2, 3)])
def test_a_pseudoinverse_of_a_wrong_shape_is_not_multiplied(found: Tensor) -> None:
    """Its shape is a finding of its own."""
    assert RELATIONS["pinv"].problems(Bound(ROW, (torch.eye(4, 2),), {}), {"out": found}) == []


@pytest.mark.parametrize("sides", [(3, 3), (3, 50), (50, 50)])
def test_the_pseudoinverse_of_a_product_is_that_of_the_exact_product(sides: tuple[int, int]) -> None:
    a, b = factors(*sides, 2)
    call = Bound(ROW, (a, b), {})
    assert RELATIONS["pinv_of_product"].problems(call, {"out": torch.linalg.pinv(a @ b.mT)}) == []
    assert RELATIONS["pinv_of_product"].problems(call, {"out": torch.linalg.pinv(coarse(a) @ coarse(b).mT)}) != []


# ------------------------------------------------------------------------------------------------------------------ pooling


@pytest.mark.parametrize("spatial", [1, 2, 3])
@pytest.mark.parametrize("adaptive", [False, True])
def test_an_index_names_a_place_of_its_own_window(spatial: int, adaptive: bool) -> None:
    """Of constant images every place holds the maximum, but only those of its window are an answer."""
    x = torch.ones(1, 1, *[7] * spatial)
    given = (4,) if adaptive else (2, 2, 1, 3)  # out: 4; kernel, stride, padding, dilation
    op = f"{'adaptive_' if adaptive else ''}max_pool{spatial}d"
    values, index = getattr(torch.nn.functional, op)(x, *given, return_indices=True)
    row = catalog.row(op)
    relation, call = RELATIONS[row.judged.relation].problems, Bound(row, (x, *given), {})
    assert relation(call, {"out[0]": values, "out[1]": index}) == []
    for place, where in ((x.numel() - 1, "window of its element"), (x.numel(), "plane"), (-1, "plane")):
        elsewhere = index.clone()
        elsewhere.view(-1)[0] = place
        said = [p.what for p in relation(call, {"out[0]": values, "out[1]": elsewhere}) if isinstance(p, Problem)]
        assert said == [f"an index is outside the {where}"]
    if not adaptive:  # between the taps of a dilated window
        index.view(-1)[-1] += 1
        assert relation(call, {"out[0]": values, "out[1]": index}) != []


def test_a_matrix_is_centred_before_its_factors_are_compared() -> None:
    """But where the call says that it is not."""
    a, b = factors(20, 30, 2)
    a, relation = a + 1.0, RELATIONS["pca_lowrank"].problems
    torch.manual_seed(0)
    found = named(torch.pca_lowrank(a @ b.mT, q=2))
    assert relation(Bound(ROW, (a, b), {"q": 2}), found) == []
    assert relation(Bound(ROW, (a, b), {"q": 2, "center": False}), found) != []
