from __future__ import annotations

import json
import pickle
import re
import threading
from collections.abc import Callable, Iterator
from contextvars import copy_context
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tokenizers import pre_tokenizers as p

import brimful as bf
from brimful.core.run import Run
from brimful.core.threads import Workers
from brimful.encoding import engines
from brimful.encoding.encoder import Encoder
from brimful.encoding.encoder_kinds import GigatokenEncoder, TransformersEncoder
from brimful.encoding.encoders import encoder_for
from brimful.encoding.engines import EngineName
from brimful.encoding.word_cache import WordCache
from brimful.tables.ragged import Ragged
from tests import tokenizers as make
from tests.encoding.test_encoders import rows_of
from tests.samples import ids, shard
from tests.texts import texts
from tests.tokenizers import of_column

FAST: tuple[EngineName, ...] = ("gigatoken", "cache") if find_spec("gigatoken") else ("cache",)
ENGINES: tuple[EngineName, ...] = (*FAST, "tokenizer")
TEXTS = [*make.TEXTS, *texts(400, seed=9)]


@pytest.fixture(autouse=True)
def _unseen() -> Iterator[None]:
    """Each test audits as a new process would."""
    engines._SEEN.clear()
    yield
    engines._SEEN.clear()


@pytest.mark.parametrize("tokenizer", [make.bpe, make.wordpiece, make.gpt2, make.bert, make.llama, make.tiktoken_bytes])
@pytest.mark.parametrize(
    "settings", [{}, {"truncation": True, "max_length": 7}, {"add_special_tokens": False}], ids=str
)
def test_every_engine_gives_the_tokenizers_own_tokens(tokenizer: Callable[[], Any], settings: dict[str, Any]) -> None:
    rows = [{"text": text} for text in TEXTS]
    own = ids(bf.from_sequence(rows).tokenize(tokenizer(), engine="tokenizer", **settings))
    for workers in (0, 3):
        assert ids(bf.from_iterable(rows).tokenize(tokenizer(), max_workers=workers, **settings)) == own


@pytest.mark.parametrize(
    ("tokenizer", "found"),
    [
        (make.bpe, FAST[0]),
        (make.llama, FAST[0]),
        (make.bert, "cache"),
        (make.byt5, "tokenizer"),
        (make.tiktoken_bytes, "tokenizer"),  # of a pattern of its own
        (lambda: len, "tokenizer"),
        (lambda: make.trained("bpe", p.Punctuation()), "tokenizer"),
    ],
    ids=range(7),
)
def test_the_fastest_that_can_is_chosen_and_shown(tokenizer: Callable[[], Any], found: str) -> None:
    data = bf.from_sequence(["a b", "c"]).tokenize(tokenizer())
    assert repr(data).splitlines()[0] == f"Dataset(from_sequence > tokenize by {found})"
    if found != "tokenizer":
        with data.batch(2).iter() as it:
            next(it)
            assert it.stats.engines == {found: 2}
            assert f"engines={{'{found}': 2}}" in repr(it.stats)


def test_tiktokens_own_patterns_may_be_cut() -> None:
    from brimful.encoding.splittable import TIKTOKEN

    given = make.tiktoken_bytes()
    for pattern in TIKTOKEN.values():
        encoding = type(given)("test", pat_str=pattern, mergeable_ranks=given._mergeable_ranks, special_tokens={})
        encoder = encoder_for(encoding, {"max_length": 9})
        assert encoder.by_name == "cache"
        some = texts(2_000, seed=5)
        assert rows_of(make.of_column(encoder, make.column(some))) == [
            encoding.encode_ordinary(text)[:9] for text in some
        ]
        assert encoder_for(encoding, {"allowed_special": "all"}).by_name == "tokenizer"


def test_pairs_and_further_outputs_are_the_tokenizers() -> None:
    rows = bf.from_sequence([{"a": "x y", "b": "z"}])
    for options in ({"column": ("a", "b")}, {"column": "a", "extra_outputs": "token_type_ids"}):
        data = rows.tokenize(make.bert(), **options)
        assert repr(data).splitlines()[0] == "Dataset(from_sequence > tokenize)"
        assert len(ids(data)[0]) > 2
        with pytest.raises(
            ValueError, match=r"^engine='cache' makes tokens alone, of single texts; of pairs, and extra_outputs="
        ):
            rows.tokenize(make.bert(), engine="cache", **options)


