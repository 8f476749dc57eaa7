"""The images of containers: present, or pulled."""

from __future__ import annotations

from pinfold.adapters.cri import cri_pb2 as pb
from pinfold.adapters.cri.client import PULL, CriClient, CriError
from pinfold.core.pod.workload import Process, PullPolicy, pull_policy
from pinfold.ports.errors import RuntimeFailedError


async def ensure_image(client: CriClient, process: Process, sandbox: pb.PodSandboxConfig) -> str:
    """Make sure that a container's image is there, as its pull policy says; returns its id.

    ``sandbox`` is that of its pod, which need not be there yet.

    Raises:
        RuntimeFailedError: it has none, it is not there and may not be pulled, or could not be.
    """
    image = await _present(client, process, sandbox, process.image or "")
    if process.security.run_as_non_root:
        await _check_user(client, process, pb.ImageSpec(image=image))
    return image


async def _check_user(client: CriClient, process: Process, image: pb.ImageSpec) -> None:
    """See that a container which must not run as root does not; the texts are the kubelet's."""
    user = process.security.run_as_user
    if user is None:
        answer = await client.call(
            "ImageStatus", pb.ImageStatusRequest(image=image), pb.ImageStatusResponse
        )
        if not answer.image.HasField("uid") and answer.image.username:
            raise RuntimeFailedError(
                "container has runAsNonRoot and image has non-numeric user "
                f"({answer.image.username}), cannot verify user is non-root",
                "give runAsUser",
            )
        # Without a user of its own, the image's is root.
        if answer.image.uid.value == 0:
            raise RuntimeFailedError(
                "container has runAsNonRoot and image will run as root", "give runAsUser"
            )
    elif user == 0:
        raise RuntimeFailedError(
            "container's runAsUser breaks non-root policy", "give another runAsUser"
        )


async def _present(
    client: CriClient, process: Process, sandbox: pb.PodSandboxConfig, name: str
) -> str:
    if not name:
        raise RuntimeFailedError(
            "a container without an image cannot be run by a container runtime", "give it an image"
        )
    image = pb.ImageSpec(image=name)
    policy = pull_policy(process)
    if policy is not PullPolicy.ALWAYS:
        answer = await client.call(
            "ImageStatus", pb.ImageStatusRequest(image=image), pb.ImageStatusResponse
        )
        if answer.HasField("image") and answer.image.id:
            return answer.image.id
        if policy is PullPolicy.NEVER:
            raise RuntimeFailedError(
                f"image {name} is not present and imagePullPolicy is Never",
                "pull or import it into the runtime",
            )
    request = pb.PullImageRequest(image=image, sandbox_config=sandbox)
    try:
        pulled = await client.call("PullImage", request, pb.PullImageResponse, timeout=PULL)
    except CriError as error:
        raise CriError(
            f"image {name} could not be pulled: {error}",
            "imagePullPolicy IfNotPresent uses one that is present",
            code=error.code,
        ) from None
    if not pulled.image_ref:
        raise client.garbage("PullImage", "no reference")
    return pulled.image_ref
