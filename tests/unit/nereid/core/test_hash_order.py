"""Names in the order in which a real tritonserver sent an ensemble's outputs."""

from __future__ import annotations

import pytest

from nereid.core.hash_order import in_hash_order


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("", ""),
        ("A", "A"),
        ("A B C", "B C A"),
        ("C B A", "B A C"),
        ("B A C", "C A B"),
        ("zeta o3 alpha o1 O4 o2", "o2 O4 o1 alpha o3 zeta"),
        ("INPUT0 INPUT1 INPUT2", "INPUT2 INPUT1 INPUT0"),
    ],
)
def test_as_the_real_server(names: str, expected: str) -> None:
    assert in_hash_order(names.split()) == tuple(expected.split())


# Of 32 outputs: the table has grown twice.
_MANY = """
t8 t6 out_11 out_4 out_17 t2 out_8 out_12 out_7 out_9 out_3 out_14 out_10 t1 out_2 t0
out_6 t3 out_1 out_0 out_16 a out_13 some_rather_long_name_of_an_output out_15 t7 out_5
out_18 out_19 é t5 t4
"""


def test_a_table_that_has_grown() -> None:
    names = [f"out_{number}" for number in range(20)]
    names += ["a", "some_rather_long_name_of_an_output", "é"]
    names += [f"t{number}" for number in range(9)]
    assert in_hash_order(names) == tuple(_MANY.split())


def test_very_many_names_keep_their_order() -> None:
    names = tuple(f"output{number:010}" for number in range(10274))
    assert in_hash_order(names) == names
    assert sorted(in_hash_order(names[:-1])) == sorted(names[:-1])