@pytest.mark.parametrize(
    ("tokenizer", "engine", "message"),
    [
        (make.bpe, "fast", "engine must be one of auto, gigatoken, cache, tokenizer (got 'fast')"),
        (
            make.byt5,
            "cache",
            "engine='cache' cannot stand in for this tokenizer: it is called as it is; engine='auto' takes",
        ),
        (make.bert, "gigatoken", "engine='gigatoken' cannot stand in for this tokenizer: gigatoken does no WordPiece"),
        (
            lambda: make.trained("bpe", p.Punctuation()),
            "cache",
            "engine='cache' cannot stand in for this tokenizer: its pre-tokenizer Punctuation is not known to be indifferent",
        ),
    ],
    ids=range(4),
)
def test_an_engine_that_cannot_is_refused_at_once(tokenizer: Callable[[], Any], engine: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        bf.from_sequence(["a"]).tokenize(tokenizer(), engine=engine)


def test_gigatoken_that_is_not_there_is_said_and_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("brimful.encoding.compiled.installed", lambda: False)
    with pytest.raises(ValueError, match=r"gigatoken is not installed: pip install 'brimful\[fast\]'; engine='auto'"):
        bf.from_sequence(["a"]).tokenize(make.bpe(), engine="gigatoken")
    assert encoder_for(make.bpe()).by_name == "cache"


def test_gigatoken_that_refuses_is_said_and_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(serialized: str) -> Any:
        raise ValueError("no such merge\nat 17")

    monkeypatch.setattr("brimful.encoding.compiled.installed", lambda: True)
    monkeypatch.setattr("brimful.encoding.compiled.make", refuses)
    with pytest.raises(
        ValueError, match=r"cannot stand in for this tokenizer: gigatoken refuses it: no such merge; eng"
    ):
        bf.from_sequence(["a"]).tokenize(make.bpe(), engine="gigatoken")
    data = bf.from_sequence(["a b"] * 9).tokenize(make.bpe())
    with data.iter() as it:
        assert [sample["input_ids"].tolist() for sample in it] == [make.bpe().encode("a b").ids] * 9
        assert it.stats.engines == {"cache": 9}
    monkeypatch.setattr("brimful.encoding.splittable.why_not", lambda *_: "it may not")
    neither = encoder_for(make.wordpiece(), engine="auto")
    assert neither.by_name == "tokenizer"
    neither = encoder_for(make.bpe(), {"max_length": 5})
    assert rows_of(make.of_column(neither, pa.array(["some words of it", ""]))) == [
        make.bpe().encode("some words of it").ids[:5],
        [],
    ]
    assert neither.by_name == "tokenizer"


@pytest.mark.parametrize("saved", ENGINES)
def test_a_state_of_one_engine_resumes_under_another(saved: EngineName) -> None:
    def data(engine: EngineName) -> bf.Dataset:
        return bf.from_sequence(TEXTS).tokenize(make.bpe(), engine=engine).shuffle(50)

    with data(saved).iter() as it:
        for _ in range(33):
            next(it)
        state, rest = json.loads(json.dumps(it.state_dict())), [sample["input_ids"].tolist() for sample in it]
    for engine in ENGINES:
        with data(engine).iter(state) as it:
            assert [sample["input_ids"].tolist() for sample in it] == rest
        assert encoder_for(make.bpe(), engine=engine).fingerprint() == encoder_for(make.bpe()).fingerprint()


def test_a_store_does_not_know_the_engine(tmp_path: Path) -> None:
    for engine in ENGINES:
        data = bf.from_sequence(TEXTS).tokenize(make.bpe(), engine=engine).to_store(tmp_path / "store")
        assert ids(data) == ids(bf.from_sequence(TEXTS).tokenize(make.bpe(), engine="tokenizer"))


def test_what_an_engine_has_learnt_does_not_travel() -> None:
    data = bf.from_sequence(TEXTS).tokenize(make.bert())
    size, own = len(pickle.dumps(data)), ids(data)
    assert len(pickle.dumps(data)) == size
    assert ids(pickle.loads(pickle.dumps(data))) == own


def test_processes_have_engines_of_their_own() -> None:
    data = bf.from_sequence(["to be", "or not"]).tokenize(make.bert(), max_workers=1, executor_type="process")
    with data.iter() as it:
        assert [sample["input_ids"].tolist() for sample in it] == make.bert()(["to be", "or not"])["input_ids"]
        assert it.stats.engines == {"cache": 2}


# -- the audit -----------------------------------------------------------------------------------------------------------------


def test_other_tokens_than_the_tokenizers_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(self: WordCache, given: pa.Array) -> Ragged:
        found = right(self, given)
        values = found.values.copy()
        values[found.offsets[2] + 1] += 1
        return Ragged(values, found.offsets)

    right = WordCache.__call__
    monkeypatch.setattr(WordCache, "__call__", wrong)
    data = shard(tmp_path, [{"text": text} for text in ("a", "b", "the fox jumps", "d")])
    own = encoder_for(make.bpe())(["the fox jumps"]).values.tolist()
    ours = [own[0], own[1] + 1, *own[2:]]
    shown = [
        f"[{', '.join(map(str, row[1:9]))}{', ...' if len(row) > 9 else ''}] ({len(row)} in all)" for row in (ours, own)
    ]
    with pytest.raises(bf.StageError) as error:
        list(data.tokenize(make.bpe(), engine="cache"))
    assert str(error.value) == (
        "tokenize failed at shard a.jsonl, line 3: engine 'cache' gave other tokens than the tokenizer: "
        f"{shown[0]}, not {shown[1]}, from token 1 on; go on with engine='tokenizer', and please report it"
    )


def counting(given: list[str], worth: int = 0) -> list[int]:
    """How many texts of each block went through the tokenizer too."""
    asked: list[int] = []

    def own(some: list[str]) -> list[list[int]]:
        asked[-1] += len(some)
        return [[len(text)] for text in some]

    def encode(column: pa.Array) -> Ragged:
        lengths = np.array([len(text) for text in column.to_pylist()], np.int32)
        return Ragged(lengths, np.arange(len(lengths) + 1))

    engine = engines.Engine((engines.EngineCandidate("cache", lambda: encode),), own, "mine")
    for first in range(0, len(given), 400):
        asked.append(0)
        of_column(engine, pa.array(given[first : first + 400]))
    return asked


def test_the_first_thousand_texts_of_a_process_are_audited_and_then_one_in_4096() -> None:
    given = [f"text {number} {'x' * (number % 90)}" for number in range(40_000)]
    asked = counting(given)
    assert asked[:3] == [400, 400, 200]
    assert 2 <= sum(asked[3:]) <= 30
    again = counting(given)  # the process knows the tokenizer
    assert again[:1] != [400]
    assert counting(given) == again  # by what is in a text, so that it is the same ones


def test_the_audit_goes_on_beside_the_next_blocks_and_is_awaited_before_its_own_is_handed_out() -> None:
    began, both = threading.Event(), threading.Event()

    def own(some: list[str]) -> list[list[int]]:
        assert both.wait(30), "the next block was not begun before the audit of this one had ended"
        return [[len(text) + 1] for text in some]  # other tokens

    def encode(column: pa.Array) -> Ragged:
        (both if began.is_set() else began).set()
        lengths = np.array([len(text) for text in column.to_pylist()], np.int32)
        return Ragged(lengths, np.arange(len(lengths) + 1))

    engine = engines.Engine((engines.EngineCandidate("cache", lambda: encode),), own, "mine")
    (tokens, check), (_, after) = engine.begin(pa.array(["x"] * 600)), engine.begin(pa.array(["x"] * 600))
    assert tokens.values.tolist() == [1] * 600
    for awaited in (check, after):
        with pytest.raises(
            engines.EngineError, match=r"gave other tokens than the tokenizer: \[1\] \(1 in all\), not \[2\]"
        ):
            awaited()
    assert ("cache", "mine") not in engines._SEEN, "texts that differ are not known to be the same"


def test_what_another_run_has_begun_to_audit_is_audited_anew() -> None:
    go_on = threading.Event()

    def own(some: list[str]) -> list[list[int]]:
        assert go_on.wait(30)
        asked.append(len(some))
        return [[len(text)] for text in some]

    def encode(column: pa.Array) -> Ragged:
        lengths = np.array([len(text) for text in column.to_pylist()], np.int32)
        return Ragged(lengths, np.arange(len(lengths) + 1))

    def begun() -> list[Callable[[], None]]:
        """What is awaited of three blocks of an iterator."""
        with Run().entered():
            return [engine.begin(pa.array(["x"] * 600))[1] for _ in range(3)]

    asked: list[int] = []
    engine = engines.Engine((engines.EngineCandidate("cache", lambda: encode),), own, "mine")
    runs = [copy_context().run(begun) for _ in range(2)]
    assert not engines._SEEN, "nothing has been looked at"
    go_on.set()
    for check in (check for run in runs for check in run):
        check()
    assert sum(asked) == 2_000
    assert engines._SEEN[("cache", "mine")] == 2_000


@pytest.mark.parametrize("slow", [True, False])
def test_the_audit_goes_in_turn_with_the_engine_or_all_at_once_while_that_is_loaded(slow: bool) -> None:
    asked: list[int] = []
    begins = threading.Event()

    def own(some: list[str]) -> list[list[int]]:
        asked.append(len(some))
        begins.set()
        return [[1]] * len(some)

    def make() -> Callable[[pa.Array], Ragged]:
        assert begins.wait(30) or not slow, "the audit waits for the engine"
        return lambda column: Ragged(np.ones(len(column), np.int32), np.arange(len(column) + 1))

    engine = engines.Engine((engines.EngineCandidate("cache", make, slow),), own, "mine")
    assert rows_of(of_column(engine, pa.array(["x"] * 100))) == [[1]] * 100
    assert asked == ([100] if slow else [32, 32, 32, 4])
    of_column(engine, pa.array(["x"] * 100))
    assert asked[-4:] == [32, 32, 32, 4], "it is loaded"


def test_an_engine_that_fails_is_not_waited_for_and_does_not_count() -> None:
    def encode(column: pa.Array) -> Ragged:
        raise OSError("no memory")

    engine = engines.Engine((engines.EngineCandidate("cache", lambda: encode),), lambda some: [[1]] * len(some), "mine")
    with pytest.raises(OSError, match="no memory"):
        of_column(engine, pa.array(["x"]))
    assert not engines._SEEN


@pytest.mark.parametrize("tokenizer", [make.bpe, make.bert, make.byt5])
def test_a_tokenizer_is_copied_for_threads_that_use_it_at_once_not_for_each(tokenizer: Callable[[], Any]) -> None:
    encoder = encoder_for(tokenizer())
    for number in range(5):
        with Workers(1, "test") as worker:
            worker.submit(make.of_column, encoder, pa.array([f"text {number}"])).result()
    assert [len(spare) for spare in encoder._spare.values()] in ([1], [1, 1])


def test_long_texts_count_for_several() -> None:
    assert counting(["x" * 9_000] * 400)[0] == 112


def test_the_texts_that_are_audited_are_the_same_however_they_lie_in_blocks() -> None:
    given = ["", "a", *texts(20_000, seed=6)]
    found = [given[number] for number in engines._some(make.column(given))]
    blocks = [given[first : first + 7] for first in range(0, len(given), 7)]
    apart = [block[number] for block in blocks for number in engines._some(pa.array(block))]
    assert found == apart
    assert 2 <= len(found) <= 20


# -- what users bring ----------------------------------------------------------------------------------------------------------


def test_a_class_that_encodes_in_its_own_way_is_called() -> None:
    class Upper(make.PreTrainedTokenizerFast):  # type: ignore[misc]
        def __call__(self, given: Any, **kwargs: Any) -> Any:
            return super().__call__([text.upper() for text in given], **kwargs)

    upper = Upper(tokenizer_object=make.bpe())
    encoder = encoder_for(upper)
    assert (type(encoder), encoder.by_name) == (TransformersEncoder, "tokenizer")
    assert (
        rows_of(make.of_column(encoder, pa.array(["the fox"])))
        == upper(["the fox"])["input_ids"]
        != make.gpt2()(["the fox"])["input_ids"]
    )


def test_a_gigatoken_tokenizer_is_taken_at_its_word() -> None:
    gigatoken: Any = pytest.importorskip("gigatoken")
    own = gigatoken.Tokenizer.from_json(make.bpe().to_str())
    expected = [one.ids for one in make.bpe().encode_batch_fast(TEXTS, add_special_tokens=False)]
    for engine in ("auto", "gigatoken", "tokenizer"):
        data = bf.from_sequence(TEXTS).tokenize(own, engine=engine)  # type: ignore[arg-type]
        assert ids(data) == ids(pickle.loads(pickle.dumps(data))) == expected
    encoder: Encoder = encoder_for(own, {"max_length": 3})
    assert isinstance(encoder, GigatokenEncoder)
    assert (
        rows_of(make.of_column(encoder, make.column(TEXTS))) == rows_of(encoder(TEXTS)) == [row[:3] for row in expected]
    )
    assert encoder.fingerprint().startswith("gigatoken of 300 tokens, cut to 3 (")
    assert encoder_for(own).fingerprint() != encoder_for(make.bpe()).fingerprint()
    assert encoder.vocabulary == encoder_for(make.bpe()).vocabulary
    with pytest.raises(ValueError, match=r"^engine='cache' cannot stand in for this tokenizer: it is called as it is;"):
        encoder_for(own, engine="cache")
    with pytest.raises(ValueError, match=r"^gigatoken\.Tokenizer makes no row of a pair of texts;"):
        encoder_for(own, pairs=True)
    unnamed = encoder_for(gigatoken.Tokenizer(own.backend))
    with pytest.raises(
        TypeError, match=r"^a gigatoken\.Tokenizer that was not made of a tokenizer\.json cannot go to another"
    ):
        pickle.dumps(unnamed)
