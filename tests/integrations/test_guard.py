"""torch's DataLoader around data sets, batches and loaders: it works, or the error names the way."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import brimful as bf
from tests.samples import tokens

RAGGED = tokens([1, 2], [3], [4], [5, 6, 7])
STREAMED = RAGGED.map(dict)


def lists(samples: list[dict[str, Any]]) -> list[list[int]]:
    return [sample["input_ids"].tolist() for sample in samples]


def test_indexed_data_are_a_map_style_data_set() -> None:
    data = bf.from_sequence([{"n": number, "x": [number, 2]} for number in range(5)])
    torch.manual_seed(0)
    batches = list(DataLoader(data, batch_size=2, shuffle=True))  # type: ignore[arg-type]
    assert sorted(torch.cat([batch["n"] for batch in batches]).tolist()) == [0, 1, 2, 3, 4]
    assert all(batch["x"][:, 0].equal(batch["n"]) for batch in batches)
    assert list(DataLoader(RAGGED, batch_size=3, collate_fn=lists)) == [[[1, 2], [3], [4]], [[5, 6, 7]]]  # type: ignore[arg-type]
    shuffled = tokens(*([number] for number in range(50))).shuffle(7)
    assert lists(shuffled.__getitems__([3, 40, 0])) == lists([shuffled[3], shuffled[40], shuffled[0]])
    with pytest.raises(IndexError, match=r"there is no sample 50 in a data set of 50"):
        shuffled.__getitems__([0, 50])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: DataLoader(RAGGED, batch_size=2),
            r"would stack column 'input_ids', which has 2 values and 1 values in two samples: give it a collate_fn that pads, or "
            r"have brimful pad, as DataLoader\(dataset.batch\(32\).loader\(\), batch_size=None\)$",
        ),
        (
            lambda: DataLoader(STREAMED),
            r"is not known: it is streamed \(by map\) \(a DataLoader takes its loader\(\)\)$",
        ),
        (
            lambda: DataLoader(RAGGED.batch(2)),
            r"^batches have no numbers: .*takes batches.loader\(\) with batch_size=None",
        ),
        (
            lambda: DataLoader(STREAMED.batch(2)),
            r"to_store\(path\) or cache\(\) makes it known \(a "
            r"DataLoader takes loader\(\), with batch_size=None\)\. Hugging Face's Trainer",
        ),
        (
            lambda: DataLoader(RAGGED.batch(2).loader()),
            r"would stack batches.* say DataLoader\(loader, batch_size=None\)",
        ),
        (lambda: DataLoader(STREAMED.batch(1).loader(steps_per_epoch=2), batch_size=4), r"would stack batches"),
    ],
)
def test_what_would_be_stacked_wrongly_is_an_error_with_the_way(make: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        list(make())


def test_a_loader_of_batches_is_taken_as_it_is_or_by_a_function_of_the_users() -> None:
    for loader in (
        DataLoader(RAGGED.batch(2).loader(), batch_size=None),
        DataLoader(RAGGED.batch(2).loader(), collate_fn=lambda one: one[0]),
    ):
        assert [batch["input_ids"].tolist() for batch in loader] == [[[1, 2], [3, 0]], [[4, 0, 0], [5, 6, 7]]]


class Flat(torch.utils.data.IterableDataset[Any]):
    """A data set of a user's own, which takes batches apart."""

    batches = RAGGED.batch(2)

    def __iter__(self) -> Any:
        for batch in self.batches:
            yield from batch["lengths"]


def test_batches_inside_of_a_users_own_data_set_are_its_own_affair() -> None:
    assert torch.cat(list(DataLoader(Flat(), batch_size=3))).tolist() == [2, 1, 1, 3]


@pytest.mark.parametrize("data", [RAGGED, STREAMED])
def test_a_loader_of_samples_resumes_where_it_was_left(data: bf.Dataset) -> None:
    loader = data.loader()
    whole = list(DataLoader(loader, batch_size=2, collate_fn=lists))
    assert whole == [[[1, 2], [3]], [[4], [5, 6, 7]]]
    assert loader.epoch == 1
    assert next(iter(DataLoader(loader, batch_size=2, collate_fn=lists))) == whole[0]
    again = data.loader()
    again.load_state_dict(loader.state_dict())
    assert list(DataLoader(again, batch_size=2, collate_fn=lists)) == whole[1:]
    assert again.epoch == 2


def test_a_loader_of_samples_knows_its_length_where_they_do() -> None:
    assert len(RAGGED.loader()) == 4
    with pytest.raises(TypeError, match="it is streamed"):
        len(STREAMED.loader())
