"""`brimful run`: what it counts, and that it goes on exactly, whatever stopped it."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import Corpus, invoke, refusal, start


@pytest.fixture
def words(corpus: Corpus) -> list[Any]:
    """The command that the tests run, stop and run again: two epochs, shuffled, in small windows."""
    small = ("--max-tokens", 512, "--window", 100, "--shuffle", 200, "--epochs", 2)
    return ["run", corpus.urls, "--tokenizer", corpus.tokenizer, *small]


@pytest.fixture
def unbroken(words: list[Any], tmp_path: Path) -> str:
    """The digests of all batches, without a stop."""
    path = tmp_path / "unbroken.txt"
    assert invoke(*words, "--digests", path).exit_code == 0
    return path.read_text()


def until(state: Path, batches: int, process: subprocess.Popen[str]) -> None:
    """Waits for a running command to have saved a place after so many batches."""
    deadline = time.monotonic() + 60
    while not state.exists() or json.loads(state.read_bytes())["batches"] < batches:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.005)


# -- counts --------------------------------------------------------------------------------------------------------------


def test_summary_accounts_for_every_token(words: list[Any], corpus: Corpus) -> None:
    result = invoke(*words, "--json")
    assert result.exit_code == 0
    assert result.stderr == ""
    summary = json.loads(result.stdout)
    assert (summary["samples"], summary["tokens"]) == (2 * corpus.samples, 2 * corpus.tokens)
    assert summary["padding"] == pytest.approx(1 - summary["tokens"] / summary["slots"])
    assert 0 < summary["stall_share"] <= 1
    assert summary["tokens_per_second"] == pytest.approx(summary["tokens"] / summary["seconds"])
    assert not any(summary[name] for name in ("skipped", "dropped", "truncated", "alone", "dropped_tokens"))


def test_summary_is_a_table_without_terminal_codes(words: list[Any], corpus: Corpus) -> None:
    output = invoke(*words, "--limit", 3).stdout
    assert re.search(r"batches +3 ", output)
    assert "\x1b" not in output
    assert max(map(len, output.splitlines())) <= 80


def test_max_length_cuts_samples(corpus: Corpus) -> None:
    short = ["run", corpus.urls, "--tokenizer", corpus.tokenizer, "--max-tokens", 512, "--json", "--max-length"]
    assert json.loads(invoke(*short, 1).stdout)["tokens"] == corpus.samples
    assert json.loads(invoke(*short, 0).stdout)["tokens"] == corpus.tokens


def test_it_is_said_whether_samples_are_cut(words: list[Any]) -> None:
    assert re.search(r"cut at +none +samples are whole; --max-length cuts them", invoke(*words, "--limit", 1).stdout)
    cut = invoke(*words, "--limit", 1, "--max-length", 9).stdout
    assert re.search(r"cut at +9 +tokens of a sample \(--max-length\)", cut)


def test_a_format_is_named_where_no_extension_says_it(corpus: Corpus, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("alpha beta\n")
    words = ["run", tmp_path / "a", "--tokenizer", corpus.tokenizer, "--json"]
    assert "does not show its format. Give --format= (jsonl, json, text" in refusal(*words)
    assert json.loads(invoke(*words, "--format", "text").stdout)["tokens"] == 2


def test_step_seconds_are_not_waiting(words: list[Any]) -> None:
    summary = json.loads(invoke(*words, "--limit", 10, "--step-seconds", 0.05, "--json").stdout)
    assert summary["seconds"] > 0.5 > summary["seconds_waited"]


def test_bad_records_are_skipped_and_counted_when_told_so(corpus: Corpus, tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text('{"text": "alpha beta"}\n{"text": \n{"text": "gamma"}\n')
    words = ["run", path, "--tokenizer", corpus.tokenizer]
    assert "bad.jsonl, line 2" in refusal(*words)
    summary = json.loads(invoke(*words, "--on-error", "skip", "--json").stdout)
    assert (summary["samples"], summary["tokens"], summary["skipped"]) == (2, 3, 1)


def test_nothing_to_stream_is_no_error(corpus: Corpus, tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").touch()
    summary = json.loads(invoke("run", tmp_path / "empty.jsonl", "--tokenizer", corpus.tokenizer, "--json").stdout)
    assert (summary["batches"], summary["padding"]) == (0, 0)


# -- going on ------------------------------------------------------------------------------------------------------------


def test_pieces_make_the_unbroken_run(words: list[Any], unbroken: str, tmp_path: Path) -> None:
    state, digests = tmp_path / "state.json", tmp_path / "digests.txt"
    words += ["--state", state, "--digests", digests, "--limit", 20]
    total = len(unbroken.splitlines())
    for done in range(20, total, 20):
        assert invoke(*words).stderr.endswith(
            f"stopped by --limit after batch {done}; the same command goes on from {state}\n"
        )
        assert digests.read_text() == "".join(unbroken.splitlines(keepends=True)[:done])
    assert invoke(*words).stderr.endswith(f"finished after batch {total}; {state} is at the end\n")
    assert digests.read_text() == unbroken
    assert f"nothing is left: {state} is at the end, after batch {total}" in invoke(*words).stderr
    assert digests.read_text() == unbroken


def test_an_older_state_takes_the_digests_back_with_it(words: list[Any], unbroken: str, tmp_path: Path) -> None:
    state, digests = tmp_path / "state.json", tmp_path / "digests.txt"
    words += ["--state", state, "--digests", digests]
    assert invoke(*words, "--limit", 7).exit_code == 0
    older = state.read_bytes()
    assert invoke(*words, "--limit", 7).exit_code == 0
    state.write_bytes(older)
    assert invoke(*words).exit_code == 0
    assert digests.read_text() == unbroken


def test_epochs_differ_and_another_seed_too(words: list[Any], unbroken: str, tmp_path: Path) -> None:
    digests = [line.split("\t")[2] for line in unbroken.splitlines()]
    assert len(set(digests)) == len(digests)
    assert invoke(*words, "--seed", 1, "--digests", tmp_path / "other.txt").exit_code == 0
    assert not set(digests) & {line.split("\t")[2] for line in (tmp_path / "other.txt").read_text().splitlines()}


def test_kill_9_and_again(words: list[Any], unbroken: str, tmp_path: Path) -> None:
    state, digests = tmp_path / "state.json", tmp_path / "digests.txt"
    words += ["--state", state, "--digests", digests, "--save-every", 3]
    for batches in (5, 60):
        process = start(*words, "--step-seconds", 0.02)
        until(state, batches, process)
        process.kill()
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        done = json.loads(state.read_bytes())["batches"]
        assert digests.read_text().splitlines()[:done] == unbroken.splitlines()[:done]
    result = invoke(*words)
    assert f"going on after batch {done} " in result.stderr
    assert digests.read_text() == unbroken
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".part"] == []


def test_ctrl_c_and_sigterm_save_the_last_batch(words: list[Any], unbroken: str, tmp_path: Path) -> None:
    state, digests = tmp_path / "state.json", tmp_path / "digests.txt"
    words += ["--state", state, "--digests", digests, "--save-every", 3]
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        process = start(*words, "--step-seconds", 0.02)
        until(state, 60 if number == signal.SIGTERM else 3, process)
        process.send_signal(number)
        output, errors = process.communicate(timeout=60)
        done = json.loads(state.read_bytes())["batches"]
        assert process.returncode == code, errors
        assert f"stopped by {number.name} after batch {done}; the same command goes on from {state}" in errors
        assert "Traceback" not in errors
        assert "waiting for data" in output
        assert digests.read_text() == "".join(unbroken.splitlines(keepends=True)[:done])
    assert invoke(*words).exit_code == 0
    assert digests.read_text() == unbroken


# -- refusals ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--max-tokens", 0], "--max-tokens must be at least 1 token (got 0)"),
        (["--max-length", 20_000], "--max-length must be at most --max-tokens=16,384 (got 20,000)"),
        (["--window", "wide"], "--window must be a number of samples or auto (got 'wide')"),
        (["--on-error", "shrug"], "--on-error must be one of raise, skip (got 'shrug')"),
        (["--limit", 0], "--limit must be at least 1 batch (got 0)"),
        (["--save-every", 0], "--save-every must be at least 1 batch (got 0)"),
        (["--tokenizer", "nowhere.json"], "tokenizer 'nowhere.json' cannot be loaded: there is no such file"),
        (["--column", "prose"], "keys: text, other); correct columns="),
        (["--state", "/nowhere/state.json"], "No such file or directory"),
        (["--digests", "/nowhere/digests.txt"], "No such file or directory"),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, list) else "",
)
def test_settings_that_cannot_be(corpus: Corpus, more: list[Any], message: str) -> None:
    assert message in refusal("run", corpus.urls, "--tokenizer", corpus.tokenizer, *more)


def test_no_such_files(corpus: Corpus) -> None:
    assert "no file matches '/nowhere/*.jsonl'" in refusal("run", "/nowhere/*.jsonl", "--tokenizer", corpus.tokenizer)


def test_a_tokenizer_that_is_none(corpus: Corpus, tmp_path: Path) -> None:
    path = tmp_path / "broken.json"
    path.write_text("{}")
    assert f"tokenizer '{path}' cannot be loaded: " in refusal("run", corpus.urls, "--tokenizer", path)


def test_a_sample_over_the_budget_is_named(corpus: Corpus) -> None:
    words = ["run", corpus.urls, "--tokenizer", corpus.tokenizer, "--max-tokens", 10]
    assert re.search(
        r"\d+ tokens \(shard .*jsonl.*, line \d+\) cannot fit --max-tokens=10; truncate or filter it, or raise the budget",
        refusal(*words),
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "holds no state: it is not JSON"),
        ("[1, 2]", "holds no place of `brimful run`: it must have batches, and the state of a loader"),
        ('{"batches": 3, "loader": {"version": 1}}', "holds no place of `brimful run`"),
    ],
)
def test_a_file_that_holds_no_place(corpus: Corpus, tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "state.json"
    path.write_text(content)
    assert message in refusal("run", corpus.urls, "--tokenizer", corpus.tokenizer, "--state", path)
    assert path.read_text() == content


def test_a_place_in_another_run(words: list[Any], corpus: Corpus, tmp_path: Path) -> None:
    state, digests = tmp_path / "state.json", tmp_path / "digests.txt"
    words += ["--state", state, "--limit", 3]
    assert invoke(*words, "--digests", digests).exit_code == 0
    saved = state.read_bytes()
    assert "--max-tokens was 512 when it was saved and is 600 here" in refused(*words, "--max-tokens", 600)
    assert "--seed was 42 when it was saved and is 7 here" in refused(*words, "--seed", 7)
    shutil.copy(digests, tmp_path / "short.txt")
    (tmp_path / "short.txt").write_text(digests.read_text().split("\n")[0] + "\n")
    assert "holds the digests of 1 batches, but this run goes on after batch 3" in refused(
        *words, "--digests", tmp_path / "short.txt"
    )
    assert state.read_bytes() == saved


def test_a_place_over_rows_that_were_edited_is_refused(corpus: Corpus, tmp_path: Path) -> None:
    shard, state = tmp_path / "a.jsonl", tmp_path / "state.json"
    shard.write_text('{"text": "alpha beta"}\n' * 40)
    words = ["run", shard, "--tokenizer", corpus.tokenizer, "--max-tokens", 8, "--state", state]
    assert invoke(*words, "--limit", 3).exit_code == 0
    shard.write_text(shard.read_text().replace("alpha beta", "beta alpha"))
    said = refused(*words)
    assert "gave other rows at window 0 (read from shard a.jsonl, line 1 on) than when this state was saved: " in said
    assert "column 'input_ids' had the crc32 " in said
    assert "Go on with the data and code that saved it" in said


def refused(*words: Any) -> str:
    """The last line on stderr of a command that refuses to go on."""
    result = invoke(*words)
    assert result.exit_code == 2, result.output
    return result.stderr.splitlines()[-1]
