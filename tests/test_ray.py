"""On a real Ray of two processors: stores to the byte, workers that are killed, inference in order, and training that goes on."""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

import brimful as bf
from brimful.core.stage import running
from brimful.ray.spread import spread
from brimful.store.index import verify_store
from tests.store.stores import small

pytestmark = [
    pytest.mark.ray,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed: the extra ray"),
    pytest.mark.filterwarnings("ignore"),  # Ray's own
    pytest.mark.timeout(280),
]
ROWS = [50, 0, 700, 300, 1, 600, 500]
EXAMPLE = Path(__file__).parents[1] / "examples" / "ray_train.py"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    import ray

    os.environ["RAY_worker_niceness"] = "0"  # it is 15: beside other tests it would wait for these  # noqa: SIM112
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    yield ray
    ray.shutdown()


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of very different sizes, one of them without rows, one compressed, one with a line that is no JSON."""
    folder, random = tmp_path_factory.mktemp("corpus"), np.random.default_rng(0)
    for shard, rows in enumerate(ROWS):
        texts = [" ".join(f"w{word}" for word in random.integers(0, 50, random.integers(0, 30))) for _ in range(rows)]
        lines = [json.dumps({"id": number, "text": text}) for number, text in enumerate(texts)]
        if shard == 3:
            lines.insert(100, "{bad")
        opened = gzip.open if shard == 2 else open
        with opened(folder / f"{shard}.jsonl{'.gz' if shard == 2 else ''}", "wt") as file:
            file.write("".join(f"{line}\n" for line in lines))
    return folder


def files(corpus: Path, **options: Any) -> bf.Dataset:
    options = {"n_active_shards": 3, "on_error": "skip"} | options
    return bf.from_files(str(corpus / "*.jsonl*"), **options)


def letters(texts: list[str]) -> list[list[int]]:
    return [[len(word) for word in text.split()] for text in texts]


def many_rows(data: bf.Dataset) -> bf.Dataset:
    """What makes none, one and several rows of one, in other columns and types, also where a block of them is cut."""
    rows = data.filter(lambda row: row["id"] % 3 > 0).tokenize(letters, remove_columns=("text",))
    several = rows.flat_map(lambda row: [row | {"twice": f"{row['id']}"}] * (row["id"] % 4))
    return several.map(lambda row: row | {"none": None if row["id"] % 5 else 0.5}).chunk(4, drop_remainder=False)


CHAINS: dict[str, Callable[[Path], bf.Dataset]] = {
    "many rows": lambda corpus: many_rows(files(corpus)),
    "a shard after another": lambda corpus: files(corpus, n_active_shards=1, shuffle_shards=True).tokenize(letters),
    "with what needs their order": lambda corpus: files(corpus).tokenize(letters).concat_chunk(16),
    "random by the row": lambda corpus: (
        files(corpus).select("text").map(lambda row, rng: row | {"x": float(rng.random())}, seed=1)
    ),
    "parquet": lambda corpus: bf.from_files(str(parquet(corpus))).map(lambda row: {"n": row["n"] + 1}),
}


def parquet(corpus: Path) -> Path:
    folder = corpus / "parquet"
    folder.mkdir(exist_ok=True)
    for shard, rows in enumerate((500, 20)):
        pa.parquet.write_table(pa.table({"n": range(rows)}), folder / f"{shard}.parquet", row_group_size=64)
    return folder / "*.parquet"


def checksums(store: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(store.iterdir())}


def written(data: bf.Dataset, path: Path, executor: Any) -> dict[str, str]:
    with small(10_000, 20_000):
        data.to_store(path, version="1", executor=executor)
    return checksums(path)


# -- stores --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CHAINS)
def test_the_store_is_that_of_one_process(cluster: Any, corpus: Path, tmp_path: Path, name: str) -> None:
    chain = CHAINS[name](corpus)
    expected = written(chain, tmp_path / "local", "local")
    assert written(chain, tmp_path / "ray", "ray") == expected
    assert verify_store(tmp_path / "ray") == []
    assert cluster.is_initialized()  # which was not ours


def test_what_is_skipped_is_said_once_and_here(
    cluster: Any, corpus: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    said = []
    for executor in ("local", "ray"):
        caplog.clear()
        written(files(corpus).map(lambda row: row), tmp_path / executor, executor)
        said.append([record.getMessage() for record in caplog.records if record.name == "brimful"])
    assert said[0] == said[1]
    assert said[0][0].startswith("skipped: shard 3.jsonl, line 101: invalid JSON")


@contextmanager
def killing(marks: Path, times: int) -> Iterator[list[int]]:
    """Kills workers, which say that they are there by a file of their number."""
    killed: list[int] = []
    ended = threading.Event()

    def kill() -> None:
        seen = {str(os.getpid())}
        while len(killed) < times and not ended.wait(0.01):
            for mark in set(os.listdir(marks)) - seen:
                seen.add(mark)
                if len(killed) < times:
                    os.kill(int(mark), signal.SIGKILL)
                    killed.append(int(mark))

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield killed
    finally:
        ended.set()
        thread.join()


def marked(marks: Path, at: Callable[[Any], bool]) -> Callable[[Any], Any]:
    """A function that is slow, and says who runs it, at some rows."""
    where = str(marks)

    def told(row: Any) -> Any:
        if at(row):
            open(f"{where}/{os.getpid()}", "w").close()
            time.sleep(0.1)
        return row

    return told


def test_a_worker_that_is_killed_costs_no_row(
    cluster: Any, corpus: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    chain = files(corpus).map(marked(marks, lambda row: row["id"] == 40)).tokenize(letters)
    expected = written(chain, tmp_path / "local", "local")
    with killing(marks, 2) as killed:
        assert written(chain, tmp_path / "ray", "ray") == expected
    assert len(killed) == 2
    assert "a worker of Ray has died (WorkerCrashedError: " in caplog.text
    assert re.search(r"another one goes on at shard \d.jsonl(.gz)?, line 1$", caplog.text, re.MULTILINE)


def test_what_was_interrupted_goes_on_by_the_executor_that_began_it(cluster: Any, corpus: Path, tmp_path: Path) -> None:
    stop = tmp_path / "stop"
    where = str(stop)

    last = json.loads((corpus / "6.jsonl").read_text().splitlines()[-1])

    def stopping(row: Any) -> Any:
        if row == last and os.path.exists(where):
            raise KeyError("stop")
        return row

    chain = files(corpus, n_active_shards=1).map(stopping).tokenize(letters)
    expected = written(chain, tmp_path / "local", "local")
    stop.touch()
    for executor, other in (("ray", "local"), ("local", "ray")):
        path = tmp_path / f"by {executor}"
        with pytest.raises(bf.StageError, match=r"map\(stopping\) failed at shard 6.jsonl, line 500: KeyError"):
            written(chain, path, executor)
        assert len(list(path.glob("*.arrow"))) > 1
        words = f"was begun with executor='{executor}', but executor='{other}' counts places in another way. Go on"
        with pytest.raises(bf.StateError, match=words):
            written(chain, path, other)
    stop.unlink()
    for executor in ("ray", "local"):
        assert written(chain, tmp_path / f"by {executor}", executor) == expected


def test_errors_are_those_of_one_process(cluster: Any, corpus: Path, tmp_path: Path) -> None:
    def wrong(row: Any) -> Any:
        return row if row["id"] != 650 else 1 / 0

    said = []
    for executor in ("local", "ray"):
        with pytest.raises(bf.StageError) as raised:
            written(files(corpus).map(wrong), tmp_path / executor, executor)
        said.append(str(raised.value))
        assert isinstance(raised.value.__cause__, ZeroDivisionError)
    assert said == ["map(wrong) failed at shard 2.jsonl.gz, line 651: ZeroDivisionError: division by zero"] * 2
    with pytest.raises(bf.DataError, match=r"shard 3\.jsonl, line 101: invalid JSON: Expecting property name"):
        written(files(corpus, on_error="raise").map(lambda row: row), tmp_path / "data", "ray")


def test_workers_that_die_over_one_shard_are_an_error(
    cluster: Any, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = os.getpid()

    def deadly(row: Any) -> Any:
        if os.getpid() != here:
            os.kill(os.getpid(), signal.SIGKILL)
        return row

    monkeypatch.setattr("brimful.ray.cluster.RETRIES", 1)
    words = r"2 workers in a row have died over shard 0.jsonl, line 1 on \(WorkerCrashedError: .*\); if they were out of memory"
    with pytest.raises(bf.StageError, match=words):
        written(files(corpus).map(deadly), tmp_path / "store", "ray")


def test_what_is_closed_leaves_no_task_at_work(cluster: Any, corpus: Path, tmp_path: Path) -> None:
    beat, here = str(tmp_path / "beat"), os.getpid()

    def endless(row: Any) -> Any:
        while row["id"] > 10 and os.getpid() != here:
            with open(beat, "w") as file:
                file.write(str(time.time()))
            time.sleep(0.02)
        return row

    stage = spread(files(corpus, n_active_shards=1).filter(lambda row: bool(endless(row))).stage, None)
    until = time.monotonic() + 60

    def close_soon() -> None:
        while not os.path.exists(beat) and time.monotonic() < until:
            time.sleep(0.02)
        os.kill(here, signal.SIGINT)

    threading.Thread(target=close_soon).start()
    with pytest.raises(KeyboardInterrupt), running(stage, stage.start(0)) as items:
        for _ in items:
            pass
    while time.time() - os.stat(beat).st_mtime < 1:
        assert time.monotonic() < until, "a task goes on"
        time.sleep(0.1)


def test_the_end_of_a_shard_ends_no_worker(cluster: Any, corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To begin another one takes seconds, and the task that it is given next would die with it."""
    ended: list[Any] = []
    cancel = cluster.cancel
    monkeypatch.setattr(cluster, "cancel", lambda task, **how: (ended.append(task), cancel(task, **how)))
    stage = spread(bf.from_files(str(corpus / "5.jsonl")).map(dict).stage, None)
    with running(stage, stage.start(0)) as items:
        assert sum(block.num_rows for block, _ in items) == ROWS[5]
    assert not ended


