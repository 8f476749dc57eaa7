"""Virtual machines of azure2017 as pods: what is read, what is drawn, and what is refused."""

from __future__ import annotations

import lzma
import pickle
import subprocess
import sys
from collections import Counter
from math import inf
from pathlib import Path

import pytest

from pinfold.adapters.traces.azure2017 import Azure2017
from pinfold.ports.arrivals import Arrival, ArrivalSource, PodSize, TraceError
from tests.roots import SHARED
from tests.scenes.small_traces import azure2017

A = PodSize(1000, 3 * 2**28)
G = PodSize(2000, 7 * 2**29)
D = PodSize(16000, 112 * 2**30)
WHOLE = SHARED / "traces"


def test_each_machine_is_a_pod_of_its_size(tmp_path: Path) -> None:
    found = list(Azure2017(azure2017(tmp_path)).arrivals(1))
    assert Counter(one.size for one in found) == {A: 2, G: 3, D: 1}
    assert len({id(one.size) for one in found}) == 3, "pods of a kind share one size"


def test_each_comes_within_the_time_of_its_line(tmp_path: Path) -> None:
    source = Azure2017(azure2017(tmp_path))
    moments: dict[PodSize, set[float]] = {A: set(), G: set(), D: set()}
    for seed in range(200):
        found = list(source.arrivals(seed))
        assert [one.at for one in found] == sorted(one.at for one in found)
        assert all(0 <= one.at < 300 for one in found[:3]), "of the first line, from 0"
        assert 300 <= found[3].at < 600
        assert all(1200 <= one.at < 1500 for one in found[4:]), "an empty line is a line"
        moments[D].add(found[3].at)
    assert min(moments[D]) < 320
    assert max(moments[D]) > 580


def test_a_batch_comes_at_one_moment(tmp_path: Path) -> None:
    source = Azure2017(azure2017(tmp_path))
    for seed in range(20):
        first = list(source.arrivals(seed))[:3]
        a, g = ([one.at for one in first if one.size == size] for size in (A, G))
        assert len(set(g)) == 1
        assert a != g[:1], "another batch has a moment of its own"


def test_a_lifetime_is_drawn_within_its_bin(tmp_path: Path) -> None:
    source = Azure2017(azure2017(tmp_path))
    bins: list[list[float]] = [[] for _ in range(6)]
    for seed in range(200):
        found = sorted(source.arrivals(seed), key=lambda one: (one.at >= 300, one.at >= 600))
        of_size = [one for size in (A, G) for one in found[:3] if one.size == size]
        last = [one for size in (G, A) for one in found[4:] if one.size == size]
        for lifetimes, one in zip(bins, [*of_size, found[3], *last], strict=True):
            lifetimes.append(one.lifetime)
    for lifetimes, low, high in zip(bins, (0, 300), (300, 600), strict=False):
        assert low < min(lifetimes) < low + 20
        assert high - 20 < max(lifetimes) <= high
    assert 600 < min(bins[3]) < max(bins[3]) <= 4200
    assert {*bins[2]} == {inf}, "C: it was there at the end"
    assert {*bins[4], *bins[5]} == {inf}, "longer than the last bin, or there at the end"


def test_a_share_is_of_the_same_pods_with_the_same_times(tmp_path: Path) -> None:
    line = ",".join("agd" * 400)
    lived = ",".join(["U0", "U1", "U2"] * 400)
    folder = azure2017(tmp_path, arrived=f"300 {line}\n", lived=f"300 {lived}\n")
    every, half, tenth = (list(Azure2017(folder, "test", s).arrivals(7)) for s in (1, 0.5, 0.1))
    assert len(every) == 1200
    assert 500 < len(half) < 700
    assert 70 < len(tenth) < 170
    assert Counter(tenth) <= Counter(half) <= Counter(every)
    assert list(Azure2017(folder, "test", 0.0).arrivals(7)) == []


def test_the_same_seed_is_the_same_stream_in_any_process(tmp_path: Path) -> None:
    source = Azure2017(azure2017(tmp_path))
    once = list(source.arrivals(3))
    list(source.arrivals(4))
    assert list(source.arrivals(3)) == once
    assert list(source.arrivals(4)) != once
    assert list(source.arrivals(-3)) != once
    assert pickle.loads(pickle.dumps(source)) == source  # noqa: S301 - our own bytes
    program = (
        "import sys\nfrom pinfold.adapters.traces.azure2017 import Azure2017\n"
        "print([(a.at, a.lifetime, a.size.cpu_milli)"
        " for a in Azure2017(sys.argv[1]).arrivals(3)])"
    )
    other = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert other.stdout.strip() == str([(a.at, a.lifetime, a.size.cpu_milli) for a in once])


def test_the_stream_of_a_seed_stays_what_it_is(tmp_path: Path) -> None:
    """Figures that are published with a seed can be had again."""
    source: ArrivalSource = Azure2017(azure2017(tmp_path))
    assert list(source.arrivals(1))[2:4] == [
        Arrival(168.460701583696, 127.06139877964257, A),
        Arrival(378.4589984231727, 3072.3377386982784, D),
    ]


