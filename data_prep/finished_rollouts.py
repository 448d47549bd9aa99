"""A rollouts file that is there already: whether it is all that a job would write, and what the job takes over from it.

Rows that failed are asked again, and so is what a larger limit adds; everything else stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from schemafill.data_prep.manifest import is_done, manifest_path, read_manifest
from schemafill.data_prep.rollout_config import RESOLVED, RolloutConfig
from schemafill.data_prep.rollout_file import RolloutFile
from schemafill.data_prep.rollout_form import FAILED, reason_of, rollout_rows
from schemafill.data_prep.rollout_inputs import RolloutInput
from schemafill.data_prep.rollout_manifests import check_settings
from schemafill.inference.request import UserError


@dataclass(frozen=True, kw_only=True)
class FinishedRollouts:
    """The finished output of a job of the same settings and inputs."""

    out: Path
    settings: dict[str, Any]
    """Those of the job, its limit aside."""
    is_whole: bool
    """Nothing is left to ask."""

    def hand_over(self, file: RolloutFile, items: Sequence[RolloutInput]) -> None:
        """Put the rows that need not be asked again into the job's parts; what is there already stays.

        The output itself stays until the job has written the next one, so a kill loses nothing.
        """
        if file.settings() is None:
            file.begin(self.settings)
        for number, row in enumerate(rollout_rows([self.out])):
            if number >= len(items) or items[number].record.id != row["record_id"]:
                raise UserError(f"{self.out}:{number + 1} is not the row of its record: choose another --out")
            key = items[number].key
            if reason_of(row) != FAILED and not file.is_answered(key):
                file.append(key, row)

    def remove_parts(self) -> None:
        """Remove the parts that a kill has left beside the whole output; rows that it lacks are another limit's."""
        file = RolloutFile(self.out)
        if file.rows_path.exists() or file.settings_path.exists():
            with file.opened():
                ids = {row["record_id"] for row in rollout_rows([self.out])}
                if all(row["record_id"] in ids for row in file.rows()):
                    file.remove_parts()


def find_finished(
    config: RolloutConfig, asked: dict[str, Any], inputs: dict[str, str]
) -> FinishedRollouts | None:
    """The finished output at the job's place; None where there is none.

    What a target makes of `auto` is taken from it. UserError where it was made by other settings, from other inputs,
    or to a larger limit.
    """
    if not manifest_path(config.out).is_file() or not config.out.is_file():
        return None
    made = read_manifest(config.out)
    if made.step == "rollout":
        check_settings(config.out, made)
    limit = made.settings.get("limit")
    is_longer = isinstance(limit, int) and (config.limit is None or config.limit > limit)
    settings = asked | {name: made.settings[name] for name in RESOLVED if name in made.settings}
    if not is_done(config.out, "rollout", settings | {"limit": limit if is_longer else config.limit}, inputs):
        return None
    is_whole = not is_longer and not made.left_out.get(FAILED)
    return FinishedRollouts(out=config.out, settings=settings, is_whole=is_whole)
