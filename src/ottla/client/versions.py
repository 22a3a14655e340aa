"""Which version of each request to use with one broker: the highest that both sides know (KIP-35)."""

from collections.abc import Mapping
from typing import Any

from ottla.client.errors import UnsupportedVersion


class ApiRanges:
    """What one broker said it serves."""

    __slots__ = ("_ranges", "features", "features_epoch")

    def __init__(
        self,
        ranges: Mapping[int, tuple[int, int]],
        features: Mapping[str, int] | None = None,
        features_epoch: int = -1,
    ) -> None:
        self._ranges = dict(ranges)
        self.features = dict(features or {})  # the levels in force in the cluster (KIP-584)
        self.features_epoch = features_epoch

    @classmethod
    def from_response(cls, response: Any) -> "ApiRanges":
        ranges = {key.api_key: (key.min_version, key.max_version) for key in response.api_keys}
        levels = {feature.name: feature.max_version_level for feature in response.finalized_features}
        return cls(ranges, levels, response.finalized_features_epoch)

    def of(self, api_key: int) -> tuple[int, int] | None:
        return self._ranges.get(api_key)

    def version_for(self, request_type: Any, at_most: int | None = None) -> int:
        """The version to speak; UnsupportedVersion if there is none in common."""
        served = self._ranges.get(request_type.API_KEY)
        if served is None:
            raise UnsupportedVersion(f"the broker does not serve {request_type.NAME}")
        ours: range = request_type.VALID_VERSIONS
        highest = min(served[1], ours[-1] if at_most is None else min(ours[-1], at_most))
        if highest < max(served[0], ours[0]):
            raise UnsupportedVersion(
                f"{request_type.NAME}: the broker serves versions {served[0]} to {served[1]}, "
                f"this client can use {ours[0]} to {ours[-1] if at_most is None else at_most}"
            )
        return highest
