"""No secret in a log, a representation, a traceback or a file of the coordinator: searched for in every form.

The limits: secrets are those that sites have on purpose, and single sites' prototypes; what follows from what the
coordinator is given is searched elsewhere (test_recording.py and its neighbours). Shares that a masked sum releases
are the coordinator's by design, and so in its files; they are in no log, and no site's.
"""

from __future__ import annotations

import base64
import inspect
import itertools
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives import serialization

from agreement import Method, PfplSection, Protection
from algorithms.pfpl import Weighting
from crypto.keys import KEY_BYTES
from crypto.pairwise.attempt import SharePair
from protoseal.simulation.local_federation import LocalFederation, LocalSite
from protoseal_wire.messages import Phase, PhaseKey
from secure_client.protocol.journal import Journal
from secure_client.protocol.setup import Party, Setup
from secure_client.session import Session
from tests.protoseal.audit.secret_places import Logs, Needles, Provoking, coordinator_files, said_by
from tests.support.small import small_data
from tests.support.summed import method_agreement

OPENED = "released seed"
"""Beginning of the names of secrets that the coordinator is given in a masked sum."""
SPARSE = {"complete_up_to": 3, "max_colluding": 0.0, "max_dropped": 0.0}
ROTATED = {"pfpl": PfplSection(weighting=Weighting.COMPLEMENT)}
RUNS: dict[str, tuple[Method, Protection, dict[str, Any]]] = {
    "feddbp-masked": (Method.FEDDBP, Protection.MASKED, {}),
    "feddbp-masked-sparse": (Method.FEDDBP, Protection.MASKED, {"masking": SPARSE}),
    "pfpl-rotated": (Method.PFPL, Protection.MASKED, ROTATED),
    "pfpl-masked": (Method.PFPL, Protection.MASKED, {}),
    "pfpl-ckks": (Method.PFPL, Protection.CKKS, {}),
    "fedpc-ckks": (Method.FEDPC, Protection.CKKS, {}),
    "fedplcc-masked": (Method.FEDPLCC, Protection.MASKED, {}),
    "fedplcc-ckks": (Method.FEDPLCC, Protection.CKKS, {}),
}


@dataclass
class Scene:
    """A run with failures provoked at every step, what was secret in it, and what showed."""

    needles: Needles = field(default_factory=Needles)
    shown: dict[str, bytes] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)

    def found(self) -> set[tuple[str, str]]:
        """Return the places with secrets, without the shares and seeds in the coordinator's files that it may have."""
        where = {**self.shown, **self.files}
        found = {(place, name) for place, content in where.items() for name in self.needles.found_in(content)}
        return {(p, n) for p, n in found if not (p in self.files and n.startswith(OPENED))}


def play(
    method: Method, protection: Protection, folder: Path, patch: pytest.MonkeyPatch, **changes: Any
) -> Scene:
    """Run it; all that sites keep secret is collected where it is made.

    What takes time takes whole seconds: some digits of a measured one would be a prototype's by chance.
    """
    scene, tracebacks, seconds = Scene(), list[str](), itertools.count()
    patch.setattr(time, "perf_counter", lambda: float(next(seconds)))
    collect(scene.needles, patch)
    agreement = method_agreement(method, protection, **changes)
    with (
        Logs() as logs,
        LocalFederation(agreement, small_data(agreement), record=True, state=folder) as federation,
    ):
        texts: set[str] = set()  # most objects say the same each time
        for site in federation.sites:
            add_identity(scene.needles, site)
            site.transport = Watching(scene, texts, federation, site, tracebacks)  # type: ignore[assignment]
        federation.run()
        scene.files = coordinator_files(federation)
    scene.shown = {
        place: "\n".join(lines).encode()
        for place, lines in (("logs", logs.lines), ("objects", texts), ("tracebacks", tracebacks))
    }
    return scene