def test_the_command_connects_to_the_cluster_that_it_is_told(cluster: Any, corpus: Path, tmp_path: Path) -> None:
    address = cluster.get_runtime_context().gcs_address
    data = Path(os.environ.get("BRIMFUL_TEST_DATA", Path(__file__).parents[2] / "shared" / "data"))
    tokenizer = data / "tokenizers" / "gpt2.json"
    if not tokenizer.exists():
        pytest.skip(f"{tokenizer} is not there")
    for executor, more in (("local", []), ("ray", ["--ray-address", address])):
        command = [
            sys.executable,
            "-m",
            "brimful",
            "tokenize",
            str(corpus / "[256].jsonl*"),
            "--tokenizer",
            str(tokenizer),
        ]
        command += ["--output", str(tmp_path / executor), "--executor", executor, *more]
        subprocess.run(command, check=True, timeout=120, capture_output=True)
    assert checksums(tmp_path / "ray") == checksums(tmp_path / "local")
    assert cluster.is_initialized()


# -- what is refused -------------------------------------------------------------------------------------------------------


def test_what_cannot_be_spread_is_refused_with_the_stage_named(corpus: Path, tmp_path: Path) -> None:
    def write(data: bf.Dataset, **options: Any) -> None:
        data.to_store(tmp_path / "store", **({"executor": "ray", "version": "1"} | options))

    data = files(corpus)
    for chain, words in (
        (
            data.shuffle(10).tokenize(letters),
            "has nothing to spread: shuffle, the first stage after from_files, goes by more",
        ),
        (data.map_blocks(lambda block: block), "has nothing to spread: map_blocks, the first stage after from_files"),
        (data, "has nothing to spread: from_files is all there is; put map, filter"),
        (
            bf.from_sequence(["a"]).tokenize(letters),
            "spreads the shards of from_files, and from_sequence holds no shards",
        ),
        (
            bf.interleave_datasets([data, data]),
            "interleave_datasets joins several data sets: write a store of each of them",
        ),
    ):
        with pytest.raises(ValueError, match=words):
            write(chain)
    chain = data.tokenize(letters)
    with pytest.raises(ValueError, match=r"ray_address='ray://a:1' is that of a Ray client server, through which"):
        write(chain, ray_address="ray://a:1")
    with pytest.raises(TypeError, match="ray_address must be a string"):
        write(chain, ray_address=1)
    with pytest.raises(ValueError, match="ray_address='auto' is for executor='ray'"):
        write(chain, executor="local", ray_address="auto")
    with pytest.raises(ValueError, match="executor must be one of local, ray"):
        write(chain, executor="dask")


