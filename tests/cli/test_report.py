"""`brimful report`: the table, the document and the page say the same; the page in a real browser."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import brimful as bf
from tests import browser
from tests.cli.commands import Corpus, invoke, refusal

SMALL = ("--max-tokens", 512, "--max-length", 64, "--batch-size", 8)


@pytest.fixture(scope="module")
def lengths(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lengths") / "lengths.npy"
    np.save(path, np.random.default_rng(0).lognormal(np.log(200), 1.0, 5_000).astype(int).clip(1, 4_096))
    return path


def document(*words: Any) -> dict[str, Any]:
    result = invoke("report", *words, "--json")
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    found: dict[str, Any] = json.loads(result.stdout)
    return found


# -- numbers -----------------------------------------------------------------------------------------------------------


def test_text_is_predicted_as_it_streams(corpus: Corpus) -> None:
    found = document(corpus.urls, "--tokenizer", corpus.tokenizer, *SMALL)
    assert (found["lengths"]["samples"], found["lengths"]["tokens"]) == (corpus.samples, corpus.tokens)
    predicted = found["policies"][found["advice"][0]["policy"]]
    run = invoke("run", corpus.urls, "--tokenizer", corpus.tokenizer, *SMALL[:4], "--json")
    streamed = json.loads(run.stdout)
    assert predicted["code"] == "dataset.batch_by_tokens(512)"
    assert (predicted["padding"], predicted["batches"], predicted["shapes"]) == (
        streamed["padding"],
        streamed["batches"],
        streamed["num_shapes"],
    )


def test_sample_is_of_the_first_rows(corpus: Corpus, lengths: Path) -> None:
    found = document(corpus.urls, "--tokenizer", corpus.tokenizer, "--sample", 50)
    assert (found["lengths"]["samples"], found["more"]) == (50, True)
    found = document(lengths, "--sample", 0)
    assert (found["lengths"]["samples"], found["more"]) == (5_000, False)


def test_samples_are_whole_unless_asked(corpus: Corpus, lengths: Path) -> None:
    text = document(corpus.urls, "--tokenizer", corpus.tokenizer)
    assert (text["settings"]["max_length"], text["settings"]["row_length"]) == (None, None)
    assert text["lengths"]["tokens"] == corpus.tokens
    whole = document(lengths)
    assert whole["settings"]["max_length"] is None
    assert whole["policies"][-1]["name"] == f"packed rows of {whole['lengths']['longest']:,}"
    assert "; none is cut" in invoke("report", lengths).stdout
    cut = document(lengths, "--max-length", 100)
    assert cut["lengths"]["longest"] == 100


def test_samples_longer_than_the_budget_are_counted_and_planned_as_if_cut(lengths: Path) -> None:
    values = np.load(lengths)
    found = document(lengths, "--max-tokens", 1000)["lengths"]
    over = int((values > 1000).sum())
    assert (found["over_max_tokens"], found["uncut_longest"], found["longest"]) == (over, values.max(), 1000)
    said = " ".join(invoke("report", lengths, "--max-tokens", 1000).stdout.split())
    assert (
        f"{over} samples are longer than --max-tokens 1,000 ({over / 5000:.1%}".replace("%", " %")
        + f"; the longest has {values.max():,}) and fit no batch: this report cuts them there. Do the same with --max-length "
        "1000 (tokenize(max_length=1_000) in Python), or raise --max-tokens."
    ) in said


def test_a_store_is_reported_without_reading_its_tokens(corpus: Corpus, tmp_path: Path) -> None:
    path = tmp_path / "store"
    assert invoke("tokenize", corpus.urls, "--tokenizer", corpus.tokenizer, "--output", path).exit_code == 0
    assert "there is no list column 'text' in the store" in refusal("report", path, "--column", "text")
    streamed = document(corpus.urls, "--tokenizer", corpus.tokenizer, *SMALL)
    for file in path.glob("*.arrow"):
        file.write_bytes(b"")
    stored = document(path, *SMALL)
    assert stored["source"] == str(path)
    assert {**stored, "source": ""} == {**streamed, "source": ""}
    assert document(path, path, "--sample", 700)["lengths"]["samples"] == 700
    assert "--tokenizer is not used" in invoke("report", path, "--tokenizer", corpus.tokenizer).stderr


def test_a_number_column_of_a_store_is_reported(tmp_path: Path) -> None:
    bf.from_sequence([{"input_ids": [1], "frames": n} for n in range(1, 200)]).to_store(tmp_path / "store")
    assert document(tmp_path / "store", "--column", "frames")["lengths"]["longest"] == 199


def test_a_report_of_pairs_says_which_side_it_counts(corpus: Corpus, tmp_path: Path) -> None:
    rows = bf.from_sequence([{"id": 1, "source": "alpha", "target": "beta gamma"}] * 50)
    sides = {"column": ("source", "target"), "output_column": ("input_ids", "labels")}
    rows.tokenize(corpus.tokenizer, **sides).to_store(tmp_path / "pairs")
    assert (
        f"{tmp_path}/pairs: only the tokens of 'input_ids' are counted, and not those of 'labels'. Batches of pairs hold both: "
        "batch_by_tokens(..., length_column=('input_ids', 'labels'))"
    ) in " ".join(invoke("report", tmp_path / "pairs").stderr.split())
    rows.tokenize(corpus.tokenizer, column="source").causal_labels().to_store(tmp_path / "causal")
    assert invoke("report", tmp_path / "causal").stderr == "", "labels beside the tokens"


def test_no_page_is_named_that_an_installed_package_lacks(lengths: Path) -> None:
    assert not re.search(r"docs/|\.md\b", invoke("report", lengths).stdout + json.dumps(document(lengths)))


def test_a_format_is_named_where_no_extension_says_it(corpus: Corpus, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("alpha beta\n")
    words = (tmp_path / "a", "--tokenizer", corpus.tokenizer)
    assert document(*words, "--format", "text")["lengths"]["tokens"] == 2


# -- the table ---------------------------------------------------------------------------------------------------------


def test_table_says_what_the_document_says_in_80_columns(lengths: Path) -> None:
    result = invoke("report", lengths)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    found = document(lengths)
    for policy in found["policies"]:
        window = "" if policy["window"] is None else f"{policy['window']:,}".replace("5,000", "all")
        assert any(
            line.split()
            == [
                *policy["name"].split(),
                *["auto:"] * policy["window_auto"],
                *window.split(),
                *f"{policy['padding'] * 100:.2f} %".split(),
                f"{policy['batches']:,}",
                f"{policy['shapes']:,}{'*' * policy['too_many_shapes']}",
                f"{policy['tokens_per_batch']:,.0f}",
                f"{policy['cost']:.2f}x",
            ]
            for line in lines
        ), policy
        name = (
            f"{policy['name']} {window and f'(auto: {window})' if policy['window_auto'] else window and f'({window})'}"
        )
        shares = " ".join(f"{share * 100:.1f} %" for share in policy["between"].values())
        assert [*name.split(), *shares.split()] in [line.split() for line in lines], name
    codes = {f"  {advice['code']}" for advice in found["advice"]}
    assert codes <= set(lines)
    assert max(len(line) for line in lines if line not in codes) <= 80
    flat = " ".join(result.stdout.split())
    places = [flat.index(words) for words in (*(one["sentence"] for one in found["advice"]), "policy window padding")]
    assert places == sorted(places), "advice comes first, then the tables"
    assert "A batch of B rows padded to L costs B L (1 + L / (6 x 768))" in flat
    assert "At 30 s a shape, 8 shapes take 4 min" in flat
    assert (
        'least padding is dataset.batch(bf.TokenBudget(16_384, planner="least_padding", step_cost=0.05)). --json'
        in flat
    )


def test_many_files_are_named_in_short(lengths: Path) -> None:
    assert document(*[lengths] * 5)["source"] == f"{', '.join([str(lengths)] * 3)} and 2 more"


def test_tokenising_shows_a_bar_on_the_terminal(corpus: Corpus) -> None:
    ours, theirs = pty.openpty()
    words = [sys.executable, "-m", "brimful", "report", corpus.urls, "--tokenizer", str(corpus.tokenizer), "--json"]
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "80"}
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=theirs, env=environment)
    os.close(theirs)
    out, _ = process.communicate(timeout=120)
    shown = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert "━" in shown
    assert json.loads(out)["lengths"]["samples"] == corpus.samples


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["gone.npy"], "there is no file 'gone.npy'"),
        (
            ["TOKENIZER"],
            "TOKENIZER holds no lengths: name a tokenizer with --tokenizer to count them, or give a token store, or .npy or "
            ".parquet files of lengths",
        ),
        (["nowhere"], "there is no file 'nowhere'"),
        (["gone.jsonl", "--tokenizer", "TOKENIZER"], "there is no file 'gone.jsonl'"),
        (["LENGTHS", "--max-tokens", 0], "--max-tokens must be at least 1 token (got 0)"),
        (["LENGTHS", "--sample", -1], "--sample must be at least 0 samples (got -1)"),
        (["LENGTHS", "--max-length", -1], "--max-length must be at least 0 tokens (got -1)"),
        (["LENGTHS", "--row-length", 0], "--row-length must be at least 1 token (got 0)"),
        (
            ["LENGTHS", "--max-tokens", 1000, "--max-length", 2000],
            "--max-length must be at most max_tokens=1,000 (got 2,000): a sample of that length would fit no batch",
        ),
        (
            ["LENGTHS", "--html", "/no/such/folder/a.html"],
            "[Errno 2] No such file or directory: '/no/such/folder/a.html'",
        ),
    ],
)
def test_refusals(words: list[Any], message: str, lengths: Path, corpus: Corpus) -> None:
    given = {"LENGTHS": lengths, "TOKENIZER": corpus.tokenizer}
    message = message.replace("TOKENIZER", corpus.tokenizer)
    assert refusal("report", *[given.get(word, word) for word in words]) == f"brimful: {message}"


def test_nothing_to_plan_is_refused(tmp_path: Path, corpus: Corpus) -> None:
    np.save(tmp_path / "none.npy", np.zeros(0, int))
    path = tmp_path / "none.npy"
    assert refusal("report", path) == f"brimful: there are no samples in {path}: nothing to plan"
    (tmp_path / "none.jsonl").write_text("")
    assert "there are no samples in " in refusal("report", tmp_path / "none.jsonl", "--tokenizer", corpus.tokenizer)


# -- the page ----------------------------------------------------------------------------------------------------------


def test_page_stands_alone(lengths: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    result = invoke("report", lengths, "--html", page)
    assert result.exit_code == 0, result.output
    assert f"{page} shows it with charts." in result.stdout
    text = page.read_text("utf-8")
    assert not re.search(r"<script|<link|<img|<iframe|src=|href=|url\(|@import|https?:", text)


OVERLAPS = """[...document.querySelectorAll(".x, .y, .bar, figcaption, td, th")].filter(box => {
    const spans = [...box.children].map(child => child.getBoundingClientRect());
    return spans.some((a, i) => spans.some((b, k) => i < k &&
        a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1));
}).map(box => box.textContent)"""


@pytest.mark.skipif(browser.FOUND is None, reason=f"no browser: none of {', '.join(browser.NAMES)} is on the PATH")
def test_page_in_a_browser(lengths: Path, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    result = invoke("report", lengths, "--html", path, "--json")
    found = json.loads(result.stdout)
    np.save(tmp_path / "far.npy", np.random.default_rng(0).lognormal(np.log(300), 1.8, 2_000).astype(int))
    far = tmp_path / "far.html"
    assert invoke("report", tmp_path / "far.npy", "--max-length", 131_072, "--max-tokens", 131_072, "--html", far)
    with browser.browser() as page:
        grounds = set()
        for shown, width, scheme in (
            (far, 1200, "light"),
            (far, 400, "light"),
            (path, 400, "dark"),
            (path, 1200, "dark"),
        ):
            page.open(shown, width=width, scheme=scheme)
            assert page.value("document.documentElement.scrollWidth") <= width
            assert page.value(OVERLAPS) == []
            grounds.add(page.value("getComputedStyle(document.body).backgroundColor"))
        assert len(grounds) == 2
        rows = page.value(
            "[...document.querySelectorAll('#numbers tbody tr')].map(r => [...r.cells].map(c => c.textContent))"
        )
        values = page.value(
            "[...document.querySelectorAll('#numbers tbody tr')].map(r => [...r.querySelectorAll('data')].map(d => +d.value))"
        )
        columns = ("padding", "batches", "shapes", "tokens_per_batch", "cost", "compile_seconds")
        assert values == [[policy[name] for name in columns] for policy in found["policies"]]
        assert [row[0] for row in rows] == [policy["name"] for policy in found["policies"]]
        assert [row[2] for row in rows] == [f"{policy['padding'] * 100:.2f} %" for policy in found["policies"]]
        steps = page.value(
            "[...document.querySelectorAll('#steps tbody tr')].map(r => [...r.querySelectorAll('data')].map(d => +d.value))"
        )
        assert steps == [[*policy["between"].values()] for policy in found["policies"]]
        bars = page.value("[...document.querySelectorAll('.bar data')].map(d => +d.value)")
        panels = page.value("[...document.querySelectorAll('figure data')].map(d => +d.value)")
        assert bars == panels == [policy["padding"] for policy in found["policies"]]
        drawn = page.value("[...document.querySelectorAll('.chart rect')].map(r => r.height.baseVal.value)")
        counts = np.array(found["lengths"]["counts"])
        assert np.allclose(np.array(drawn) / max(drawn), counts / counts.max(), atol=1e-3)
        codes = page.value("[...document.querySelectorAll('pre code')].map(c => c.textContent)")
        assert codes == [advice["code"] for advice in found["advice"]]
        requested = [e["params"]["request"]["url"] for e in page.events if e["method"] == "Network.requestWillBeSent"]
        assert set(requested) <= {path.as_uri(), far.as_uri(), "about:blank"}
        said = ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Network.loadingFailed")
        assert [event for event in page.events if event["method"] in said] == []


def test_columns_that_have_the_names_of_settings_keep_them(tmp_path: Path) -> None:
    path = tmp_path / "sizes.parquet"
    pq.write_table(pa.table({"batch_size": [1], "max_tokens": [2]}), path)
    assert "(columns: batch_size, max_tokens)" in refusal("report", str(path))


def test_a_record_that_cannot_be_read_may_be_left_out(corpus: Corpus, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "alpha"}\n{"text": \n{"text": "beta"}\n')
    words = (tmp_path / "a.jsonl", "--tokenizer", corpus.tokenizer)
    assert "a.jsonl, line 2" in refusal("report", *words)
    result = invoke("report", *words, "--on-error", "skip", "--json")
    assert json.loads(result.stdout)["lengths"]["samples"] == 2