class Watching(Provoking):
    """Looks at both parties' objects, and takes the prototypes down, after each answer."""

    def __init__(
        self,
        scene: Scene,
        texts: set[str],
        federation: LocalFederation,
        site: LocalSite,
        tracebacks: list[str],
    ) -> None:
        super().__init__(site.transport, site.session, site.name, tracebacks)
        self._scene, self._texts, self._federation, self._learner = scene, texts, federation, site.learner

    def upload(self, key: PhaseKey, content: bytes) -> None:
        super().upload(key, content)
        last = self._site == self._federation.sites[-1].name
        self._texts |= said_by([self._session, *([self._federation.coordinator] if last else [])])
        if key.phase is Phase.PRESENCE:
            rows, _ = self._learner.values.latest()
            bound = self._federation.agreement.norm_bound
            self._scene.needles.add_values(f"prototypes of {self._site}", rows, bound)
            if self._federation.agreement.clusters:
                local = self._learner.values.local().rows
                self._scene.needles.add_values(f"local prototypes of {self._site}", local, bound)


def collect(needles: Needles, patch: pytest.MonkeyPatch) -> None:
    """Collect everything that a journal encrypts, and every pair of shares that is made or opened."""
    kept, made = Journal.put_secret, SharePair.__post_init__

    def put_secret(journal: Journal, name: str, secret: bytes) -> None:
        kept(journal, name, secret)
        if name.startswith("mask secrets"):
            add_attempt(needles, name, secret)
        elif (
            "own" not in name and name != "statement"
        ):  # a pair of shares is added below, a statement is public
            needles.add_secret(name, secret)

    def post_init(pair: SharePair) -> None:
        made(pair)
        needles.add_secret(f"{OPENED}'s share", pair.seed)
        needles.add_secret("a key's share", pair.key)

    patch.setattr(Journal, "put_secret", put_secret)
    patch.setattr(SharePair, "__post_init__", post_init)


def add_attempt(needles: Needles, name: str, secret: bytes) -> None:
    """Add mask key, share key and seed; the coordinator reconstructs the seed."""
    mask, share, seed = (secret[at : at + KEY_BYTES] for at in range(0, len(secret), KEY_BYTES))
    needles.add_secret(f"mask key of {name}", mask)
    needles.add_secret(f"share key of {name}", share)
    needles.add_secret(f"{OPENED} of {name}", seed)


