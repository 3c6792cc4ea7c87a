"""Reads a job manifest and names every fault of it at once: where, by path and line, and what to write instead.

Called by the shells and the command line. Opens nothing: the text is given. A document that the API server has parsed
is never made text again: whoever may write jobs decides how large and deep it is, and YAML costs thousands of times as
much as the check.
"""

import difflib
import reprlib
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from lanefeed_operator.api import rules
from lanefeed_operator.api.spec import KIND, Job
from lanefeed_operator.errors import JobError, Problem

__all__ = ["check_job", "dump_job", "load_job"]

Loc = tuple[str | int, ...]

#: How values are shown: a condition's message has room for 32 KiB, and a value may be a megabyte.
_SHOWN = reprlib.Repr()
_SHOWN.maxlevel, _SHOWN.maxdict, _SHOWN.maxlist, _SHOWN.maxstring, _SHOWN.maxother = 4, 8, 8, 256, 256


def load_job(text: str, path: str | Path = "") -> Job:
    """A checked job of YAML (or JSON) text; `path` is only named in messages.

    Raises JobError with all problems.
    """
    source = str(path)
    root = _compose(text, source)
    lines, twice = _index(root)
    document = _construct(text)
    if not isinstance(document, dict):
        raise JobError(
            [Problem("", f"is {type(document).__name__}: a job is a mapping that begins with apiVersion")], source
        )
    problems = [Problem(_dotted(loc), "is written twice: keep one of them", line) for loc, line in twice]
    return _checked(document, lines, problems, source)


def check_job(document: dict[str, Any], source: str) -> Job:
    """A checked job of a parsed document; `source` is only named in messages. Raises JobError with all problems."""
    return _checked(document, {}, [], source)


def _checked(document: dict[str, Any], lines: dict[Loc, int], problems: list[Problem], source: str) -> Job:
    """The job, unless there are `problems` already. `lines`: of what is written where, as far as that is known."""
    job, faults = _validate(document)
    problems = problems + [_problem(error, document, lines) for error in faults]
    if str(document.get("kind", KIND)) != KIND:
        # Said even where too much else is wrong for the rules to be checked.
        problems.append(Problem("kind", f"is {document['kind']!r}: it must be {KIND}", lines.get(("kind",), 0)))
    problems = _unique(problems)
    # What is wrong is taken out, so that the rules are checked in the same run where that is possible.
    checked = job or _validate(_without(document, faults))[0]
    if checked is not None:
        known = {p.path for p in problems}
        problems += [_with_line(p, lines) for p in rules.check(checked) if p.path not in known]
    if problems or job is None:
        raise JobError(sorted(problems, key=lambda p: (p.line, p.path)), source)
    return job


def dump_job(job: Job) -> str:
    """The job as YAML, as a user would write it."""
    data = job.model_dump(by_alias=True, mode="json", exclude_none=True, exclude_unset=True, exclude={"status"})
    head = {"apiVersion": job.api_version, "kind": job.kind}
    return yaml.safe_dump({**head, **data}, sort_keys=False)


# ---- YAML ------------------------------------------------------------------------------------------------------


def _compose(text: str, source: str) -> yaml.Node:
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 0
        what = f"{error.problem or error.context}"
        raise JobError(
            [Problem("", f"this is not YAML: {what}; check indentation and quotes there", line)], source
        ) from None
    except yaml.YAMLError as error:
        raise JobError([Problem("", f"this is not YAML: {error}")], source) from None
    if root is None:
        raise JobError([Problem("", "is empty: write a ShardedTrainingJob")], source)
    return root


