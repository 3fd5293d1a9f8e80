"""``protoseal client check``: everything that a run needs, tried without sending any data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from algorithms.linear import Bool
from crypto.errors import CryptoError
from crypto.pki.fields import load_certificate
from protoseal.config import Agreement, SiteConfig
from secure_client.app import open_learner, open_party
from secure_client.build import build_initial_model, check_averaged
from secure_client.data import load_site_data
from secure_client.errors import BudgetError, SiteError
from secure_client.learner import choose_device
from secure_client.privacy.exact import open_exact
from secure_client.privacy.planned import planned_epsilon, planned_in_words
from secure_client.privacy.releases import NO_GUARANTEE, check_delta, open_releases
from secure_client.setup import Party
from secure_client.transport import GrpcTransport
from secure_client.units import units_at

_RETRY_SECONDS = 5.0


@dataclass(frozen=True)
class Finding:
    """One thing that was tried, and what came of it."""

    what: str
    ok: bool
    detail: str


def check_site(config: SiteConfig, passphrase: Callable[[], bytes]) -> Iterator[Finding]:
    """Agreement, model, data, certificate, coordinator: each tried even if another failed.

    What needs neither key nor network comes first: who drafts an agreement may have none yet. ``passphrase`` is asked
    twice, and may raise :class:`crypto.errors.CryptoError`. A cause that fails several is told with the first.
    """
    told: dict[str, str] = {}
    for each in _findings(config, passphrase):
        first = each.what if each.ok else told.setdefault(each.detail, each.what)
        yield each if first == each.what else Finding(each.what, False, f"for the same reason as {first}")


def _findings(config: SiteConfig, passphrase: Callable[[], bytes]) -> Iterator[Finding]:
    yield _tried("agreement", lambda: _agreement(config.agreement))
    model = _tried("model", lambda: _model(config))
    yield model
    if model.ok:
        yield _tried("data and model", lambda: _learner(config))
    else:
        yield _tried("data", lambda: _data(config))
    if config.agreement.privacy is not None or config.privacy is not None:
        yield _tried("privacy", lambda: _privacy(config))
    yield _tried("certificate", lambda: _certificate(open_party(config, passphrase())))
    yield _tried("coordinator", lambda: _reach(config, open_party(config, passphrase())))


def _tried(what: str, attempt: Callable[[], str]) -> Finding:
    try:
        return Finding(what, True, attempt())
    except (CryptoError, SiteError) as error:
        return Finding(what, False, str(error))


def _agreement(agreement: Agreement) -> str:
    return f"run {agreement.run}: {agreement.summary}; hash {agreement.hash().hex()}"


def _privacy(config: SiteConfig) -> str:
    """What the run takes of the budget, and what remains; the ledger is begun if there is none."""
    agreement, own = config.agreement, config.privacy
    exact = open_exact(agreement, own)
    if exact is not None and own is not None:
        return (
            f"exact values would leave in this run: from then on there is {NO_GUARANTEE} for {own.dataset!r}, of which"
            f" epsilon {exact.spent.epsilon:.4g} of {own.epsilon:g} is spent"
        )
    if (
        own is not None
    ):  # before a ledger is begun, whose unit cannot be changed, and whose limit by a decision alone
        check_delta(own, units_at(load_site_data(config.data, config.data_root, agreement), agreement))
    begun = own is not None and not own.ledger.exists()
    releases = open_releases(agreement, own)
    if agreement.privacy is None or own is None or releases is None:
        raise BudgetError("nothing is released with noise")
    planned, spent = planned_epsilon(agreement, agreement.privacy, own.delta), releases.spent
    label = "" if spent.guaranteed else f"; {NO_GUARANTEE}"
    label += f"; the ledger {own.ledger} is begun with that limit" if begun else ""
    return (
        f"{planned_in_words(agreement, agreement.privacy)} take epsilon {planned:.4g} by themselves;"
        f" {spent.epsilon:.4g} of {own.epsilon:g} at delta {own.delta:g} for one {own.unit} is spent on"
        f" {own.dataset!r}{label}"
    )


def _model(config: SiteConfig) -> str:
    """What of it leaves the site, where the method averages some of it."""
    agreement, spec = config.agreement, config.model_spec
    check_averaged(agreement, build_initial_model(agreement, spec, config.pretrained))
    if not agreement.method.averages:
        return spec
    averaging = agreement.averaging
    averaged = f"{averaging.parameters:,} parameters and {averaging.buffers:,} buffers of it are averaged"
    return f"{spec}; {averaged}, the rest stays here"


def _data(config: SiteConfig) -> str:
    data = load_site_data(config.data, config.data_root, config.agreement)
    return f"{data.train_samples} training samples, not tried on the model"


def _certificate(party: Party) -> str:
    ends = load_certificate(party.credentials.certificate_pem).not_valid_after_utc
    days = (ends - datetime.now(UTC)).days
    return f"{party.credentials.identity}, valid for {days} more days"


def _learner(config: SiteConfig) -> str:
    agreement = config.agreement
    data = load_site_data(config.data, config.data_root, agreement)
    _, counts = open_learner(config, data).prototypes()
    missing: Bool = counts == 0
    absent = [name for name, out in zip(agreement.classes, missing, strict=True) if out]
    per_class = ", ".join(f"{n}: {c}" for n, c in zip(agreement.classes, counts, strict=True) if c)
    without = f"; no samples of {', '.join(absent)}" if absent else ""
    samples = f"{data.train_samples} training samples ({per_class}){without}"
    return f"{samples}; {config.model_spec} on {choose_device(config.device)}"


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
