"""What a collection refuses, and in which words."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from brimful.grouping import Collection, LengthThresholds, OneGroup, OptimalGroups, Partition

# -- samples, dims, groupers -----------------------------------------------------------------------------------------------

TO = "to takes a device (got {}); change types in the samples, or in a module by apply"


class Given:
    def __init__(self, groups: Any) -> None:
        self.groups = groups

    def partition(self, num_samples: int, sizes: Any) -> Any:
        return self.groups


A, B, C = {"pos": torch.ones(5, 3), "rot": torch.ones(5, 3, 3)}, {"pos": torch.ones(4, 3)}, torch.ones(2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Collection([{}], {}), "dims must name at least 1 key (got none)"),
        (lambda: Collection([], "seq"), "a collection needs at least 1 sample (got none)"),
        (
            lambda: Collection([A, B | {"rot": torch.ones(3, 3, 3)}], {"pos": "res 3", "rot": "res 3 3"}),
            "sample 1, key 'rot' of shape (3, 3, 3): 'res' is 3, but 4 in key 'pos'",
        ),
        (
            lambda: Collection([torch.ones(2, 2), torch.ones(2, 3)], "res res"),
            "sample 1 of shape (2, 3): 'res' is 3, but 2 on another axis",
        ),
        (
            lambda: Collection([torch.ones(2, 3), torch.ones(2, 4)], "res 3"),
            "sample 1 of shape (2, 4): an axis is 4, but 3 in 'res 3'",
        ),
        (
            lambda: Collection([torch.ones(2, 3), torch.ones(2, 4)], "res ..."),
            "sample 1 of shape (2, 4): an axis in '...' is 4, but 3 in sample 0",
        ),
        (
            lambda: Collection([torch.ones(2, 3), torch.ones(2, 4)], "res d", constant="d"),
            "sample 1 of shape (2, 4): 'd' is 4, but 3 in sample 0",
        ),
        (
            lambda: Collection([{"x": C, "y": torch.ones(2)}], {"x": "res", "y": "res+1"}),
            "sample 0, key 'y' of shape (2,): an axis is 2, but 'res+1' is 3",
        ),
        (
            lambda: Collection([{"x": C}], {"x": "res+1"}),
            "'res' stands in the rule 'res+1' alone: an axis of some key must be 'res' itself",
        ),
        (
            lambda: Collection([C, torch.ones(2, 2)], "res"),
            "sample 1 of shape (2, 2) has 2 axes, but 'res' names 1",
        ),
        (
            lambda: Collection([{"x": torch.ones(2, 2)}, {"x": C}], {"x": "res ..."}),
            "sample 1, key 'x' of shape (2,) has 1 axes, but 'res ...' names at least 1; sample 0 has 2 axes",
        ),
        (
            lambda: Collection([C], "a b ..."),
            "sample 0 of shape (2,) has 1 axes, but 'a b ...' names at least 2",
        ),
        (
            lambda: Collection([A, B], {"pos": "res 3", "rot": "res 3 3"}),
            "sample 1 has no key 'rot' (it has: pos)",
        ),
        (
            lambda: Collection([{"a": {"x": C}}, {"a": {"y": C}}], {"a.x": "res"}),
            "sample 1 has no key 'a.x' (it has: y)",
        ),
        (
            lambda: Collection([A], {"pos": "res 3"}),
            "sample 0 has a key 'rot', of which dims says nothing; name its axes, or leave it out",
        ),
        (lambda: Collection([C], "res", constant="d"), "constant names 'd', which stands in no dims (names: res)"),
        (
            lambda: Collection([C, C.long()], "res"),
            "sample 1 is a tensor of torch.int64, cpu, torch.strided, and that of sample 0 of torch.float32, cpu, torch.strided; "
            "make them of one kind, torch.strided",
        ),
        (
            lambda: Collection([{"x": C}], {"x": "res"}, pad_values={"y": 1}),
            "pad_values names 'y', but the keys are 'x'",
        ),
        (lambda: Collection([C.long()], "res", pad_values=0.5), "int64 does not hold the pad value 0.5 of key ''"),
        (
            lambda: Collection([C.half()], "res", pad_values=1e9),
            "float16 does not hold the pad value 1000000000.0 of key ''",
        ),
        (
            lambda: Collection([torch.ones(2, 1)], "res 1", pad_values=torch.tensor([1j])),
            "float32 does not hold the pad value tensor([0.+1.j]) of key ''",
        ),
        (
            lambda: Collection([torch.ones(2, 1).half()], "res 1", pad_values=torch.tensor([1e9])),
            "float16 does not hold the pad value tensor([1.0000e+09]) of key ''",
        ),
        (
            lambda: Collection([{"a": {"b": C}}], {"a": {"b": "res"}, "a.b": "sec"}),
            "dims names the key 'a.b' twice",
        ),
        (
            lambda: Collection([{"a": {"b": C}}], {"a.b": "res"}, pad_values={"a": {"b": 1}, "a.b": 2}),
            "pad_values names the key 'a.b' twice",
        ),
        (
            lambda: Collection([{"x": C, "y": torch.ones(2, 0)}], {"x": "res", "y": "res//d d"}, constant="d"),
            "'res//0' must divide by a number other than 0 (got 0)",
        ),
        (
            lambda: Collection([torch.ones(2, 2)], "res res*4611686018427387904*4"),
            "'(res*4611686018427387904)*4' comes to more than 4,611,686,018,427,387,904; no axis is so long",
        ),
        (lambda: Collection([C > 0], "res", pad_values=2), "bool does not hold the pad value 2 of key ''"),
        (
            lambda: Collection([torch.ones(2, 3, 3)], "res 3 3", pad_values=torch.eye(4)),
            "the pad value of key '' has shape (4, 4), but the fixed axes at the end are (3, 3)",
        ),
        (
            lambda: Collection([C], "res").partition,
            "this collection is not in groups yet; call group(by), of OneGroup() if they are to be one",
        ),
        (
            lambda: Collection([C], "res").group(LengthThresholds("seq", [1])),
            "there is no ragged dimension 'seq' to group by (names: res)",
        ),
        (lambda: LengthThresholds("seq", [4, 4]), "thresholds must ascend (got 4 before 4)"),
        (lambda: LengthThresholds("seq", [-1]), "thresholds must be at least 0 (got -1)"),
        (lambda: OptimalGroups([], 2), "OptimalGroups must name at least 1 ragged dimension (got none)"),
        (lambda: OptimalGroups("seq", 0), "num_groups must be at least 1 group (got 0)"),
        (lambda: Collection([C], "res").group(Partition([[0], []])), "group 1 is empty; leave it out"),
        (
            lambda: Collection([C], "res").group(Partition([[0, 1]])),
            "sample numbers must be between 0 and 0 (got 0 to 1)",
        ),
        (
            lambda: Collection([C, C], "res").group(Partition([])),
            "sample 0 is in 0 groups; a partition has each in exactly one",
        ),
        (
            lambda: Collection([C, C], "res").group(Partition([[0], [0]])),
            "sample 0 is in 2 groups; a partition has each in exactly one",
        ),
        (
            lambda: Collection([C, C], "res").group(Partition([[0]])),
            "sample 1 is in 0 groups; a partition has each in exactly one",
        ),
        (
            lambda: Collection(
                [{"x": torch.ones(n), "y": torch.ones(9 - n)} for n in (2, 5)], {"x": "res", "y": "9-res"}
            ).group(OneGroup()),
            "sample 0: '9-res' is 7, but its group is padded to 4; a length must fit, and a rule must not fall where its names "
            "rise",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_samples_that_do_not_agree_are_named(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        make()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Collection([C, [1, 2]], "res"), "sample 1 must be a tensor (got list)"),
        (lambda: Collection([{"x": 3}], {"x": "res"}), "sample 0, key 'x', must be a tensor (got int)"),
        (lambda: Collection([C], {"x": "res"}), "sample 0 must be a dict with the keys x (got Tensor)"),
        (lambda: Collection([C], 3), "dims are written as text, such as 'res 3' (got 3)"),
        (
            lambda: Collection([C], "res", pad_values="0"),
            "the pad value of key '' must be a number or a tensor (got '0')",
        ),
        (lambda: Collection([C], ["res"]), "dims are written as text, such as 'res 3' (got ['res'])"),
        *(
            (
                lambda by=by: Collection([C], "res").group(by),  # type: ignore[misc]
                f"group takes a grouper, such as OneGroup() or OptimalGroups('seq', 4) (got {by!r})",
            )
            for by in ("res", 4, None, OneGroup)
        ),
        (
            lambda: Collection(iter([C]), "res"),  # type: ignore[arg-type]
            "samples must be a list of tensors, or of dicts of them (got list_iterator)",
        ),
        *(
            (
                lambda groups=groups: Collection([C], "res").group(Given(groups)),  # type: ignore[misc]
                f"a partition is sample numbers group by group, such as [[0, 2], [1]] (got {groups!r})",
            )
            for groups in (None, 3, {0: [0]})
        ),
        *(
            (
                lambda group=group: Collection([C, C], "res").group(Given([group])),  # type: ignore[misc]
                f"a group of the partition must be integers, the numbers of its samples (got {group!r})",
            )
            for group in ([False, True], [0.0, 1.0], "01", [0, 2**70], [[0, 1]])
        ),
        (lambda: Collection([C], "res").to(torch.float16), TO.format("torch.float16")),  # type: ignore[arg-type]
        (lambda: Collection([C], "res").to(None), TO.format("None")),  # type: ignore[arg-type]
        (lambda: LengthThresholds("s", 4), "thresholds takes several lengths, such as [4] (got 4)"),  # type: ignore[arg-type]
        (
            lambda: LengthThresholds([4], "s"),  # type: ignore[arg-type]
            "LengthThresholds takes the name of a ragged dimension first (got [4])",
        ),
        (
            lambda: Partition([0, 1, 2]),  # type: ignore[list-item]
            "Partition takes sample numbers group by group, such as [[0, 2], [1]] (got 0)",
        ),
        (
            lambda: Partition(4),  # type: ignore[arg-type]
            "Partition takes sample numbers group by group, such as [[0, 2], [1]] (got 4)",
        ),
        (lambda: Partition([[0.5]]), "a sample number must be an integer (got 0.5)"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_no_collection_is_named(make: Callable[[], object], message: str) -> None:
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        make()


# -- apply, masks ----------------------------------------------------------------------------------------------------------

GROUPED = Collection([{"x": torch.ones(n, 2)} for n in (1, 4)], {"x": "seq 2"}).group(Partition([[0], [1]]))
X = GROUPED["x"]
FALLING = Collection(
    [{"a": torch.ones(1), "b": torch.ones(5)}, {"a": torch.ones(5), "b": torch.ones(5)}], {"a": "a", "b": "b"}
).group(OneGroup())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Collection([torch.ones(1)], "seq").apply(len, outputs=""),
            "this collection is not in groups yet; call group(by), of OneGroup() if they are to be one",
        ),
        (
            lambda: X.apply(nn.Identity(), outputs="sec 2"),
            "unknown name 'sec' in 'sec 2' (names: seq); a fixed axis is a number, or '...'",
        ),
        (
            lambda: X.apply(nn.Identity(), outputs="seq 3"),
            "the output has shape (1, 1, 2) in group 0, but 'seq 3' makes it (1, 1, 3): 1 samples, seq padded to 1",
        ),
        (
            lambda: X.apply(nn.Identity(), outputs="..."),
            "the output has shape (1, 4, 2) in group 1, but '...' makes it (1, 1, 2): 1 samples",
        ),
        (
            lambda: X.apply(nn.Identity(), outputs="seq"),
            "the output has shape (1, 1, 2), but 'seq' names 1 axes after that of the samples",
        ),
        (
            lambda: X.apply(nn.Identity(), outputs="seq-2 2"),
            "sample 0 is too short: 'seq-2' is -1 (seq=1); leave it out, or pad it",
        ),
        (
            lambda: X.apply(lambda x: x[:, :1], outputs="seq 2"),
            "the output has shape (1, 1, 2) in group 1, but 'seq 2' makes it (1, 4, 2): 1 samples, seq padded to 4",
        ),
        (lambda: X.apply(lambda x: {"y": x}, outputs={"z": "seq 2"}), "the output has no key 'z' (got y)"),
        (lambda: X.apply(lambda x: (x,), outputs=("seq 2", None)), "outputs names 2 results, but the module gives 1"),
        (lambda: X.apply(lambda x: x, outputs=("seq 2",)), "outputs names 1 results, but the module gives Tensor"),
        (
            lambda: GROUPED.apply(lambda x: x, masks={"x": "seq"}, outputs=""),
            "inputs and masks both name 'x'",
        ),
        (lambda: X.masks("2"), "the mask '2' must name at least 1 ragged dimension (names: seq)"),
        (
            lambda: X.masks("seq ..."),
            "the mask 'seq ...' must say how many axes it has: write their sizes in place of '...'",
        ),
        (
            lambda: FALLING.masks("b-a"),
            "sample 0: 'b-a' is 4, but its group is padded to 0; a length must fit, and a rule must not fall where its names "
            "rise",
        ),
        (
            lambda: FALLING.masks("9-a"),
            "sample 0: '9-a' is 8, but its group is padded to 4; a length must fit, and a rule must not fall where its names "
            "rise",
        ),
        (
            lambda: FALLING.regroup(OneGroup(), pad_to_multiple_of=8).masks("9-a"),
            "sample 0: '9-a' is 8, but its group is padded to 1; a length must fit, and a rule must not fall where its names "
            "rise",
        ),
        (
            lambda: Collection([torch.ones(0)], "s").group(OneGroup()).masks("s*2-3*s"),
            "sample 0: '(s*2)-(3*s)' is 0, but its group is padded to -1; a length must fit, and a rule must not fall where its "
            "names rise",
        ),
        (
            lambda: FALLING.apply(lambda a, b: torch.cat((a, b), 1), outputs="a+b"),
            "outputs: 'a+b' puts axes together (a, b), so that values would lie behind the padding of others; give the parts "
            "as several results, and join them after ungroup()",
        ),
        (
            lambda: X.apply(nn.Identity(), outputs="2 seq*seq"),
            "outputs: 'seq*seq' puts axes together (seq), so that values would lie behind the padding of others; give the parts "
            "as several results, and join them after ungroup()",
        ),
        (
            lambda: X.apply(lambda x: x.to(torch.float32 if x.shape[1] == 1 else torch.float64), outputs="seq 2"),
            "the output is a tensor of torch.float64, cpu, torch.strided in group 1, and of torch.float32, cpu, torch.strided in "
            "group 0; make them of one kind, torch.strided",
        ),
        (
            lambda: GROUPED.apply(lambda x: {"y": x.to_sparse()}, outputs={"y": "seq 2"}),
            "the output, key 'y', is a tensor of torch.float32, cpu, torch.sparse_coo in group 0, and of torch.float32, cpu, "
            "torch.sparse_coo in group 0; make them of one kind, torch.strided",
        ),
        (
            lambda: X.apply(nn.Identity(), outputs="seq*4611686018427387904*4 2"),
            "'(seq*4611686018427387904)*4' comes to more than 4,611,686,018,427,387,904; no axis is so long",
        ),
        (
            lambda: X.apply(nn.Identity(), outputs="seq//0 2"),
            "'seq//0' must divide by a number other than 0 (got 0)",
        ),
        (
            lambda: X.apply(nn.Identity(), outputs="2//(1-1) seq"),
            "'2//0' must divide by a number other than 0 (got 0)",
        ),
        (
            lambda: X.apply(nn.Identity(), outputs="9//seq 2"),
            "'9//seq' must divide by a number other than 0 (got seq)",
        ),
        (
            lambda: GROUPED.apply(lambda x: x, outputs={"a": {"b": "seq"}, "a.b": "2"}),
            "dims names the key 'a.b' twice",
        ),
        (lambda: X.apply(len, inputs=[], outputs=""), "inputs and masks name nothing; leave inputs out for all keys"),
        (lambda: X.masks("atm"), "unknown name 'atm' in 'atm' (names: seq); a fixed axis is a number, or '...'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_results_that_do_not_fit_are_named(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        make()


def test_other_mistakes_of_apply_are_named() -> None:
    with pytest.raises(KeyError, match=r"there is no key 'y' \(keys: x\)"):
        GROUPED.apply(nn.Identity(), inputs="y", outputs="seq 2")
    with pytest.raises(TypeError, match=r"^inputs takes text, several, or a dict of text by parameter \(got 3\)$"):
        GROUPED.apply(nn.Identity(), inputs=[3], outputs="seq 2")  # type: ignore[list-item]
    with pytest.raises(TypeError, match=r"^inputs takes text, several, or a dict of text by parameter \(got 3\)$"):
        GROUPED.apply(nn.Identity(), inputs=3, outputs="seq 2")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^dims are written as text, such as 'res 3' \(got \['seq'\]\)$"):
        X.masks(["seq"])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^the output must be a tensor \(got dict with the keys y\)$"):
        X.apply(lambda x: {"y": x}, outputs="seq 2")
    with pytest.raises(TypeError, match=r"^output 1 must be a tensor \(got int\)$"):
        X.apply(lambda x: (x, 3), outputs=("seq 2", ""))