def test_what_is_left_to_this_process_is_said(corpus: Path, caplog: pytest.LogCaptureFixture) -> None:
    spread(files(corpus).tokenize(letters).concat_chunk(4).stage, None)
    assert (
        "executor='ray': concat_chunk goes by more than single rows, so it and what follows it run in this"
        in caplog.text
    )


def test_without_ray_the_extra_is_named(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ModuleNotFoundError, match=r"executor='ray' needs Ray: pip install 'brimful\[ray\]'"):
        written(files(corpus).tokenize(letters), tmp_path / "store", "ray")


def test_another_cluster_than_the_one_at_hand_is_refused(cluster: Any, corpus: Path, tmp_path: Path) -> None:
    data = files(corpus).tokenize(letters)
    with pytest.raises(
        ValueError, match=r"ray_address='10\.0\.0\.9:6379', but this process is connected to the Ray cluster at"
    ):
        data.to_store(tmp_path / "s", version="1", executor="ray", ray_address="10.0.0.9:6379")


# -- inference -------------------------------------------------------------------------------------------------------------


class Upper:
    """A model that is slow to load, and says who has."""

    marks = ""

    def __init__(self) -> None:
        mark, part = Path(self.marks, str(os.getpid())), Path(f"{self.marks}.{os.getpid()}")
        part.write_text((mark.read_text() if mark.exists() else "") + "made\n")
        part.rename(mark)  # who sees the mark may kill this process at once

    def __call__(self, batch: Any) -> list[str]:
        time.sleep(0.02)
        if "die here" in batch["text"]:
            raise KeyError("die here")
        return [text.upper() for text in batch["text"]]


