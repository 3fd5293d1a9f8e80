"""Test files: each is named after a module of the code, in the same folder, or is listed as a behaviour of several."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).parents[1]
WHOLE = {"adversary", "conformance", "deploy", "docs", "e2e", "states"}
"""Folders of tests without a folder of the code: all of their files test behaviours of the whole program."""
BEHAVIOURS = {
    ".": "documentation_site layers public_api test_files tutorials",
    "agreement": "toml_files",
    "agreement/extensions": (
        "added_builtin_protection built_ins_registered_again conformance_check documented_commands "
        "documented_run refused_extensions shared_run_folder"
    ),
    "agreement/sections": "colluding_sites",
    "agreement/storage": "run_files_outlast_power_cuts",
    "algorithms/fedplcc": "local_clusters",
    "crypto": (
        "coordinator_view_under_rotation labelled_rows sealed_vectors second_implementation "
        "second_implementation_numbers"
    ),
    "crypto/ckks": (
        "answer_contents key_serialization oversized_rows refused_ciphertexts results_equal_loops "
        "unused_slots"
    ),
    "crypto/pairwise": "frozen_vectors refused_releases sparse_graph_sums whole_protocol",
    "crypto/pki": "certificate_issuing grpc_tls",
    "privacy/accounting": "discrete_noise_epsilon",
    "privacy/ledger": "failing_disk hidden_lines killed_writer tampered_ledger",
    "privacy/mechanisms": "query_sensitivity summed_noise",
    "protoseal/commands": (
        "budget_extreme_inputs image_forms labels_by_name names_of_bytes outputs_and_exit_codes"
    ),
    "protoseal/audit": "cluster_view encrypted_view masked_view no_secret_shows weakenings",
    "protoseal/simulation": (
        "control_self frozen_features misset_runs private_simulation simulation_fedpc simulation_options "
        "simulation_partial_round simulation_resumed tables"
    ),
    "protoseal/simulation/batched": "batch_composition",
    "protoseal/splits": "subjects_stay_together",
    "protoseal_wire": "statement_vectors",
    "protoseal_wire/codec": "content_bytes",
    "secure_client": "erased_secrets",
    "secure_client/data": "failing_user_data image_channels input_values label_values record_subjects",
    "secure_client/methods": (
        "encrypted_group_leader forgotten_overrides session_attempts session_clustering session_clusters "
        "session_masked_sum session_one_group session_shared_noise session_sparse_graph"
    ),
    "secure_client/models": "backbones_opacus pretrained_start unsuitable_models",
    "secure_client/privacy": (
        "features_independent_of_batch nothing_exact_leaves nothing_exact_under_shared_noise paid_prototypes "
        "private_methods private_training repeated_payments shared_noise_of_units shared_noise_statistics"
    ),
    "secure_client/site_model": "logged_warnings saved_predictor",
    "secure_client/training": "inference_passes",
    "secure_client/training/dp_sgd": (
        "dp_sgd_noise dp_sgd_sampling dp_sgd_sensitivity gradients_independent_of_batch raising_records "
        "subject_gradients"
    ),
    "secure_server": "empty_run expiring_certificates last_result restarted_coordinator",
    "secure_server/exchanges": (
        "cluster_answers fedpc_answers fedpc_faults fedpc_memory fedpc_presence fedpc_rounds "
        "fedpc_spoilt_group sparse_120_sites sparse_answers"
    ),
    "secure_server/rounds": (
        "benched_sites left_attempts result_delivery rounds_of_many_steps run_start simulated_runs"
    ),
    "secure_server/service": "client_transport connection_diagnosis header_bombs",
    "secure_server/storage": "store_after_kill",
}
"""Test files of behaviours over several modules, without ``test_`` and ``.py``, by their folder in ``tests/``."""


def misplaced(tests: set[str], modules: set[str], behaviours: set[str]) -> set[str]:
    """Return the test files that are named after neither a module nor a behaviour, and entries that are not needed."""
    named = {str(PurePosixPath(each).parent / f"test_{PurePosixPath(each).name}") for each in modules}
    return (tests - named) ^ behaviours


def files(folder: Path, pattern: str) -> set[str]:
    """Return the paths below ``folder`` of its files of that pattern, with slashes."""
    return {path.relative_to(folder).as_posix() for path in folder.rglob(pattern)}


def test_each_test_file_is_named_after_a_module_or_a_behaviour() -> None:
    tests = {each for each in files(ROOT / "tests", "test_*.py") if each.split("/")[0] not in WHOLE}
    modules = {
        f"{package.name}/{each}"
        for parent in (ROOT, ROOT / "proto")
        for package in parent.iterdir()
        if (package / "__init__.py").exists()
        for each in files(package, "*.py")
    }
    behaviours = {
        str(PurePosixPath(folder) / f"test_{name}.py")
        for folder, names in BEHAVIOURS.items()
        for name in names.split()
    }
    assert misplaced(tests, modules, behaviours) == set()


@pytest.mark.parametrize(
    ("tests", "modules", "behaviours"),
    [
        ({"a/test_x.py"}, set(), set()),
        ({"b/test_x.py"}, {"a/x.py"}, set()),
        (set(), set(), {"a/test_x.py"}),
        ({"a/test_x.py"}, {"a/x.py"}, {"a/test_x.py"}),
    ],
    ids=["renamed module", "other folder", "no such test", "also a module"],
)
def test_a_misplaced_file_or_stale_entry_is_found(
    tests: set[str], modules: set[str], behaviours: set[str]
) -> None:
    assert len(misplaced(tests, modules, behaviours)) == 1