def test_the_files_may_be_unpacked(tmp_path: Path) -> None:
    packed = azure2017(tmp_path / "packed", part="dev")
    plain = tmp_path / "plain"
    plain.mkdir()
    for path in Path(packed).iterdir():
        raw = path.read_bytes()
        text = lzma.decompress(raw) if path.suffix == ".xz" else raw
        (plain / path.name.removesuffix(".xz")).write_bytes(text)
    both = [list(Azure2017(str(folder), "dev").arrivals(1)) for folder in (packed, plain)]
    assert both[0] == both[1] != []


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"arrived": "1x a\n"}, r"test\.txt\.xz: line 1: '1x' is no time; .* is the line torn\?$"),
        ({"arrived": "nan a\n"}, "line 1: 'nan' is no time"),
        ({"arrived": "-300 a\n"}, "line 1: '-300' is no time"),
        ({"arrived": "9e99 a\n"}, "line 1: '9e99' is longer than 1e\\+12 s"),
        ({"arrived": "300 a,zz\n"}, r"line 1: 'zz' is not in azure2017\.flav_map\.txt; is the li"),
        ({"arrived": "300 a,|,g,\n"}, "line 1: '' is not in"),
        ({"arrived": "300 \x1b[2J\n"}, r"line 1: '\\x1b\[2J' is not in"),
        ({"arrived": "300 a\0\n"}, "line 1: a NUL byte"),
        ({"arrived": "300 \udcff\n"}, "line 1: not UTF-8 text"),
        ({"arrived": "300 a\n300 g\n", "lived": "300 U1\n300 U1\n"}, "line 2: not later than"),
        ({"lived": "2100000 U0,|,U1\n"}, r"c2591400\.txt\.xz: line 1: not the same places as in"),
        ({"lived": "2100000 U0,U0,|,C1\n"}, "line 1: not the same places"),
        ({"lived": "2100001 U0,|,U1,C1\n"}, "line 1: not the same places"),
        ({"lived": "2100000 U0,|,U1,C9\n"}, r"'C9' is not in azure2017\.duration_bins\.txt"),
        ({"lived": "2100000 U0,|,U1,C1\n"}, r"c2591400.txt.xz: line 2: missing; .*test.txt.xz has"),
        ({"arrived": "2100000 a,|,g,g\n"}, r"test\.txt\.xz: line 2: missing; .*c2591400"),
        ({"kinds": "1,0.75 a\n2 g\n"}, r"flav_map\.txt: line 2: '2 g': no CPUs, GiB and kind"),
        ({"kinds": "-1,0.75 a\n"}, "line 1: '-1,0.75 a': no CPUs"),
        ({"kinds": "1,inf a\n"}, "line 1: '1,inf a': no CPUs"),
        ({"kinds": "1,1 a\n1,2 a\n"}, "line 2: 'a' is no kind, or there twice"),
        ({"kinds": "1,1 a,b\n"}, "line 1: 'a,b' is no kind"),
        ({"kinds": "1,1 \n"}, "line 1: '' is no kind"),
        ({"bins": "0 0 300\n2 300 600\n"}, r"bins\.txt: line 2: '2 300 600': not the number of"),
        ({"bins": "0 300 0\n"}, "line 1: '0 300 0': not the number"),
        ({"bins": "0 0\n"}, "line 1: '0 0': not"),
        ({"bins": "0 0 nan\n"}, "line 1: '0 0 nan': not"),
    ],
)
def test_what_is_damaged_is_told_with_its_place(
    tmp_path: Path, files: dict[str, str], message: str
) -> None:
    encoded = {name: text.encode("utf-8", "surrogateescape") for name, text in files.items()}
    folder = azure2017(tmp_path)
    names = {
        "arrived": "azure2017.v1.test.txt.xz",
        "lived": "azure2017.v1.test.c2591400.txt.xz",
        "kinds": "azure2017.flav_map.txt",
        "bins": "azure2017.duration_bins.txt",
    }
    for name, raw in encoded.items():
        file = tmp_path / names[name]
        file.write_bytes(lzma.compress(raw) if file.suffix == ".xz" else raw)
    with pytest.raises(TraceError, match=message) as error:
        Azure2017(folder).arrivals(1)
    assert str(error.value).startswith(str(tmp_path))
    assert str(error.value).isprintable()


@pytest.mark.parametrize("name", ["azure2017.flav_map.txt", "azure2017.v1.test.c2591400.txt"])
def test_a_missing_file_names_the_remedy(tmp_path: Path, name: str) -> None:
    folder = azure2017(tmp_path)
    next(tmp_path.glob(f"{name}*")).unlink()
    with pytest.raises(TraceError, match=rf"/{name}: no such file, .*; --traces FOLDER says"):
        Azure2017(folder).arrivals(1)


def test_an_unknown_part_is_refused() -> None:
    with pytest.raises(TraceError, match=r"azure2017 has no part 'tset'; it is dev or test"):
        Azure2017("/", "tset").arrivals(1)


def test_truncated_files_are_told_wherever_they_end(tmp_path: Path) -> None:
    folder = azure2017(tmp_path)
    file = tmp_path / "azure2017.v1.test.txt.xz"
    raw = file.read_bytes()
    for length in range(6, len(raw)):
        file.write_bytes(raw[:length])
        with pytest.raises(TraceError, match=r"line \d: the packed data is (truncated|damaged)"):
            Azure2017(folder).arrivals(1)


@pytest.mark.skipif(not WHOLE.is_dir(), reason="the traces are not beside the project")
@pytest.mark.parametrize(
    ("part", "pods", "stay", "days"),
    [("dev", 259_159, 14_317, 3.5), ("test", 410_276, 23_311, 5.7)],
)
def test_the_whole_trace(part: str, pods: int, stay: int, days: float) -> None:
    found = list(Azure2017(str(WHOLE), part).arrivals(1))
    assert len(found) == pods
    assert sum(one.lifetime == inf for one in found) == stay
    assert all(one.lifetime > 0 for one in found)
    assert found[0].at < 300
    assert round(found[-1].at / 86400, 1) == days
    assert len({id(one.size) for one in found}) == len({one.size for one in found}) <= 16
    assert {one.size.cpu_milli for one in found} <= {1000, 2000, 4000, 8000, 16000}
