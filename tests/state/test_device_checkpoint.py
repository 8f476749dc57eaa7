"""The device manager's file: recorded bytes and words, round trips."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinfold.state.cpu_manager_state import CheckpointError
from pinfold.state.device_checkpoint import (
    NO_NUMA_NODE,
    DeviceManagerCheckpoint,
    PodDevicesEntry,
)
from tests.scenes.state_vectors import VECTORS, replay, sample


def test_sample_of_recorded_files() -> None:
    tally = replay(sample("device_checkpoint"), "device_checkpoint")
    assert tally.failures == []
    assert tally.passed > 30


@pytest.mark.skipif(not VECTORS.exists(), reason="the whole recording is not at hand")
def test_whole_recording() -> None:
    tally = replay(VECTORS / "devicemanager.jsonl", "device_checkpoint")
    assert tally.failures == []
    assert tally.passed == 264


def test_a_checksum_of_zero_is_not_let_pass() -> None:
    checkpoint = DeviceManagerCheckpoint.parse(b"null")
    assert checkpoint.pod_device_entries == ()
    with pytest.raises(CheckpointError, match="checkpoint is corrupted"):
        checkpoint.verify()


@pytest.mark.parametrize(
    ("file", "words"),
    [
        (
            b'{"Data":{"PodDeviceEntries":[{"PodUID":1}]}}',
            (
                "json: cannot unmarshal number into Go struct field "
                "PodDevicesEntry.Data.PodDeviceEntries.PodUID of type string"
            ),
        ),
        (
            b'{"Data":{"PodDeviceEntries":[{"DeviceIDs":{"x":[]}}]}}',
            (
                "json: cannot unmarshal number x into Go struct field "
                "PodDevicesEntry.Data.PodDeviceEntries.DeviceIDs of type int64"
            ),
        ),
        (
            b'{"Data":{"PodDeviceEntries":[{"AllocResp":"a*bc"}]}}',
            "illegal base64 data at input byte 1",
        ),
    ],
)
def test_wrong_types(file: bytes, words: str) -> None:
    with pytest.raises(CheckpointError) as refusal:
        DeviceManagerCheckpoint.parse(file)
    assert str(refusal.value) == words


names = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
devices = st.none() | st.lists(names, max_size=3).map(tuple)
entries = st.builds(
    PodDevicesEntry,
    names,
    names,
    names,
    st.none() | st.dictionaries(st.integers(NO_NUMA_NODE, 12), devices, max_size=3),
    st.none() | st.binary(max_size=5),
)
checkpoints = st.builds(
    DeviceManagerCheckpoint,
    st.none() | st.lists(entries, max_size=3).map(tuple),
    st.none() | st.dictionaries(names, devices, max_size=3),
)


@given(checkpoints)
def test_what_is_written_is_read_again(checkpoint: DeviceManagerCheckpoint) -> None:
    sealed = checkpoint.sealed()
    again = DeviceManagerCheckpoint.parse(sealed.encode())
    again.verify()
    assert again == sealed


@given(
    st.binary(max_size=60)
    | st.text('{}[]":,019null DatPodeviEnrsAcRp', max_size=60).map(str.encode)
)
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        checkpoint = DeviceManagerCheckpoint.parse(data)
    except CheckpointError:
        return
    assert checkpoint.encode()
