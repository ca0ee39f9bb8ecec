# SPDX-License-Identifier: Apache-2.0
"""Converts the arguments of `open` to the spec for the daemon.

In: arguments of any type and value. Out: a ``pinfeed.v1.FeedSpec`` in JSON whose values fit their fields. Only the
daemon can check whether the dataset exists and which transforms fit it.
"""

from __future__ import annotations

import os
from typing import Any, Dict, Mapping, Optional

from .._base.checks import MAX_SLOTS, MIN_SLOTS, UINT32_MAX, UINT64_MAX, Checks, absolute_path, listed, shown
from .._base.dtypes import check_byte_order, dtype_name
from .._base.errors import InvalidArgumentError
from .._base.rank import Rank
from .dataset_argument import instead_of
from .torchvision_transforms import normalize_transforms

Spec = Dict[str, Any]

_MAX_TEXT_BYTES = 256


def add_dataset(
    spec: Spec,
    checks: Checks,
    dataset: Any,
    format_name: Any,
    image: Any,
    label: Any,
    sequence_length: Any,
    stride: Any,
    token_dtype: Any,
) -> None:
    """Adds what to read."""
    out: Spec = {}
    spec["dataset"] = out
    try:
        text = os.fspath(dataset)
    except TypeError:
        text = None
    if not isinstance(text, str) or not text:
        checks.refuse("dataset", dataset, f"the path of a dataset or the name of one, as a string or a pathlib.Path{instead_of(dataset)}")
    elif "://" in text:
        checks.refuse("dataset", dataset, "a dataset in this host's file system: copy or mount remote data, and give the path")
    else:
        # Does not look at the file system: whether a word is a path must not depend on the working directory.
        is_path = not isinstance(dataset, str) or "/" in text or text in (".", "..")
        text = absolute_path(text) if is_path else text
        if checks.sendable("dataset", text):
            out["path" if is_path else "name"] = text
    if format_name is not None:
        out["format"] = checks.text("format", format_name, _MAX_TEXT_BYTES)
    for name, column in (("image", image), ("label", label)):
        if column is not None:
            out[name] = checks.text(name, column, _MAX_TEXT_BYTES)
    if sequence_length is not None:
        out["sequence_length"] = checks.integer("sequence_length", sequence_length, 1, UINT32_MAX)
    if stride is not None:
        out["stride"] = checks.integer("stride", stride, 1, UINT32_MAX, ", or None for sequence_length")
    if token_dtype is not None:
        name = dtype_name(token_dtype)
        if name not in ("uint16", "uint32"):
            checks.refuse("token_dtype", token_dtype, '"uint16" or "uint32"')
        else:
            check_byte_order(checks, "token_dtype", token_dtype, f'write the tokens anew: numpy.fromfile(path, token_dtype).astype("{name}").tofile(new_path)')
        out["token_dtype"] = name


def add_order(spec: Spec, checks: Checks, batch_size: Any, shuffle: Any, seed: Any, drop_last: Any, epochs: Any, place: Rank) -> None:
    """Adds the order, and this rank's share of it."""
    spec["batch_size"] = checks.integer("batch_size", batch_size, 1, UINT32_MAX)
    spec["order"] = "SHUFFLE" if checks.flag("shuffle", shuffle) else "SEQUENTIAL"
    spec["seed"] = checks.integer("seed", seed, 0, UINT64_MAX)
    spec["drop_last"] = checks.flag("drop_last", drop_last)
    known = len(checks.faults)
    spec["rank"] = checks.integer("rank", place.rank, 0, UINT32_MAX)
    spec["world_size"] = checks.integer("world_size", place.world_size, 1, UINT32_MAX)
    if len(checks.faults) == known and spec["rank"] >= spec["world_size"]:
        checks.add("rank", f"{spec['rank']} is not below the world_size of {spec['world_size']} (both from {place.source})")
    if epochs is not None:
        spec["epochs"] = checks.integer("epochs", epochs, 1, UINT64_MAX, ", or None for no end")


def add_output(spec: Spec, checks: Checks, transforms: Any, layout: Any, on_bad_sample: Any, sample_ids: Any, slots: Any) -> None:
    """Adds how to process the samples."""
    spec["transforms"] = []
    try:
        for number, transform in enumerate(normalize_transforms(transforms)):
            try:
                spec["transforms"].append(transform.to_spec())
            except InvalidArgumentError as error:
                checks.faults += [f"transforms[{number}] {line}" for line in str(error).splitlines()]
    except InvalidArgumentError as error:
        checks.faults.append(str(error))
    spec["image_layout"] = checks.choice("layout", layout, ("CHW", "HWC"))
    spec["on_bad_sample"] = checks.choice("on_bad_sample", on_bad_sample, ("fail", "skip", "zero")).upper()
    spec["sample_ids"] = checks.flag("sample_ids", sample_ids)
    if slots is not None:
        spec["slots"] = checks.integer("slots", slots, MIN_SLOTS, MAX_SLOTS, ", or None for the daemon's default")


def add_fields(spec: Spec, checks: Checks, valid: Any, selected: Any, masks: Any, fields_unchanged: Any) -> None:
    """Adds which fields to read and to add, and how to process those other than the image."""
    if checks.flag("valid", valid):
        spec["valid"] = True
    for name, value in (("fields", selected), ("masks", masks), ("fields_unchanged", fields_unchanged)):
        fields = [] if value is None else listed(value, ordered=name == "fields")
        if name == "fields" and value is not None and not fields:
            checks.refuse(name, value, "the name of a field or a list of such names, or None for all fields")
        elif not all(isinstance(field, str) and field for field in fields):
            checks.refuse(name, value, "the name of a field or a list of such names")
        elif all([checks.sendable(name, field) for field in fields]) and fields:
            spec[name] = fields


def add_rows(spec: Spec, checks: Checks, sample_path: Any, pad: Any) -> None:
    """Adds how to give fields whose samples have different numbers of rows."""
    if checks.flag("sample_path", sample_path):
        spec["sample_path"] = True
    if pad is None:
        return
    if not isinstance(pad, Mapping) or not all(isinstance(name, str) and name for name in pad):
        checks.refuse("pad", pad, 'a dict from names of fields to numbers of rows, such as {"caption": 128}')
        return
    padded = [
        {"field": name, "rows": checks.integer(f"pad[{name!r}]", rows, 1, UINT32_MAX)} for name, rows in pad.items() if checks.sendable("pad", name)
    ]
    if padded:
        spec["pad"] = padded


def add_sharing(spec: Spec, checks: Checks, share: Optional[Any], group: Any, group_size: Any) -> None:
    """Adds the group that shares the feed."""
    if share is None:
        for name, value in (("group", group), ("group_size", group_size)):
            if value is not None:
                checks.add(name, f'{shown(value)} applies only with share="broadcast" or share="queue"')
        return
    spec["sharing"] = checks.choice("share", share, ("broadcast", "queue")).upper()
    if group is None:
        checks.add("group", f"share={shown(share)} needs the group's name, the same in every process that shares the feed")
    else:
        spec["group"] = checks.title("group", group)
    spec["group_size"] = 1 if group_size is None else checks.integer("group_size", group_size, 1, UINT32_MAX)


def describe(spec: Spec) -> str:
    """Returns the dataset's name or path, for messages."""
    if "batcher" in spec:
        return f"the batcher {spec['group']}"
    dataset = spec["dataset"]
    return str(dataset.get("path") or dataset.get("name") or dataset["produced"]["name"])
