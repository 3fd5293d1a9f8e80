"""Remedies for wrong settings of a run: the settings to change, with their present values, or runs to compare with.

``aligned`` is the method whose loss the run trains with: the control ``self`` has that of the agreement's method.
"""

from __future__ import annotations

from agreement import CONTROLS, Agreement, Inference, Method, Optimiser, PrivacySection

_ALIGNMENT = {
    Method.PFPL: ("pfpl", ("lambda",)),
    Method.FEDPC: ("fedpc", ("alignment",)),
    Method.FEDDBP: ("feddbp", ("shared_alignment", "decision_alignment")),
    Method.FEDPLCC: ("fedplcc", ("contrast", "correlation")),
    Method.FEDPROTO: ("baselines", ("fedproto",)),
    Method.FEDPROTO_AVERAGED: ("baselines", ("fedproto",)),
    Method.FEDPLVM: ("baselines", ("fedplvm",)),
}
"""Section and keys that weigh the alignment; FPL's terms have no weights."""

READABLE = "make the records readable that the site's log names, then start another run"


def weaker_alignment(agreement: Agreement, aligned: Method) -> str:
    """Return how to weaken the alignment, or the control to compare with where no setting is known."""
    weaken = _weaken_alignment(agreement, aligned)
    return weaken or "compare with the control local, which trains without alignment"


def stable_training(agreement: Agreement, aligned: Method) -> str:
    """Return how to change the learning rate, or else the alignment, where training fails."""
    return f"see the sites' logs, and {other_rate(agreement, aligned, diverged=True)}"


def other_rate(agreement: Agreement, aligned: Method, *, diverged: bool) -> str:
    """Return how to change the learning rate, or else the alignment."""
    weaken = _weaken_alignment(agreement, aligned)
    otherwise = weaken and f"; if the control local learns with these settings, {weaken}"
    return f"{_rate(agreement, diverged=diverged)}{otherwise}"


def more_training(agreement: Agreement, aligned: Method, *, diverged: bool) -> str:
    """Return how to train for longer, or else :func:`other_rate`."""
    epochs = agreement.training.local_epochs
    longer = f"raise rounds (now {agreement.rounds}), or local_epochs (now {epochs}) in [training]"
    return f"{longer}, or {other_rate(agreement, aligned, diverged=diverged)}"


def comparison(aligned: Method) -> str:
    """Return the figures to compare where training fits and tests do not."""
    control = "" if aligned is Method.LOCAL else "with the control local, and "
    return (
        "training fits, so the test data, the inference or the averaged model differs from what was trained: compare "
        f"{control}the classifier's accuracy with the prototypes'"
    )


def private_accuracy(agreement: Agreement, privacy: PrivacySection, method: Method) -> str:
    """Return how to raise an accuracy under ``[privacy]``: less noise that matters, then what costs no budget.

    ``method`` is the method or the control that ran.
    """
    aligned = agreement.method if method is Method.SELF else method
    weaken = _weaken_alignment(agreement, aligned)
    first = f"{weaken}, which costs no budget; then " if weaken and privacy.dp_sgd is not None else ""
    matter = []
    if _has_noisy_prototypes(agreement, method):
        matter.append(f"noise_multiplier (now {privacy.noise_multiplier:g}) in [privacy]")
    if privacy.dp_sgd is not None:
        matter.append(f"noise_multiplier (now {privacy.dp_sgd.noise_multiplier:g}) in [privacy.dp_sgd]")
    lower = (
        f", or lower {' or '.join(matter)}, which raises ε (`protoseal budget plan` shows the effect of either)"
        if matter
        else ""
    )
    return f"{first}use more records per class{lower}; {_find_free_remedy(agreement)}"


def other_features(agreement: Agreement) -> str:
    """Return how to change features that no training changes."""
    trains = "" if agreement.privacy is not None else ", or remove frozen_extractor in [training]"
    return (
        "no training changes frozen features or the nearest prototype: use another model, or set pretrained_sha256 in"
        f" [training] for weights that were trained on public data{trains}"
    )


def _has_noisy_prototypes(agreement: Agreement, method: Method) -> bool:
    """Return whether the noise of prototypes reaches the predictions of a run under ``[privacy]``."""
    if method in CONTROLS:
        return False
    if agreement.inference is Inference.PROTOTYPE:
        return True
    # The classifier reads trained features, which follow prototypes by the alignment alone.
    _, keys = _ALIGNMENT.get(method, ("", ()))
    settings = agreement.settings_of(method).model_dump(by_alias=True)
    return any(settings[key] for key in keys)


def _find_free_remedy(agreement: Agreement) -> str:
    """Return what to try under ``[privacy]`` without spending budget."""
    if agreement.extractor_is_frozen:
        return other_features(agreement)
    return "try another lr on public data or with the control local, since rounds, and epochs of DP-SGD, cost budget"


def larger_bound(agreement: Agreement) -> str:
    """Return how far to raise the norm bound."""
    return (
        f"raise norm_bound (now {agreement.norm_bound:g}) for all sites, to little more than the longest prototype (in "
        "the sites' logs), since agreement_threshold and errors under ckks are in units of it"
    )


def _weaken_alignment(agreement: Agreement, aligned: Method) -> str:
    """Return how to weaken the alignment; empty without a known setting, or with features that it cannot change."""
    if aligned not in _ALIGNMENT or agreement.extractor_is_frozen:
        return ""
    section, keys = _ALIGNMENT[aligned]
    settings = agreement.settings_of(aligned).model_dump(by_alias=True)
    named = " and ".join(f"{key} (now {settings[key]:g})" for key in keys)
    literal = ", or remove literal" if settings.get("literal") else ""
    return f"lower {named} in [{section}]{literal}"


def _rate(agreement: Agreement, *, diverged: bool) -> str:
    training = agreement.training
    change = f"{'lower' if diverged else 'raise'} lr (now {training.lr:g}) in [training]"
    if training.optimiser is Optimiser.ADAM:
        return change
    return f'{change}, or set optimiser = "adam" with lr = 0.001 and no momentum'
