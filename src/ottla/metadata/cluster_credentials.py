"""Who may log in to the cluster by SCRAM: its users, and whoever has a delegation token (KIP-48).

Rules: what the newest image says, when somebody logs in; nothing of it is kept but what a token's HMAC was worked out
to. Owned by the node's listeners; tokens are worked out in threads.
"""

import hmac
from collections import Counter
from collections.abc import Callable
from functools import partial

from ottla.metadata.image import ClusterImage
from ottla.metadata.scram import credential_of
from ottla.security.delegation_tokens import DelegationTokenCache, is_expired
from ottla.security.principal import USER, parse_principal
from ottla.security.sasl.scram import ScramToken
from ottla.security.scram_credentials import MIN_ITERATIONS, Mechanism, ScramCredential


class ClusterCredentials:
    """The users and delegation tokens of the newest image (ScramUsers)."""

    def __init__(
        self,
        image: Callable[[], ClusterImage],
        cluster_id: Callable[[], str],
        now_ms: Callable[[], int],
        token_secret_key: str | None,
    ) -> None:
        """Image and cluster id are asked for when somebody logs in: listeners are there before them."""
        self._image = image
        self._cluster_id = cluster_id
        self._now_ms = now_ms
        self._token_secret_key = token_secret_key
        self._tokens = DelegationTokenCache(token_secret_key) if token_secret_key else None
        # What the salts of unknown users are made of, and of which users that was made.
        self._unknown_secret: tuple[object, bytes] | None = None
        # How many iterations the users of each mechanism have mostly, and of which users that was found.
        self._usual_iterations: tuple[object, dict[int, int]] | None = None

    def user(self, mechanism: Mechanism, name: str) -> ScramCredential | None:
        return credential_of(self._image(), mechanism, name)

    def token(self, mechanism: Mechanism, token_id: str) -> ScramToken | None:
        record = self._image().delegation_tokens.get(token_id)
        if record is None or self._tokens is None or is_expired(record, self._now_ms()):
            return None
        owner = parse_principal(record.owner)
        if owner is None or owner.type != USER:
            return None  # SCRAM proves users: whoever else it is would become one of that name
        return ScramToken(
            owner.name,
            partial(self._tokens.credential, mechanism, token_id),
            min(record.max_timestamp, record.expiration_timestamp),
        )

    def unknown_secret(self) -> bytes:
        """Of what all nodes know and strangers do not: two nodes tell them the same of a user that there is not.

        The cluster's id alone would not do, because everybody is told it. Where there is no secret for tokens, what is
        kept of the first user is one; who changes that user's password changes these salts.
        """
        users = self._image().scram
        if self._unknown_secret is None or self._unknown_secret[0] is not users:
            key = (self._token_secret_key or "").encode()
            if not key and users:
                key = users[min(users)].server_key
            self._unknown_secret = users, hmac.digest(key, self._cluster_id().encode(), "sha256")
        return self._unknown_secret[1]

    def unknown_iterations(self, mechanism: Mechanism) -> int:
        """As many as most users of the mechanism have: by another number strangers would know who there is not."""
        users = self._image().scram
        if self._usual_iterations is None or self._usual_iterations[0] is not users:
            counts: dict[int, Counter[int]] = {}
            for user in users.values():
                counts.setdefault(user.mechanism, Counter())[user.iterations] += 1
            usual = {kind: min(found, key=lambda n: (-found[n], n)) for kind, found in counts.items()}
            self._usual_iterations = users, usual
        return max(MIN_ITERATIONS, self._usual_iterations[1].get(mechanism.type, MIN_ITERATIONS))
