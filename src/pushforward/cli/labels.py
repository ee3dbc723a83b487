"""Words for the report and the picture: what the target's module says about its outputs and inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .errors import UserError, guarded
from .target import Target


@dataclass(frozen=True)
class Labels:
    """Names and units; all optional.

    A module gives them as a dictionary of these fields from `example_labels()`:

    Attributes:
        title: what the function computes.
        output: name of the output.
        output_unit: its unit.
        along: a coordinate for each output entry [m], such as times.
        along_name: its name.
        along_unit: its unit.
        input_units: unit by input name.
    """

    title: str = ""
    output: str = "output"
    output_unit: str = ""
    along: np.ndarray | None = None
    along_name: str = ""
    along_unit: str = ""
    input_units: Mapping[str, str] = field(default_factory=dict)

    def place(self, index: int, name: str) -> str:
        """Where output `index` lies: its coordinate when there is one, else its name."""
        if self.along is None:
            return name
        unit = f" {self.along_unit}" if self.along_unit else ""
        return f"{self.along_name} {self.along[index]:.4g}{unit}".strip()

    def derivative_unit(self, input_name: str) -> str:
        """Unit of d output / d input, empty when neither unit is known.

        >>> Labels(output_unit="boys", input_units={"beta": "1/day"}).derivative_unit("beta")
        'boys per (1/day)'
        """
        below = self.input_units.get(input_name, "")
        if not self.output_unit:
            return ""
        if not below:
            return self.output_unit
        return f"{self.output_unit} per {f'({below})' if set(below) & set('/ ') else below}"


def load_labels(target: Target, outputs: int) -> Labels:
    """Ask the target's module for `example_labels()`; labels that do not fit this target's m outputs are refused.

    Raises:
        UserError: `example_labels()` failed, has unknown fields, or `along` has another length than the output.
    """
    give = getattr(target.module, "example_labels", None)
    if not callable(give):
        return Labels(title=target.name)
    given: Any = guarded(give, "calling example_labels()", target.source)
    if not isinstance(given, Mapping):
        raise UserError(f"example_labels() gave {type(given).__name__}, not a dictionary")
    unknown = [str(key) for key in given if key not in Labels.__dataclass_fields__]
    if unknown:
        known = ", ".join(Labels.__dataclass_fields__)
        raise UserError(f"example_labels() has unknown fields {', '.join(unknown)}; the fields are {known}")
    fields = dict(given)
    along = fields.get("along")
    if along is not None:
        fields["along"] = np.asarray(along, dtype=float).reshape(-1)
        if fields["along"].shape != (outputs,):
            raise UserError(
                f"example_labels()['along'] has {fields['along'].size} entries, {target.name} has {outputs} outputs"
            )
    return Labels(**{"title": target.name, **fields})
