"""Traces of the public ones' forms with a few pods, written by hand."""

from __future__ import annotations

import gzip
import lzma
from pathlib import Path
from typing import Final

KINDS: Final = "1,0.75 a\n2,3.5 g\n16,112 d\n"
BINS: Final = "0 0 300\n1 300 600\n2 600 4200\n"
ARRIVED: Final = "2100000 a,|,g,g\n2100300 d\n2100900 \n2101200 g,|,a,|\n"
LIVED: Final = "2100000 U0,|,U1,C1\n2100300 U2\n2100900 \n2101200 U3,|,C3,|\n"
PODS: Final = """\
name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
p-0,4000,8192,0,0,,LS,Running,100,700,130
p-1,11908,47104,8,1000,V100|T4,Guaranteed,Failed,200,200,200
p-2,6000,12288,1,460,,BE,Pending,250,900,
p-3,6000,12288,1,230,,BE,Running,150,1000,160
p-4,500,64,2,1000,,Burstable,Succeeded,300.5,1000,400
"""


def azure2017(
    folder: Path,
    *,
    part: str = "test",
    arrived: str = ARRIVED,
    lived: str = LIVED,
    kinds: str = KINDS,
    bins: str = BINS,
) -> str:
    """Write a trace of the form of azure2017 into a folder; its name."""
    lifetimes = {"dev": "c2100000", "test": "c2591400"}[part]
    folder.mkdir(exist_ok=True)
    (folder / "azure2017.flav_map.txt").write_text(kinds)
    (folder / "azure2017.duration_bins.txt").write_text(bins)
    stem = f"azure2017.v1.{part}"
    (folder / f"{stem}.txt.xz").write_bytes(lzma.compress(arrived.encode()))
    (folder / f"{stem}.{lifetimes}.txt.xz").write_bytes(lzma.compress(lived.encode()))
    return str(folder)


def openb(folder: Path, pods: str = PODS) -> str:
    """Write a trace of the form of openb into a folder; its name."""
    (folder / "openb_pods.csv.gz").write_bytes(gzip.compress(pods.encode()))
    return str(folder)
