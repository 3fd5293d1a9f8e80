"""``protoseal client check``: everything that a run needs, tried without sending any data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from algorithms.linear import Bool
from crypto.errors import CryptoError
from crypto.pki.fields import load_certificate
from protoseal.config import Agreement, Method, SiteConfig
from secure_client.app import open_party
from secure_client.build import build_learner
from secure_client.data import load_site_data
from secure_client.errors import SiteError
from secure_client.learner import choose_device
from secure_client.setup import Party
from secure_client.transport import GrpcTransport

_RETRY_SECONDS = 5.0


@dataclass(frozen=True)
class Finding:
    """One thing that was tried, and what came of it."""

    what: str
    ok: bool
    detail: str


def check_site(config: SiteConfig, passphrase: bytes) -> Iterator[Finding]:
    """Certificate, agreement, data and model, coordinator: each tried even if another failed."""
    yield _tried("certificate", lambda: _certificate(open_party(config, passphrase)))
    yield _tried("agreement", lambda: f"run {config.agreement.run}, hash {config.agreement.hash().hex()}")
    yield _tried("data and model", lambda: _learner(config))
    yield _tried("coordinator", lambda: _reach(config, open_party(config, passphrase)))


def _tried(what: str, attempt: Callable[[], str]) -> Finding:
    try:
        return Finding(what, True, attempt())
    except (CryptoError, SiteError) as error:
        return Finding(what, False, str(error))


def _certificate(party: Party) -> str:
    ends = load_certificate(party.credentials.certificate_pem).not_valid_after_utc
    days = (ends - datetime.now(UTC)).days
    return f"{party.credentials.identity}, valid for {days} more days"


def _learner(config: SiteConfig) -> str:
    agreement = config.agreement
    data = load_site_data(config.data, config.data_root, agreement)
    learner = build_learner(agreement, config.name, data, model=config.model_spec, device=config.device)
    _, counts = learner.prototypes()
    missing: Bool = counts == 0
    absent = [name for name, out in zip(agreement.classes, missing, strict=True) if out]
    per_class = ", ".join(f"{n}: {c}" for n, c in zip(agreement.classes, counts, strict=True) if c)
    without = f"; no samples of {', '.join(absent)}" if absent else ""
    samples = f"{data.train_samples} training samples ({per_class}){without}"
    model = f"{config.model_spec} on {choose_device(config.device)}"
    return f"{samples}; {model}{_averaged(agreement)}"


def _averaged(agreement: Agreement) -> str:
    """What of the model leaves the site, where the method averages some of it; the learner has its agreed size."""
    if agreement.method is not Method.FEDPC:
        return ""
    fedpc = agreement.fedpc
    return (
        f"; {fedpc.extractor_parameters:,} parameters and {fedpc.extractor_buffers:,} buffers of it are averaged,"
        " its classifier stays here"
    )


def _reach(config: SiteConfig, party: Party) -> str:
    transport = GrpcTransport(
        config.coordinator,
        party.credentials,
        party.trust,
        config.agreement.run,
        party.name,
        retry_seconds=_RETRY_SECONDS,
    )
    try:
        transport.check()
    finally:
        transport.close()
    return f"{config.coordinator} answers over mutual TLS"
