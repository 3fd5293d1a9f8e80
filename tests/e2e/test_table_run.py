"""A deployment over tables in three dialects: the same run as in this process, and rows predicted in a site's own."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from agreement import Agreement, TableSection
from protoseal.splits import SiteArrays
from secure_client.data import load_site_data
from secure_client.data.samples import Samples
from secure_client.output.site_files import read_prototypes
from secure_client.output.site_log import read_site_log
from tests.e2e.federations import check_saved, protoseal, small_agreement
from tests.support.forked_processes import Nursery
from tests.support.processes import Federation
from tests.support.simulations import run_federation
from tests.support.small import short_training
from tests.support.tables import CLASSES, save, section, write_three_dialects

pytestmark = pytest.mark.full

NAMES = ("site-1", "site-2", "site-3")
COLUMNS: TableSection = section(
    {"name": "age", "scale": "site"},
    {"name": "sex", "categories": ["0", "1"], "drop_first": True},
    {"name": "chol", "scale": [220.0, 50.0], "missing": "leave out"},
)


def agreed() -> Agreement:
    training = short_training("mlp", init_seed=5, batch_size=16, local_epochs=2)
    changes = {"classes": CLASSES, "preprocessing": None, "table": COLUMNS, "training": training}
    return Agreement.model_validate({**dict(small_agreement(rounds=2)), **changes})


def test_sites_run_and_predict_by_their_tables(tmp_path: Path, nursery: Nursery) -> None:
    agreement, tables = agreed(), tmp_path / "tables"
    tables.mkdir()
    write_three_dialects(tables)
    data = {name: load_site_data(f"table:{tables / name}.csv", None, agreement) for name in NAMES}
    run_federation(agreement, data, tmp_path / "simulated")
    wanted = {name: read_prototypes(tmp_path / "simulated" / "sites" / name) for name in NAMES}

    none = Samples(np.zeros((1, 3)), np.zeros(1, np.int64), np.zeros(1, np.int64))
    sites = [SiteArrays(name, none, none, ("",)) for name in NAMES]
    with Federation(tmp_path / "run", agreement, sites, gated=False, nursery=nursery) as federation:
        for name in NAMES:
            config = federation.folder(name) / "site.toml"
            table = (tables / f"{name}.toml").read_text().replace("held-out", str(tables / "held-out"))
            text = config.read_text().replace("npz:data.npz", f"table:{tables / name}.csv")
            config.write_text(f"{text}\n{table}")
        coordinator, running = federation.start_coordinator(), federation.start_sites()
        assert [site.exit_code() for site in running.values()] == [0, 0, 0]
        assert coordinator.exit_code() == 0
        check_saved(federation, wanted)
        for name in NAMES:
            assert read_site_log(federation.folder(name)).scale == data[name].scale

        rows = save(tmp_path, "chol\tsex\tage\n240\t1\t61,5\n?\t1\t44\n200\t0\t40,0\n", "rows.csv")
        asked = ("predict", "--run", ".", "--data", f"table:{rows}", "--json")
        shown = json.loads(
            protoseal(federation.folder("site-3"), *asked).partition("{")[2].rpartition("}")[0].join("{}")
        )
        assert [each["sample"] for each in shown["predictions"]] == ["line 2", "line 4"]