def _construct(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise JobError([Problem("", f"this is not plain YAML: {error}")]) from None


def _index(root: yaml.Node) -> tuple[dict[Loc, int], list[tuple[Loc, int]]]:
    """Line of every node by its path, and the keys that are written twice."""
    lines: dict[Loc, int] = {}
    twice: list[tuple[Loc, int]] = []

    def walk(node: yaml.Node, loc: Loc) -> None:
        lines.setdefault(loc, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                below = (*loc, str(key.value))
                if below in lines:
                    twice.append((below, key.start_mark.line + 1))
                lines[below] = key.start_mark.line + 1
                walk(value, below)
        elif isinstance(node, yaml.SequenceNode):
            for number, value in enumerate(node.value):
                walk(value, (*loc, number))

    walk(root, ())
    return lines, twice


# ---- pydantic's errors as ours ---------------------------------------------------------------------------------


def _validate(document: Any) -> tuple[Job | None, list[Any]]:
    try:
        return Job.model_validate(document), []
    except ValidationError as error:
        return None, error.errors(include_url=False)


def _problem(error: Any, document: Any, lines: dict[Loc, int]) -> Problem:
    loc = _in_document(error["loc"], document, missing=error["type"] == "missing")
    return Problem(_dotted(loc), _say(error, loc), _line(loc, lines))


def _in_document(loc: Loc, document: Any, *, missing: bool) -> Loc:
    """Pydantic adds the tried member of a union to the path; cut what the document does not have."""
    kept: list[str | int] = []
    value = document
    for number, part in enumerate(loc):
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            if missing and number == len(loc) - 1:
                kept.append(part)
            break
        kept.append(part)
    return tuple(kept)


def _say(error: Any, loc: Loc) -> str:
    kind, given = error["type"], _SHOWN.repr(error.get("input"))
    if kind == "extra_forbidden":
        return _unknown(loc)
    if kind == "missing":
        return "is missing: it is required"
    context = error.get("ctx") or {}
    if kind == "value_error":
        return str(context.get("error", error["msg"]))
    if kind == "enum":
        near = _near(
            str(error.get("input"))[:64],
            [x.strip("' ") for x in str(context["expected"]).replace(" or ", ",").split(",")],
        )
        return f"is {given}: it must be {context['expected']}{near}"
    text = error["msg"]
    return (
        f"is {given}: {text[0].lower()}{text[1:].removeprefix('nput ')}"
        if not text.startswith("Input ")
        else (f"is {given}: it {text.removeprefix('Input ')}")
    )


def _unknown(loc: Loc) -> str:
    names = _names_at(loc[:-1])
    near = _near(str(loc[-1]), names)
    return f"is not a field{near or f'; the fields here are {_listed(names)}'}"


def _near(given: str, names: Sequence[str]) -> str:
    lower = {name.lower(): name for name in names}
    found = difflib.get_close_matches(given.lower(), lower, n=1, cutoff=0.6)
    return f": did you mean {lower[found[0]]}?" if found else ""


def _listed(names: Sequence[str]) -> str:
    return ", ".join(sorted(names))


def _names_at(loc: Loc) -> list[str]:
    """The fields of the model at `loc`."""
    model: type[BaseModel] | None = Job
    for part in loc:
        if isinstance(part, int):
            continue
        model = _model_of(model, part) if model else None
    return [f.alias or name for name, f in model.model_fields.items()] if model else []


def _model_of(model: type[BaseModel], alias: str) -> type[BaseModel] | None:
    for name, f in model.model_fields.items():
        if (f.alias or name) == alias:
            return next(_models(f.annotation), None)
    return None


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) in (Union, types.UnionType, Annotated, list):
        for part in get_args(annotation):
            yield from _models(part)


def _without(document: Any, faults: Sequence[Any]) -> Any:
    """The document without the faulty values; what is on no way to one of them is shared."""
    kept = document
    locs = {_in_document(error["loc"], document, missing=False) for error in faults if error["type"] != "missing"}
    # The last items of a list first, so that the others keep their place.
    for loc in sorted(locs, key=lambda x: [str(part).zfill(8) for part in x], reverse=True):
        kept = _dropped(kept, loc) if loc else kept
    return kept


def _dropped(value: Any, loc: Loc) -> Any:
    """A copy of `value` without what is at `loc`; the same where there is nothing."""
    try:
        changed = value.copy()
        if len(loc) == 1:
            del changed[loc[0]]
        else:
            changed[loc[0]] = _dropped(changed[loc[0]], loc[1:])
    except (KeyError, IndexError, TypeError, AttributeError):
        return value
    return changed


def _unique(problems: Sequence[Problem]) -> list[Problem]:
    """One problem a path: the members of a union complain each."""
    first: dict[str, Problem] = {}
    for problem in problems:
        first.setdefault(problem.path, problem)
    return list(first.values())


# ---- paths and lines -------------------------------------------------------------------------------------------


def _dotted(loc: Loc) -> str:
    text = ""
    for part in loc:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def _line(loc: Loc, lines: dict[Loc, int]) -> int:
    while loc and loc not in lines:
        loc = loc[:-1]
    return lines.get(loc, 0)


def _with_line(problem: Problem, lines: dict[Loc, int]) -> Problem:
    parts: list[str | int] = []
    for name in problem.path.split("."):
        head, *numbers = name.replace("]", "").split("[")
        parts += [head, *map(int, numbers)]
    return Problem(problem.path, problem.message, _line(tuple(parts), lines))
