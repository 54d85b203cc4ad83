from __future__ import annotations

import os
import zipfile
from pathlib import Path

import fsspec
import pytest

import brimful as bf
from brimful.sources.urls import Shards, expand_braces
from brimful.testing import assert_exact_resume
from tests.shards import write


def found(*urls: str) -> list[str]:
    shards = Shards(urls)
    return [shards.name(shard) for shard in shards.listed]


@pytest.mark.parametrize(
    ("name", "expanded"),
    [
        ("plain.jsonl", ["plain.jsonl"]),
        ("{0..2}.jsonl", ["0.jsonl", "1.jsonl", "2.jsonl"]),
        ("{08..11}", ["08", "09", "10", "11"]),
        ("{8..11}", ["8", "9", "10", "11"]),
        ("{2..0}", ["2", "1", "0"]),
        ("{a,b}/{0..1}", ["a/0", "a/1", "b/0", "b/1"]),
        ("{a,}x", ["ax", "x"]),
        ("{kept}-{}-{x..y}", ["{kept}-{}-{x..y}"]),
    ],
)
def test_braces_expand_as_in_a_shell(name: str, expanded: list[str]) -> None:
    assert list(expand_braces(name)) == expanded


def test_names_stay_in_the_order_given_and_globs_are_sorted(tmp_path: Path) -> None:
    for name in ("c", "a", "b", "10", "9"):
        write(tmp_path / f"{name}.jsonl", b"")
    assert found(f"{tmp_path}/c.jsonl", f"{tmp_path}/[ab].jsonl") == ["c.jsonl", "a.jsonl", "b.jsonl"]
    assert found(f"{tmp_path}/*.jsonl") == ["10.jsonl", "9.jsonl", "a.jsonl", "b.jsonl", "c.jsonl"]
    assert found(f"{tmp_path}/{{b,a}}.jsonl") == ["b.jsonl", "a.jsonl"]
    assert found(f"file://{tmp_path}/?.jsonl")[0] == "9.jsonl"


def test_a_file_that_several_patterns_name_is_read_once(tmp_path: Path) -> None:
    for name in ("a", "ab", "b", "c"):
        write(tmp_path / f"{name}.jsonl", b'{"id": "%s"}\n' % name.encode())
    assert found(f"{tmp_path}/a*.jsonl", f"{tmp_path}/*b.jsonl") == ["a.jsonl", "ab.jsonl", "b.jsonl"]
    assert found(f"{tmp_path}/{{a,ab}}.jsonl", f"file://{tmp_path}/{{ab,b,b}}.jsonl") == [
        "a.jsonl",
        "ab.jsonl",
        "b.jsonl",
    ]
    rows = bf.from_files([f"{tmp_path}/a*.jsonl", f"{tmp_path}/*b.jsonl"], n_active_shards=1)
    assert [row["id"] for row in rows] == ["a", "ab", "b"]


