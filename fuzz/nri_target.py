"""The NRI socket: whatever a runtime sends, it is read, answered or refused, and held in bounds."""

from __future__ import annotations

from typing import Final

from google.protobuf.message import DecodeError

from fuzz.engine import Target
from pinfold.adapters.nri import nri_pb2 as nri
from pinfold.adapters.nri import ttrpc_pb2 as envelope
from pinfold.adapters.nri.frames import (
    FramingError,
    Message,
    MessageReader,
    MessageType,
    Splitter,
    encode_message,
)
from pinfold.adapters.nri.messages import seen_container, seen_sandbox, update_messages
from pinfold.ports.nri import Container, ContainerUpdate, Resources


def run_nri(data: bytes) -> None:
    """Take the bytes apart at once and one by one, and read every message that is in them."""
    at_once = _read([data])
    if _read([data[at : at + 1] for at in range(len(data))]) != at_once:
        raise ValueError("what is read depends on how it is cut")
    for message in at_once:
        try:
            request = envelope.Request.FromString(message.body)
            _use(request.payload)
        except DecodeError:
            continue


def _read(pieces: list[bytes]) -> list[Message]:
    splitter, reader, messages = Splitter(), MessageReader(), list[Message]()
    try:
        for piece in pieces:
            for _connection, inner in splitter.feed(piece):
                messages += reader.feed(inner)
    except FramingError:
        messages.append(Message(0, 0))
    return messages


def _use(payload: bytes) -> None:
    for kind in (nri.CreateContainerRequest, nri.StateChangeEvent, nri.UpdateContainerRequest):
        try:
            event = kind.FromString(payload)
        except DecodeError:
            continue
        seen_sandbox(event.pod)
        _back(seen_container(event.container))


def _back(container: Container) -> None:
    """What a runtime may say of resources, it can be told as well."""
    (message,) = update_messages([ContainerUpdate(container.id, container.resources)])
    resources = Resources() if not message.HasField("linux") else container.resources
    if message.linux.resources.cpu.cpus != resources.cpus:
        raise ValueError("the CPUs do not come through")


def _seeds() -> list[bytes]:
    container = nri.Container(id="c", pod_sandbox_id="p", name="c", labels={"a": "b"}, pid=7)
    container.linux.resources.cpu.cpus = "0-3"
    container.linux.resources.cpu.shares.value = 1024
    container.linux.resources.cpu.quota.value = -1
    container.linux.resources.hugepage_limits.add(page_size="2MB", limit=1 << 21)
    pod = nri.PodSandbox(id="p", name="pod", uid="u", namespace="ns")
    pod.linux.cgroup_parent = "/kubepods"
    create = nri.CreateContainerRequest(pod=pod, container=container)
    change = nri.StateChangeEvent(event=nri.START_CONTAINER, pod=pod, container=container)
    seeds = []
    for method, payload in (("CreateContainer", create), ("StateChange", change)):
        body = envelope.Request(
            service="nri.pkg.api.v1alpha1.Plugin",
            method=method,
            payload=payload.SerializeToString(),
            timeout_nano=2_000_000_000,
        ).SerializeToString()
        seeds.append(encode_message(1, Message(1, MessageType.REQUEST, body)))
    return [*seeds, b"".join(seeds)]


NRI_TARGET: Final = Target(
    "nri",
    run_nri,
    _seeds,
    (b"CreateContainer", b"StateChange", b"\x00\x00\x00\x01", b"\x00\x40\x00\x0a", b"0-3"),
)