@pytest.fixture
def upper(tmp_path: Path) -> type[Upper]:
    marks = tmp_path / "made"
    marks.mkdir()
    return type("Upper", (Upper,), {"marks": str(marks)})


def test_results_are_in_the_order_of_the_samples_though_a_worker_is_killed(
    cluster: Any, tmp_path: Path, upper: Any
) -> None:
    texts = ["x" * (number * 7 % 50) + str(number) for number in range(400)]
    with killing(Path(upper.marks), 1) as killed:
        options: dict[str, Any] = {"executor": "ray", "num_workers": 2, "window": 100, "output": tmp_path / "out"}
        found = [row["result"] for row in bf.map_batches_in_order(upper, texts, 4, **options)]
    assert found == [text.upper() for text in texts]
    assert len(killed) == 1
    made = [path.read_text() for path in Path(upper.marks).iterdir()]
    assert made == ["made\n"] * 3  # two workers, and one in the place of the dead
    assert bf.map_batches_in_order(upper, texts, 4, **options)[399] == {"result": found[399]}  # which the files have
    assert len(list(Path(upper.marks).iterdir())) == 3, "and no worker has begun for that"


def test_workers_that_find_no_room_are_given_nothing(cluster: Any, upper: Any) -> None:
    texts = [str(number) for number in range(60)]
    found = bf.map_batches_in_order(upper, texts, 4, executor="ray", num_workers=5)  # on two processors
    assert list(found) == texts