def test_a_file_named_in_full_is_read_as_often_as_it_is_named(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write(tmp_path / f"{name}.jsonl", b"")
    whole = f"{tmp_path}/a.jsonl"
    assert found(whole, whole) == ["a.jsonl", "a.jsonl"]
    assert found(f"{tmp_path}/*.jsonl", Path(whole), whole) == ["b.jsonl", "a.jsonl", "a.jsonl"]  # type: ignore[arg-type]
    assert found(whole, f"{tmp_path}/*.jsonl") == ["a.jsonl", "b.jsonl"]


def test_a_file_of_another_file_system_that_several_patterns_name_is_read_once(tmp_path: Path) -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe({"/twice/a.jsonl": b"{}\n", "/twice/.b.jsonl": b"{}\n"})
    with zipfile.ZipFile(tmp_path / "shards.zip", "w") as archive:
        archive.writestr("twice/a.jsonl", "{}")
    try:
        assert len(Shards(("memory://twice/*.jsonl", "memory://twice/a*", "memory:///twice/?.jsonl")).listed) == 1
        assert len(Shards(("memory://twice/*.jsonl", "memory://twice/a.jsonl")).listed) == 1
        archived = [f"zip://twice/{name}::{tmp_path}/shards.zip" for name in ("*.jsonl", "a*", "a.jsonl")]
        assert len(Shards((*archived, "memory://twice/a*")).listed) == 2  # of one path in two file systems
    finally:
        memory.rm("/twice", recursive=True)


def test_a_glob_takes_a_dot_at_the_start_of_a_name_only_where_it_says_so(tmp_path: Path) -> None:
    for name in ("a", "._a", ".cache/b", "data/.c", "data/d"):
        write(tmp_path / ".home" / f"{name}.jsonl", b"")
    home = tmp_path / ".home"
    assert found(f"{home}/*.jsonl") == ["a.jsonl"]
    assert found(f"{home}/**/*.jsonl") == ["a.jsonl", "data/d.jsonl"]
    assert found(f"{home}/[.a]*.jsonl") == ["a.jsonl"]
    assert found(f"{home}/.*.jsonl") == ["._a.jsonl"]
    assert found(f"{home}/.cache/*.jsonl") == ["b.jsonl"]
    assert found(f"{home}/{{.,}}*a.jsonl") == ["._a.jsonl", "a.jsonl"]
    (home / "a.jsonl").unlink()
    with pytest.raises(
        FileNotFoundError, match=r"^no file matches '.*/\*\.jsonl'; globs leave out names that begin with a dot"
    ):
        found(f"{home}/*.jsonl")


def test_a_glob_finds_links_and_the_files_below_folders(tmp_path: Path) -> None:
    write(tmp_path / "store" / "one.jsonl", b"")
    (tmp_path / "data").mkdir()
    os.symlink(tmp_path / "store" / "one.jsonl", tmp_path / "data" / "link.jsonl")
    os.symlink(tmp_path / "store", tmp_path / "data" / "folder.jsonl")
    assert found(f"{tmp_path}/data/*.jsonl") == ["link.jsonl"]
    assert found(f"{tmp_path}/*/*.jsonl") == ["data/link.jsonl", "store/one.jsonl"]


def test_a_path_is_one_file_whatever_characters_it_has_and_so_is_a_string_that_names_a_file(tmp_path: Path) -> None:
    for name in ("data[1].jsonl", "data1.jsonl", "a*.jsonl", "ab.jsonl", "{1,2}.jsonl", "1.jsonl", "2.jsonl"):
        write(tmp_path / name, b"")
    for name in ("data[1].jsonl", "a*.jsonl", "{1,2}.jsonl"):
        assert [shard.path for shard in Shards((tmp_path / name,)).listed] == [f"{tmp_path}/{name}"]
        assert [shard.path for shard in Shards((f"{tmp_path}/{name}",)).listed] == [f"{tmp_path}/{name}"]
        (tmp_path / name).unlink()
        with pytest.raises(FileNotFoundError, match=r"^there is no file '.*'$"):
            _ = Shards((tmp_path / name,)).listed
    assert found(f"{tmp_path}/data[1].jsonl") == ["data1.jsonl"]
    assert found(f"{tmp_path}/a*.jsonl") == ["ab.jsonl"]
    assert found(f"{tmp_path}/{{1,2}}.jsonl") == ["1.jsonl", "2.jsonl"]
    write(tmp_path / "x[1].jsonl", b'{"id": 7}\n')
    assert list(bf.from_files([tmp_path / "x[1].jsonl", tmp_path / "1.jsonl"])) == [{"id": 7}]


def test_names_of_local_files_are_no_addresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = [
        "2024::01.jsonl",
        "zip::x.jsonl",
        "file:a.jsonl",
        "memory:a.jsonl",
        "~.jsonl",
        "~/b.jsonl",
        "d[1]/{a,b}::c?.jsonl",
    ]
    for number, name in enumerate(names):
        write(tmp_path / name, [{"id": number}])
        for given in (tmp_path / name, f"{tmp_path}/{name}", name, Path(name), f"./{name}"):
            shards = Shards((given,))  # type: ignore[arg-type]
            assert [shard.path for shard in shards.listed] == [f"{tmp_path}/{name}"]
            assert shards.listed[0].size > 0
        assert list(bf.from_files(name)) == [{"id": number}]
    assert found(f"{tmp_path}/2024::*.jsonl") == ["2024::01.jsonl"]
    assert [row["id"] for row in bf.from_files(f"{tmp_path}/d[[]1]/*.jsonl")] == [6]
    for missing in ("2025::01.jsonl", tmp_path / "zip::y.jsonl"):
        with pytest.raises(FileNotFoundError, match=r"^there is no file '.*::.*\.jsonl'$"):
            _ = Shards((missing,)).listed  # type: ignore[arg-type]


def test_a_name_that_is_no_utf_8_is_read_resumed_and_shown(tmp_path: Path) -> None:
    for name in (b"caf\xe9.jsonl", b"\xff\xfe.jsonl", b"good.jsonl"):
        write(tmp_path / os.fsdecode(name), [{"id": id} for id in range(20)])
    one = os.fsdecode(b"caf\xe9.jsonl")
    for given in (tmp_path / one, f"{tmp_path}/{one}", f"{tmp_path}/caf*"):
        assert [row["id"] for row in bf.from_files(given)] == list(range(20))
        assert found(given) == ["caf\\xe9.jsonl"]  # type: ignore[arg-type]

    def make() -> bf.Dataset:
        return bf.from_files(f"{tmp_path}/*.jsonl")

    assert len(list(make())) == 60
    assert_exact_resume(make, max_resumes=5)
    same = Shards((f"{tmp_path}/*.jsonl",)).fingerprint()
    (tmp_path / os.fsdecode(b"\xff\xfe.jsonl")).rename(tmp_path / os.fsdecode(b"\xff\xfd.jsonl"))
    assert Shards((f"{tmp_path}/*.jsonl",)).fingerprint() != same
    (tmp_path / one).write_text("{")
    with pytest.raises(bf.DataError, match=r"^shard caf\\xe9\.jsonl, line 1: ") as error:
        list(bf.from_files(tmp_path / one))
    str(error.value).encode()
    with pytest.raises(FileNotFoundError, match=r"^there is no file '.*/no\\udce9\.jsonl'$"):
        _ = Shards((tmp_path / os.fsdecode(b"no\xe9.jsonl"),)).listed  # type: ignore[arg-type]


def test_a_link_that_leads_nowhere_is_named_where_a_glob_matches_it(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", b"")
    link = tmp_path / "b.jsonl"
    for target, reason in (
        (tmp_path / "gone", "No such file or directory"),
        (link, "Too many levels of symbolic links"),
    ):
        link.symlink_to(target)
        message = rf"^{link} matches '{tmp_path}/\*\.jsonl' but is a link that leads nowhere \({reason}\); mend it or remove it$"
        with pytest.raises(FileNotFoundError, match=message):
            found(f"{tmp_path}/*.jsonl")
        assert found(f"{tmp_path}/a*") == ["a.jsonl"]
        link.unlink()


def test_a_glob_passes_over_what_is_no_file(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", b"")
    (tmp_path / "folder.jsonl").mkdir()
    os.mkfifo(tmp_path / "pipe.jsonl")
    assert found(f"{tmp_path}/*.jsonl") == ["a.jsonl"]


def test_a_name_or_a_glob_that_matches_nothing_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"^there is no file '.*/none\.jsonl'$"):
        _ = Shards((f"{tmp_path}/none.jsonl",)).listed
    (tmp_path / "folder.jsonl").mkdir()
    with pytest.raises(FileNotFoundError, match=r"^no file matches '.*/\*\.jsonl'$"):
        _ = Shards((f"{tmp_path}/*.jsonl",)).listed


def test_a_folder_is_refused_with_what_to_write_instead(tmp_path: Path) -> None:
    bf.from_sequence(["a"]).to_store(tmp_path / "store")
    with pytest.raises(
        IsADirectoryError, match=r"store' is a folder with a manifest; a token store is read by bf\.from_st"
    ):
        list(bf.from_files(tmp_path / "store"))
    said = r"' is a folder; name the files in its folders, for example .*/\*/\*\.jsonl$"
    with pytest.raises(IsADirectoryError, match=said):
        _ = Shards((f"{tmp_path}/",)).listed
    (tmp_path / "empty").mkdir()
    with pytest.raises(IsADirectoryError, match=r"' is a folder; it holds no file$"):
        _ = Shards((f"{tmp_path}/empty",)).listed


def test_a_folder_is_answered_with_a_pattern_of_what_lies_there(tmp_path: Path) -> None:
    for name in ("a.jsonl.gz", "b.jsonl.gz", "c.parquet", "LICENSE", "d.md", "e.md", "f.md", ".hidden.csv"):
        (tmp_path / name).touch()
    with pytest.raises(IsADirectoryError, match=r"' is a folder; name its files, for example .*/\*\.jsonl\.gz$"):
        _ = Shards((f"{tmp_path}",)).listed


def test_a_shard_is_named_from_the_folder_that_all_share(tmp_path: Path) -> None:
    urls = [write(tmp_path / folder / "part-0.jsonl", b"") for folder in ("train/a", "train/b")]
    assert found(*urls) == ["a/part-0.jsonl", "b/part-0.jsonl"]
    assert found(urls[0]) == ["part-0.jsonl"]


def test_a_fingerprint_knows_names_sizes_and_order_and_a_corpus_may_move(tmp_path: Path) -> None:
    here = [write(tmp_path / "here" / name, b"x" * size) for name, size in (("a.txt", 1), ("b.txt", 2))]
    there = [write(tmp_path / "there" / "now" / name, b"x" * size) for name, size in (("a.txt", 1), ("b.txt", 2))]
    one = Shards(tuple(here)).fingerprint()
    assert one["shards"] == 2
    assert Shards(tuple(there)).fingerprint() == one
    assert Shards((f"{tmp_path}/here/*.txt",)).fingerprint() == one
    assert Shards(tuple(reversed(here))).fingerprint() != one
    write(tmp_path / "here" / "b.txt", b"xyz")
    assert Shards(tuple(here)).fingerprint() != one


def test_shards_of_several_file_systems_are_one_list(tmp_path: Path) -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe("/remote/a.jsonl", b"{}\n")
    local = write(tmp_path / "b.jsonl", b"{}\n")
    try:
        shards = Shards(("memory://remote/*.jsonl", local))
        assert [shard.url for shard in shards.listed] == ["memory:///remote/a.jsonl", local]
        assert shards.fingerprint()["shards"] == 2
        for shard in shards.listed:
            with shards.open(shard) as file:
                assert file.read() == b"{}\n"
    finally:
        memory.rm("/remote", recursive=True)


def test_globs_look_into_chained_file_systems(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "shards.zip", "w") as archive:
        for name in ("b.jsonl", "a.jsonl", "a.txt"):
            archive.writestr(f"inner/{name}", name)
    write(tmp_path / "plain.jsonl", b"plain")
    for url, contents in (
        (f"zip://inner/*.jsonl::{tmp_path}/shards.zip", [b"a.jsonl", b"b.jsonl"]),
        (f"simplecache::file://{tmp_path}/*.jsonl", [b"plain"]),
    ):
        shards = Shards((url,))
        read = []
        for shard in shards.listed:
            with shards.open(shard) as file:
                read.append(file.read())
        assert read == contents
