"""Images: present, or pulled."""

from __future__ import annotations

from pinfold.adapters.cri import cri_pb2 as pb
from pinfold.adapters.cri.client import PULL, CriClient, CriError
from pinfold.core.workload import Process, PullPolicy, pull_policy
from pinfold.node.port_errors import RuntimeFailedError


async def ensure_image(
    client: CriClient, process: Process, sandbox: pb.PodSandboxConfig
) -> pb.ImageSpec:
    """Make sure that a container's image is there, as its pull policy says.

    Raises:
        RuntimeFailedError: it has none, it is not there and may not be pulled, or could not be.
    """
    name = process.image or ""
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
            return pb.ImageSpec(image=answer.image.id, user_specified_image=name)
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
    return pb.ImageSpec(image=pulled.image_ref, user_specified_image=name)
