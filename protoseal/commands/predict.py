"""Command ``protoseal predict``: classifies images with the model that a site trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from protoseal.commands.options import EXISTING_FILE, EXISTING_FOLDER, example
from protoseal.commands.terminal_output import one_line_errors, printable

if TYPE_CHECKING:
    from torch.utils.data import Dataset

    from agreement import Agreement
    from protoseal.prediction import TrainedModel


@click.command(epilog=example("protoseal predict --run out --image scan.png"))
@click.option(
    "--run",
    "folder",
    type=EXISTING_FOLDER,
    required=True,
    help="Output folder of a site, with its trained model.",
)
@click.option(
    "--data",
    help="Data set whose test part is classified, with its accuracy: npz:PATH, folder:PATH, a name or module:function."
    " Of table:PATH all rows are classified, with their accuracy if the table has labels.",
)
@click.option("--data-root", type=click.Path(path_type=Path), help="Folder with torchvision's data files.")
@click.option(
    "--image",
    "images",
    multiple=True,
    type=EXISTING_FILE,
    help="Image file to classify; may be repeated.",
)
@click.option(
    "--by",
    type=click.Choice(["classifier", "prototype"]),
    help="What decides the class: the model's classifier or the nearest prototype.  [default: as the run's method"
    " does]",
)
@click.option(
    "--device",
    default="auto",
    show_default=True,
    help="Device of the computation: auto (a GPU if there is one), cpu or cuda:N.",
)
@click.option(
    "--convert-channels",
    is_flag=True,
    help="Convert grey and RGB into each other as agreed, as a site does whose file has convert_channels = true.",
)
@click.option(
    "--accept-dark-or-constant-inputs",
    "accept",
    is_flag=True,
    help="Predict also if all images have one value in all pixels or stay below a tenth of the agreed scale, or if all"
    " records are equal.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the predictions as JSON.")
@one_line_errors
def predict(
    folder: Path,
    data: str | None,
    data_root: Path | None,
    images: tuple[Path, ...],
    by: str | None,
    device: str,
    convert_channels: bool,
    accept: bool,
    as_json: bool,
) -> None:
    """Classify images, or the test part of a data set, with the model that a site trained.

    Least, largest and mean value of each channel, beside the agreed scale, are printed on standard error.
    """
    from agreement import Inference
    from protoseal.prediction import Basis, choose_basis, load_trained
    from protoseal.prediction import predict as run
    from secure_client.data.input_ranges import InputRanges

    if (data is None) == (not images):
        raise click.UsageError("give either --data or one or more --image")
    trained = load_trained(folder)
    agreement = trained.agreement
    inputs, names, labelled = (
        _load_images(images, agreement, convert_channels)
        if images
        else _load_data(str(data), data_root, trained, convert_channels)
    )
    basis = Basis(by) if by else choose_basis(trained)
    if not by and basis is Basis.CLASSIFIER and agreement.inference is Inference.PROTOTYPE:
        click.echo("no prototype was released to predict by: the classifier predicts instead", err=True)
    ranges = InputRanges(agreement.inputs, data or "the given images")
    predicted, labels = run(trained, inputs, basis, device=device, ranges=ranges)
    # Images in [0, 1] read as [0, 255], or of another camera's scale, give classes that look like predictions.
    if not accept:
        ranges.check("give --accept-dark-or-constant-inputs")
    click.echo(printable(str(ranges)), err=True)
    classes = [agreement.classes[index] for index in predicted]
    accuracy = None
    if labelled:
        right = sum(prediction == label for prediction, label in zip(predicted, labels, strict=True))
        accuracy = right / len(labels)
    if as_json:
        result = {
            "by": basis.value,
            "predictions": [
                {"sample": name, "class": chosen} for name, chosen in zip(names, classes, strict=True)
            ],
            "channels": ranges.channels,
            "warnings": ranges.warnings,
        }
        click.echo(json.dumps(result | ({} if accuracy is None else {"accuracy": accuracy}), indent=2))
        return
    for name, chosen in zip(names, classes, strict=True):
        click.echo(f"{name}\t{chosen}")
    if accuracy is not None:
        click.echo(f"accuracy {accuracy:.4f}")


def _load_images(
    images: tuple[Path, ...], agreement: Agreement, convert: bool
) -> tuple[Dataset[Any], list[str], bool]:
    import torch
    from torch.utils.data import TensorDataset

    from secure_client.data.image_files import read_image
    from secure_client.data.preprocess import to_tensor

    if agreement.preprocessing is None:
        raise click.UsageError(
            "this run's agreement is on features, not images: give --data instead of --image"
        )
    tensors = [
        to_tensor(read_image(path)[None], agreement.preprocessing, where=str(path), convert_channels=convert)
        for path in images
    ]
    # Images have no labels; these are never compared.
    labels = torch.zeros(len(images), dtype=torch.int64)
    return TensorDataset(torch.cat(tensors), labels), [str(path) for path in images], False


def _load_data(
    spec: str, data_root: Path | None, trained: TrainedModel, convert: bool
) -> tuple[Dataset[Any], list[str], bool]:
    from secure_client.data import load_site_data
    from secure_client.data.sources import TABLE_FORM, find_table

    if spec.startswith(TABLE_FORM):
        from protoseal.prediction import read_rows

        rows = read_rows(trained, find_table(spec, data_root))
        if rows.left_out:
            lines = ", ".join(map(str, rows.left_out))
            click.echo(f"rows left out for a missing value, as agreed: lines {lines}", err=True)
        for line in (rows.facts, *(f"WARNING: {warning}" for warning in rows.warnings)):
            click.echo(printable(line), err=True)
        return rows.inputs, [f"line {line}" for line in rows.lines], rows.labelled
    log = trained.log
    data = load_site_data(
        spec,
        data_root,
        trained.agreement,
        convert_channels=convert,
        scale=log.scale,
        class_names=log.class_names,
        allow_unused_names=True,  # these data may lack classes of the site's
    )
    if log.class_names:
        click.echo(f"by the class_names of the run's site: {'; '.join(data.label_notes)}", err=True)
    # A source without a split of its own is classified whole.
    part = data.train if data.test is None else data.test
    return part, [str(number) for number in range(len(part))], True  # type: ignore[arg-type]  # it has a length