def add_identity(needles: Needles, site: LocalSite) -> None:
    """Add the certificate's private key and the journal's key."""
    party: Party = site.session._party
    credentials, storage = party.credentials, inspect.getclosurevars(party.storage).nonlocals["key"]
    scalar = credentials._key.private_numbers().private_value.to_bytes(KEY_BYTES, "big")
    needles.add_secret(f"certificate key of {site.name}", scalar)
    needles.add_secret(f"storage key of {site.name}", storage)
    der = credentials._key.private_bytes(
        serialization.Encoding.DER, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    needles.add_secret(f"certificate key of {site.name} as DER", der[-100:-68])


@pytest.mark.parametrize(
    ("method", "protection", "changes"),
    RUNS.values(),
    ids=RUNS,
)
def test_no_secret_shows(
    method: Method,
    protection: Protection,
    changes: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = play(method, protection, tmp_path, monkeypatch, **changes)
    kinds = " ".join(sorted(set(scene.needles.named.values())))
    expected = ["channel key", "certificate key", "storage key", "prototypes"]
    agreement = method_agreement(method, protection, **changes)
    assert ("group secret" in kinds) is agreement.needs_group_secret
    if agreement.plan.masked:
        expected += ["mask key", "share key", "a key's share", OPENED]
    if method is Method.FEDPLCC:
        expected += ["local prototypes"]
    assert all(kind in kinds for kind in expected)
    assert all(scene.shown.values())
    assert {"coordinator.sqlite", "coordinator.sqlite-wal"} <= scene.files.keys()
    assert scene.found() == set()


# The same search finds what is there


def test_released_shares_show_in_coordinators_files_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search finds released shares, and so has to leave them out of a file in which it also finds other secrets."""
    scene = play(Method.FEDDBP, Protection.MASKED, tmp_path, monkeypatch, rounds=1)
    in_files = set.union(*(scene.needles.found_in(content) for content in scene.files.values()))
    assert {name.partition(",")[0] for name in in_files} == {f"{OPENED}'s share"}


def test_search_plain_prototypes_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = play(Method.FEDDBP, Protection.PLAIN, tmp_path, monkeypatch, rounds=1)
    assert ("coordinator.sqlite-wal", "prototypes of clinic-a, float64, raw") in scene.found()


def _log(session: Session, secret: bytes) -> None:
    logging.getLogger("protoseal.site").debug("the key is %s", secret.hex())


def _log_traceback(session: Session, secret: bytes) -> None:
    try:
        raise ValueError(str(list(secret)))
    except ValueError:
        logging.getLogger("protoseal.site").exception("that went wrong")


def _log_argument(session: Session, secret: bytes) -> None:
    """Log a secret as an argument, which handlers get beside a record's text."""
    logging.getLogger("protoseal.site").debug("%.0s", base64.b64encode(secret).decode())


def _raise(session: Session, secret: bytes) -> None:
    raise ValueError(f"not with {secret!r}")


@pytest.mark.parametrize(
    ("place", "leak"),
    [("logs", _log), ("logs", _log_traceback), ("logs", _log_argument), ("tracebacks", _raise)],
)
def test_search_logged_channel_key_is_found(
    place: str,
    leak: Callable[[Session, bytes], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Shown as soon as a site is asked what does not decode."""
    real = Session._answer_new

    def leaking(session: Session, key: PhaseKey, request: bytes) -> bytes:
        try:
            return real(session, key, request)
        except Exception:
            leak(session, session._setup._private_channel_key())
            raise

    monkeypatch.setattr(Session, "_answer_new", leaking)
    scene = play(Method.FEDDBP, Protection.MASKED, tmp_path, monkeypatch, rounds=1)
    assert {(where, name.partition(",")[0]) for where, name in scene.found()} == {(place, "channel key")}


def test_search_unredacted_repr_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search reaches an object through private attributes."""
    monkeypatch.setattr(Setup, "__repr__", lambda setup: f"Setup({setup._private_channel_key().hex()})")
    scene = play(Method.FEDDBP, Protection.MASKED, tmp_path, monkeypatch, rounds=1)
    # Half of a key may have no letters, and is then the same in capitals.
    assert {(where, name.lower()) for where, name in scene.found()} == {("objects", "channel key, hex")}


def test_search_stray_file_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Journal.put_secret

    def spilling(journal: Journal, name: str, secret: bytes) -> None:
        kept(journal, name, secret)
        if name == "channel key":
            (tmp_path / "dump.txt").write_text(secret.hex().upper(), encoding="ascii")

    monkeypatch.setattr(Journal, "put_secret", spilling)
    scene = play(Method.FEDDBP, Protection.MASKED, tmp_path, monkeypatch, rounds=1)
    assert scene.found() == {("dump.txt", "channel key, HEX")}


SECRET = bytes(range(100, 132))
FORMS: dict[str, Callable[[bytes], bytes]] = {
    "raw": bytes,
    "half of it": lambda secret: secret[16:],
    "hex": lambda secret: secret.hex().encode(),
    "HEX": lambda secret: secret.hex().upper().encode(),
    "base64": base64.b64encode,
    "base64 for URLs": base64.urlsafe_b64encode,
    "base64 in a longer one": lambda secret: base64.b64encode(b"x" + secret + b"yz"),
    "base64 in another place": lambda secret: base64.b64encode(b"xy" + secret + b"z"),
    "a list": lambda secret: str(list(secret)).encode(),
    "Python's text": lambda secret: repr(secret).encode(),
    "a number": lambda secret: str(int.from_bytes(secret, "big")).encode(),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("before", range(9))
def test_needles_every_form_is_found_at_any_offset(form: str, before: int) -> None:
    needles = Needles()
    needles.add_secret("it", SECRET)
    content = b"." * before + FORMS[form](SECRET) + b"...."
    assert needles.found_in(content)
    assert not needles.found_in(b"." * before + FORMS[form](bytes(range(40, 72))) + b"....")
    assert not needles.found_in(content[:8])


@pytest.mark.parametrize("bound", [1.0, 7.0])
@pytest.mark.parametrize("kind", [np.float64, np.float32])
def test_needles_rows_are_found_as_bytes_and_text(kind: type[np.floating[Any]], bound: float) -> None:
    rows = np.random.default_rng(0).standard_normal((2, 8))
    needles = Needles()
    needles.add_values("rows", rows, 7.0)
    scaled = (rows / bound).astype(kind)
    for content in (scaled.tobytes(), str(scaled.tolist()).encode(), repr(scaled).encode()):
        assert needles.found_in(content)
    assert not needles.found_in((2.5 * scaled).tobytes() + repr(2.5 * scaled).encode())
