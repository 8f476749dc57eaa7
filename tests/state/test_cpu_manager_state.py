"""The CPU manager's file: recorded bytes and words, damage, round trips."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from pinfold.core.kubelet.versions import RELEASES, V1_34, V1_36, KubeletVersion
from pinfold.core.values.cpuset import CPUSet
from pinfold.state.checksum import fnv1a32
from pinfold.state.cpu_manager_state import (
    CheckpointError,
    CPUManagerCheckpoint,
    detect_layout,
    parse_kubelet_cpuset,
)
from pinfold.state.go_json import GoJSONError, encode_string, parse, quote
from pinfold.state.layouts import CPU_STATE, Layout
from pinfold.state.ledger import Ledger
from pinfold.state.restore import (
    RestoreError,
    restore,
    to_checkpoint,
    to_ledger,
    to_v1,
)
from tests.scenes.state_vectors import VECTORS, replay, sample


@pytest.mark.parametrize("name", ["checkpoint", "checkpoint_136"])
def test_sample_of_recorded_files(name: str) -> None:
    tally = replay(sample(name), "checkpoint")
    assert tally.failures == []
    assert tally.passed > 100


@pytest.mark.skipif(not VECTORS.exists(), reason="the whole recording is not at hand")
def test_whole_recording() -> None:
    tally = replay(VECTORS / "checkpoint.jsonl", "checkpoint")
    assert tally.failures == []
    assert tally.passed == 687


@pytest.mark.skipif(not VECTORS.exists(), reason="the whole recording is not at hand")
@pytest.mark.parametrize(("name", "count"), [("checkpoint_136", 463), ("checkpoint_changed", 89)])
def test_recordings_of_newer_kubelets(name: str, count: int) -> None:
    topologies = VECTORS / "topologies.jsonl"
    tally = replay(VECTORS / "1.36" / f"{name}.jsonl", "checkpoint", topologies)
    assert tally.failures == []
    assert tally.passed == count


def test_fresh_files_of_a_live_kubelet() -> None:
    static = to_checkpoint(Ledger("static", CPUSet([0, 1])))
    assert static.encode() == (
        b'{"policyName":"static","defaultCpuSet":"0-1","checksum":1636926438}'
    )
    none = to_checkpoint(Ledger("none", CPUSet()))
    assert none.encode() == b'{"policyName":"none","defaultCpuSet":"","checksum":1353318690}'


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        (b"", "unexpected end of JSON input"),
        (b'{"policyName":"static"', "unexpected end of JSON input"),
        (b"not json", "invalid character 'o' in literal null (expecting 'u')"),
        (
            b'{"policyName":"static","defaultCpuSet":"0-1","checksum":1}',
            "checkpoint is corrupted",
        ),
        (
            b'{"policyName":"none","defaultCpuSet":""}',
            'configured policy "static" differs from state checkpoint policy "none"',
        ),
        (b"null", 'configured policy "static" differs from state checkpoint policy ""'),
        (
            b'{"policyName":"static","defaultCpuSet":"1--5"}',
            'could not parse default cpu set "1--5": invalid range "1--5" (1 > -5)',
        ),
        (
            b'{"policyName":"static","defaultCpuSet":"99999999999999999999"}',
            (
                'could not parse default cpu set "99999999999999999999": strconv.Atoi: '
                'parsing "99999999999999999999": value out of range'
            ),
        ),
    ],
)
def test_the_kubelets_words(file: bytes, reason: str) -> None:
    for version in (V1_34, V1_36):
        with pytest.raises(RestoreError) as refusal:
            restore(file, "static", path="/s", form=CPU_STATE.at(version))
        assert str(refusal.value) == (
            f"could not restore state from checkpoint: {reason}, please drain this node and "
            'delete the CPU manager checkpoint file "/s" before restarting Kubelet'
        )


@pytest.mark.parametrize(
    ("file", "older", "newer"),
    [
        (
            b'{"policyName":"static","defaultCpuSet":"0","entries":{"p":{"c":"1"}},"checksum":1}',
            "checkpoint is corrupted",
            (
                "json: cannot unmarshal object into Go struct field "
                "CPUManagerCheckpointV1.entries of type string"
            ),
        ),
        (
            b'{"policyName":"static","defaultCpuSet":"0","entries":{"id":"1"}}',
            "error migrating v1 checkpoint state to v2 checkpoint state: containerID 'id'",
            "failed to migrate checkpoint from v1 to v2: containerID 'id'",
        ),
    ],
)
def test_words_that_differ_between_kubelets(file: bytes, older: str, newer: str) -> None:
    for version, reason in ((V1_34, older), (V1_36, newer)):
        with pytest.raises(RestoreError) as refusal:
            restore(file, "static", path="/s", form=CPU_STATE.at(version))
        assert f"from checkpoint: {reason}" in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"[1,]", "invalid character ']' looking for beginning of value"),
        (b"[1 2]", "invalid character '2' after array element"),
        (b'{"a" 1}', "invalid character '1' after object key"),
        (b'{"a":1 "b":2}', "invalid character '\"' after object key:value pair"),
        (b'{"a":1,}', "invalid character '}' looking for beginning of object key string"),
        (b"{a:1}", "invalid character 'a' looking for beginning of object key string"),
        (b"1 2", "invalid character '2' after top-level value"),
        (b"-x", "invalid character 'x' in numeric literal"),
        (b"1.x", "invalid character 'x' after decimal point in numeric literal"),
        (b"1e+x", "invalid character 'x' in exponent of numeric literal"),
        (b"01", "invalid character '1' after top-level value"),
        (b'"\n"', "invalid character '\\n' in string literal"),
        (b'"\\x"', "invalid character 'x' in string escape code"),
        (b'"\\u12g4"', "invalid character 'g' in \\u hexadecimal character escape"),
        (b"trve", "invalid character 'v' in literal true (expecting 'u')"),
        (b"\xc3\xa4", "invalid character '\u00c3' looking for beginning of value"),
        (b"\x00", "invalid character '\\x00' looking for beginning of value"),
        (b"'", "invalid character '\\'' looking for beginning of value"),
        (b'"abc', "unexpected end of JSON input"),
        (b"tru", "unexpected end of JSON input"),
        (b"1.", "unexpected end of JSON input"),
        (b"[" * 10_001 + b"]" * 10_001, "exceeded max depth"),
    ],
)
def test_words_of_gos_decoder(text: bytes, words: str) -> None:
    with pytest.raises(GoJSONError) as refusal:
        parse(text)
    assert str(refusal.value) == words


def test_nesting_below_the_limit_is_no_problem() -> None:
    deep = b'{"x":' + b"[" * 9_990 + b"]" * 9_990 + b',"policyName":"none"}'
    assert CPUManagerCheckpoint.parse(deep, Layout.V2).policy_name == "none"


@pytest.mark.parametrize(
    ("file", "words"),
    [
        (
            b'{"policyName":1}',
            (
                "json: cannot unmarshal number into Go struct field "
                "CPUManagerCheckpoint.policyName of type string"
            ),
        ),
        (
            b'{"defaultCpuSet":true}',
            (
                "json: cannot unmarshal bool into Go struct field "
                "CPUManagerCheckpoint.defaultCpuSet of type string"
            ),
        ),
        (
            b'{"checksum":-1}',
            (
                "json: cannot unmarshal number -1 into Go struct field "
                "CPUManagerCheckpoint.checksum of type checksum.Checksum"
            ),
        ),
        (
            b'{"entries":[]}',
            (
                "json: cannot unmarshal array into Go struct field "
                "CPUManagerCheckpoint.entries of type map[string]map[string]string"
            ),
        ),
        (b"[]", "json: cannot unmarshal array into Go value of type state.CPUManagerCheckpoint"),
    ],
)
def test_wrong_types(file: bytes, words: str) -> None:
    with pytest.raises(CheckpointError) as refusal:
        CPUManagerCheckpoint.parse(file, Layout.V2)
    assert str(refusal.value) == words


def test_null_entries_have_another_checksum_than_none() -> None:
    absent = CPUManagerCheckpoint.parse(b'{"policyName":"static"}', Layout.V2)
    null = CPUManagerCheckpoint.parse(b'{"policyName":"static","entries":null}', Layout.V2)
    assert "map[]" in absent.hash_input()
    assert "<nil>" in null.hash_input()


def test_keys_match_in_any_case_and_may_come_twice() -> None:
    file = b'{"POLICYNAME":"a","entries":{"p":{"x":"1"}},"policyName":"b","Entries":{"q":{}}}'
    checkpoint = CPUManagerCheckpoint.parse(file, Layout.V2)
    assert checkpoint.policy_name == "b"
    assert checkpoint.entries == {"p": {"x": "1"}, "q": {}}


# The checksums of these two are facts that the Kubernetes project has published with its tests.
V3 = (
    b'{"policyName":"static","defaultCPUSet":"1-2","entries":{"pod1":{"container1":"5-6",'
    b'"container2":"3-4"}},"podEntries":{"pod2":{"cpuSet":"7-9"}},"checksum":2284712151}'
)
V4 = (
    b'{"data":"{\\"policyName\\":\\"none\\",\\"defaultCPUSet\\":\\"4-6\\"}",'
    b'"dataChecksum":657950972}'
)


def test_v3_and_v4_are_read() -> None:
    assert detect_layout(V3) is Layout.V3
    v3 = CPUManagerCheckpoint.parse(V3, Layout.V3)
    v3.verify()
    assert v3.pod_entries == {"pod2": "7-9"}
    assert detect_layout(V4) is Layout.V4
    v4 = CPUManagerCheckpoint.parse(V4, Layout.V4)
    v4.verify()
    assert to_ledger(v4).default == CPUSet([4, 5, 6])


@pytest.mark.parametrize("layout", [Layout.V3, Layout.V4])
def test_what_is_empty_is_not_written(layout: Layout) -> None:
    written = to_checkpoint(Ledger("static", CPUSet([0])), layout)
    outer = json.loads(written.encode())
    content = json.loads(outer["data"]) if layout is Layout.V4 else outer
    assert content.keys() - {"checksum"} == {"policyName", "defaultCpuSet"}


def test_v4_holds_what_v2_does_for_older_kubelets() -> None:
    ledger = Ledger("static", CPUSet([0]), {"p": {"c": CPUSet([1])}}, bubbles={"p": CPUSet([1, 2])})
    written = to_checkpoint(ledger, Layout.V4)
    file = json.loads(written.encode())
    content, _ = json.loads(file.pop("data")), file.pop("dataChecksum")
    assert file == json.loads(to_checkpoint(ledger, Layout.V2).encode())
    del file["checksum"]
    assert content == file | {"podEntries": {"p": {"cpuSet": "1-2"}}}
    assert CPUManagerCheckpoint.parse(written.encode(), Layout.V4) == written


def test_fnv_reference_values() -> None:
    assert fnv1a32(b"") == 0x811C9DC5
    assert fnv1a32(b"foobar") == 0xBF9CF968


def test_go_strings() -> None:
    assert encode_string('<a>&"\\\b\f\n\r\t\x01\x7f\u2028\u2029\ud800\u00e4') == (
        '"\\u003ca\\u003e\\u0026\\"\\\\\\b\\f\\n\\r\\t\\u0001\x7f\\u2028\\u2029\\ufffd\u00e4"'
    )
    assert quote('a"\\\a\x00\u2028\u00e4\U000e0001') == (
        '"a\\"\\\\\\a\\x00\\u2028\u00e4\\U000e0001"'
    )
    # Wrong bytes and lone surrogates become U+FFFD, one for each byte.
    assert parse(b'"\xe2\x80 \\ud83d\\ude00 \\ud83d x"') == "\ufffd\ufffd \U0001f600 \ufffd x"


texts = st.text(max_size=6) | st.sampled_from(["<&>", 'quo"te', "\u2028", "\x00"])
names = texts.filter(lambda text: not any("\ud800" <= c <= "\udfff" for c in text))
sets = st.integers(1, (1 << 70) - 1).map(CPUSet.from_mask)
ledgers = st.builds(
    Ledger,
    st.sampled_from(["none", "static"]),
    sets,
    st.dictionaries(names, st.dictionaries(names, sets, min_size=1, max_size=3), max_size=4),
)
kubelets = st.tuples(st.sampled_from([one.version for one in RELEASES]), st.booleans())


@given(ledgers, st.dictionaries(names, sets, max_size=3), kubelets)
def test_what_is_written_is_read_again(
    ledger: Ledger, bubbles: dict[str, CPUSet], kubelet: tuple[KubeletVersion, bool]
) -> None:
    form = CPU_STATE.at(kubelet[0], pod_level=kubelet[1])
    ledger = replace(ledger, bubbles=bubbles if form.has_pods else {})
    written = to_checkpoint(ledger, form.writes)
    file = written.encode()
    assert detect_layout(file) in (form.writes, *([Layout.V1] if not ledger.assignments else []))
    again = CPUManagerCheckpoint.parse(file, form.writes)
    again.verify(form)
    assert again == written
    assert to_ledger(again) == ledger
    assert restore(file, ledger.policy_name, form=form) == ledger


@given(ledgers)
def test_v1_round_trip(ledger: Ledger) -> None:
    ids = {
        f"{i}-{j}": (uid, name)
        for i, (uid, containers) in enumerate(ledger.assignments.items())
        for j, name in enumerate(containers)
    }
    file = to_v1(ledger, ids.items()).encode()
    assert restore(file, ledger.policy_name, ids) == ledger


FILE = (
    b'{"policyName":"static","defaultCpuSet":"0,3-7","entries":{"pod-uid":{"app":"1-2"},'
    b'"b":{"<x>":"8"}},"checksum":%d}'
)
VALID = FILE % CPUManagerCheckpoint.parse(FILE % 0, Layout.V2).computed_checksum()


@given(st.integers(0, len(VALID) - 1), st.integers(0, 255))
def test_no_changed_byte_goes_unnoticed(at: int, byte: int) -> None:
    """It is refused, or what the kubelet would take from it is the same."""
    damaged = VALID[:at] + bytes([byte]) + VALID[at + 1 :]
    try:
        ledger = restore(damaged, "static")
    except RestoreError:
        return
    # The one thing that a kubelet lets pass is a checksum of 0 (the key unreadable is that too).
    assert ledger == restore(VALID, "static")


@given(st.binary(max_size=80) | st.text(max_size=60).map(str.encode))
@example(b'{"entries":{"a":{"b":1e999}}}')
@example(b'{"checksum":' + b"9" * 5000 + b"}")
@example(b'{"defaultCpuSet":"' + b"0" * 5000 + b'"}')
@example(b'{"data":"{","dataChecksum":1}')
@example(b'{"podEntries":{"a":null,"b":{"cpuSet":"1-"}}}')
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for layout in Layout:
        try:
            checkpoint = CPUManagerCheckpoint.parse(data, layout)
            assert checkpoint.encode()
            assert checkpoint.computed_checksum() >= 0
            detect_layout(data)
            to_ledger(checkpoint)
        except CheckpointError:
            continue


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | texts,
        lambda inner: st.lists(inner) | st.dictionaries(texts, inner),
        max_leaves=15,
    )
)
def test_gos_json_is_json(value: object) -> None:
    text = json.dumps(value).encode()
    parse(text)


@given(st.text("0123456789-,+ ", max_size=12))
def test_cpu_lists_are_read_as_the_kubelet_does(text: str) -> None:
    try:
        cpus = parse_kubelet_cpuset(text)
    except CheckpointError:
        return
    assert parse_kubelet_cpuset(str(cpus)) == cpus
    if "+" not in text and text:
        assert cpus == CPUSet.parse(text)
