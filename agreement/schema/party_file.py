"""Fields that the coordinator's and a site's configuration files share, and the error for another federation."""

from __future__ import annotations

import re
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, ValidationInfo

from agreement.registry.extensions import extensions_among
from agreement.registry.methods import SIMULATED, simulated_only
from agreement.schema.agreement import Agreement, load_agreement
from agreement.toml_loading import LocalPath, Section, directory_of, source_of, validate


def _address(value: str) -> str:
    host, _, port = value.rpartition(":")
    if not host or not re.fullmatch("[0-9]+", port):
        raise ValueError(f"{value!r} is not of the form host:port, such as coordinator.example.org:8443")
    if int(port) > 65_535:
        raise ValueError(f"{value!r} has the port {port}; ports end at 65535")
    if re.fullmatch(r"\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+", host):
        return value
    if "://" in value:
        raise ValueError(f"{value!r} has a scheme: write {value.partition('://')[2]!r}")
    if re.fullmatch("[0-9A-Fa-f:.]+", host):
        raise ValueError(f"{value!r} has an IPv6 address without brackets: write '[{host}]:{port}'")
    with suppress(UnicodeError):
        if (plain := host.encode("idna").decode()) != host:
            raise ValueError(f"{value!r} has letters outside ASCII: write '{plain}:{port}'")
    raise ValueError(f"{value!r} has a host with letters other than a to z, 0 to 9, '.', '-' and '_'")


Address = Annotated[str, AfterValidator(_address)]


def _agreement_of(value: object, info: ValidationInfo) -> object:
    """Return the agreement of a path's file, or of a table."""
    directory = directory_of(info) or Path()
    match value:
        case str():
            return load_agreement(directory / Path(value).expanduser())
        case dict():
            return validate(Agreement, value, source=f"{source_of(info)}: agreement", directory=directory)
        case _:
            return value


def _deployable(agreement: Agreement) -> Agreement:
    if agreement.method in SIMULATED:
        raise ValueError(simulated_only(agreement.method))
    for extension in extensions_among((agreement.method, agreement.protection)):
        if not extension.deployable:
            raise ValueError(
                f"{extension.value!r} of {agreement.distributions[extension.name]} runs in `protoseal simulate` only,"
                " because its author does not declare it deployable"
            )
    return agreement


DeployedAgreement = Annotated[Agreement, AfterValidator(_deployable), BeforeValidator(_agreement_of)]
"""Agreement in a coordinator's or site's file: the path of the agreement's file, or the agreement as a table."""


class LogLevel(StrEnum):
    """Least severe message that is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class PartyFile(Section):
    """Fields that the coordinator's and a site's file share.

    ``key`` is the encrypted private key. Its passphrase comes from ``passphrase_file``, the environment, a service's
    credential or, on a terminal, a prompt: never from this file.
    """

    agreement: DeployedAgreement
    """Path of the agreement."""
    ca: LocalPath
    """Certificate of the federation's CA."""
    certificate: LocalPath
    """Certificate of this party."""
    key: LocalPath
    """Encrypted private key of this party."""
    passphrase_file: LocalPath | None = None
    """File with the key's passphrase, open to its owner alone."""
    state_dir: LocalPath
    """Folder for the state of this run; each run has its own."""
    log_level: LogLevel = LogLevel.INFO
    """Least severe message that is logged."""


def other_federation(file: PartyFile, federation: str) -> str:
    """Return the error for a certificate of another federation than the agreement's."""
    return (
        f"{file.certificate} is for the federation {federation}, and the agreement says federation = "
        f'"{file.agreement.federation}": correct federation in the agreement, or name a certificate of '
        f"{file.agreement.federation} in this party's file"
    )