def test_it_is_said_that_no_worker_finds_room(
    cluster: Any, upper: Any, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    said: list[str] = []

    def stop_waiting(record: logging.LogRecord) -> bool:
        said.append(record.getMessage())
        raise InterruptedError

    monkeypatch.setattr("brimful.ray.pool.WAIT_SECONDS", 0.2)
    logging.getLogger("brimful").addFilter(stop_waiting)
    request.addfinalizer(lambda: logging.getLogger("brimful").removeFilter(stop_waiting))
    with pytest.raises(InterruptedError):
        list(bf.map_batches_in_order(upper, ["a"], 1, executor="ray", num_workers=1, num_gpus_per_worker=100))
    assert said[0].startswith(
        "no worker for Upper has begun yet: each needs a processor and 100 GPUs, and the cluster has 2"
    )
    assert said[0].endswith("give it more, or ask for less (num_workers, num_gpus_per_worker)")


def test_an_error_of_inference_says_which_batch(cluster: Any, upper: Any) -> None:
    texts = ["a", "die here", "ccc"]
    with pytest.raises(KeyError, match="die here") as raised:
        list(bf.map_batches_in_order(upper, texts, 1, executor="ray", num_workers=1))
    assert "map_batches_in_order: Upper got 1 sample of window 0, padded to 8: " in raised.value.__notes__[0]


def test_batches_that_workers_split_are_counted_at_the_end(cluster: Any, caplog: pytest.LogCaptureFixture) -> None:
    def one_by_one(batch: Any) -> list[str]:
        if len(batch["text"]) > 1:
            raise MemoryError
        return list(batch["text"])

    texts = ["a", "b", "c", "d", "e"]
    assert list(bf.map_batches_in_order(one_by_one, texts, 2, window=5, executor="ray", num_workers=1)) == texts
    assert "out of memory: 2 of 3 batches were split, into 4 parts; a smaller budget" in caplog.text


def test_options_of_ray_are_refused_without_it() -> None:
    for name, value in {"ray_address": "auto", "num_workers": 2, "num_gpus_per_worker": 0.5}.items():
        with pytest.raises(ValueError, match=f"{name}='?{value}'? is for executor='ray'"):
            bf.map_batches_in_order(len, ["a"], 1, **{name: value})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="num_workers must be at least 1 worker"):
        bf.map_batches_in_order(len, ["a"], 1, executor="ray", num_workers=0)
    with pytest.raises(ValueError, match="num_gpus_per_worker must be at least 0"):
        bf.map_batches_in_order(len, ["a"], 1, executor="ray", num_gpus_per_worker=-1)


# -- training --------------------------------------------------------------------------------------------------------------


def test_training_goes_on_with_other_numbers_of_workers_after_a_kill(cluster: Any, tmp_path: Path) -> None:
    psutil = pytest.importorskip("psutil")
    environment = os.environ | {"RAY_ADDRESS": cluster.get_runtime_context().gcs_address}

    def start(folder: Path, workers: int, batches: int) -> subprocess.Popen[bytes]:
        arguments = [f"--folder={folder}", f"--workers={workers}", f"--batches={batches}", "--cpus-per-worker=0.5"]
        out = open(tmp_path / f"out {workers}", "wb")
        return subprocess.Popen([sys.executable, str(EXAMPLE), *arguments], env=environment, stdout=out, stderr=out)

    begun = tmp_path / "run"
    process = start(begun, 2, 10_000)
    until = time.monotonic() + 120
    while len(list(begun.glob("run/checkpoint_*"))) < 2:
        assert process.poll() is None, (tmp_path / "out 2").read_text()
        assert time.monotonic() < until
        time.sleep(0.1)
    workers = [
        one for one in psutil.process_iter(["cmdline"]) if "RayTrainWorker" in " ".join(one.info["cmdline"] or [])
    ]
    os.kill(workers[0].pid, signal.SIGKILL)
    assert process.wait(120) != 0
    runs = {}
    for number in (1, 3):
        shutil.copytree(begun, tmp_path / f"run {number}")
        runs[number] = start(tmp_path / f"run {number}", number, 60)
    for number, run in runs.items():
        assert run.wait(150) == 0, (tmp_path / f"out {number}").read_text()
    found = [json.loads((tmp_path / f"run {number}" / "batches.json").read_text()) for number in (1, 3)]
    spec = importlib.util.spec_from_file_location("ray_train", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    loader = example.data().loader()
    expected = [example.digest(batch) for _ in range(20) for batch in loader]
    assert len(set(expected[:50])) == 50
    for batches in found:
        assert len(batches) >= 60
        assert batches == expected[: len(batches)]


def test_logging_is_left_as_it_was(cluster: Any) -> None:
    assert logging.getLogger("brimful").propagate
