"""docs/reasons.md says what to do about every reason that the operator can give: read off the source, both ways.

A reason is what stands where a condition's, a stop's or a plan's reason goes. Where that is a variable it comes from
one of the places in PASSED_ON, each of which is read here too; a new one fails the test until somebody has looked.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SOURCE = ROOT / "operator/lanefeed_operator"
#: Function -> which argument is a reason, by place and by name.
GIVEN = {
    "Why": (0, "reason"),
    "Trouble": (0, "reason"),
    "FeedFailure": (0, "kind"),
    "fail": (0, "reason"),
    "condition": (2, "reason"),
    "put": (3, "reason"),
    "ask": (1, "reason"),
    "new_plan": (1, "reason"),
    "StopStatus": (None, "reason"),
}
#: Besides reconcile/ and kube/.
OTHERS = ("runtime/actions.py", "runtime/admit.py", "coordinator/core.py")
#: The kubelet's word, handed on, that troubles.py has an answer to.
HANDED_ON = {"OOMKilled"}
#: Functions that answer with a reason, and variables that hold one.
ANSWERS = {"change", "_word", "_words"}
HOLDERS = {"again", "reason"}
#: Lists of reasons: what the kubelet says that we know a remedy for, and failures of sidecars that end a job.
LISTS = {"_HELP", "HOPELESS", "ON_THE_WAY", "PULLING", "LOOP"}
#: What is handed on, and where it was given before.
PASSED_ON = {
    "why.reason": "a Why",
    "problem.reason": "a Why",
    "late.reason": "a Why",
    "trouble.reason": "a Trouble",
    "one.reason": "a Trouble",
    "feed.mismatch.kind": "a FeedFailure",
    "failure.kind": "of a sidecar, in HOPELESS",
    "reason": "an argument of ask, new_plan, fail or put; in podstate a container's word",
    "why": "an answer of change",
    "word": "an answer of _word",
    "p.status.stop.reason": "an argument of ask",
    "again": "Restart or Resume, read from the assignment",
    "*job.gave_up": "the Job's own word, shown only in the message of JobFailed",
    "scheduled.get('reason')": "the scheduler's word",
    "str(status.get('reason') or '')": "the kubelet's word",
    "str(ended.get('reason') or '')": "the kubelet's word",
    "getattr(error, 'reason', None)": "an HTTP status in words",
}


def constants() -> dict[str, str]:
    """Module constants that are one word."""
    found: dict[str, str] = {}
    for path in SOURCE.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                value = node.value
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    found[node.targets[0].id] = value.value
    return found


class Reasons:
    """What the modules give: words, and expressions that hand words on."""

    def __init__(self) -> None:
        self.known = constants()
        self.words: set[str] = set()
        self.passed: set[str] = set()

    def read(self, tree: ast.AST) -> "Reasons":
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                for given in self._given(node):
                    self._value(given)
            elif isinstance(node, ast.FunctionDef) and node.name in ANSWERS:
                for part in ast.walk(node):
                    if isinstance(part, ast.Return) and part.value is not None:
                        self._value(part.value)
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                name = node.targets[0].id
                if name in LISTS:
                    self.words |= set(self._listed(node.value))
                elif name in HOLDERS:
                    self._value(node.value)
        return self

    @staticmethod
    def _given(call: ast.Call) -> Iterator[ast.expr]:
        name = getattr(call.func, "attr", getattr(call.func, "id", ""))
        first = call.args[0].id if call.args and isinstance(call.args[0], ast.Name) else ""
        # Others have functions of these names too.
        other = {
            "put": len(call.args) < 6,
            "condition": len(call.args) < 4,
            "new_plan": first != "p",
            "ask": first != "p",
        }
        if name not in GIVEN or other.get(name):
            return
        place, word = GIVEN[name]
        if place is not None and len(call.args) > place:
            yield call.args[place]
        yield from (one.value for one in call.keywords if one.arg == word)

    def _listed(self, value: ast.expr) -> Iterator[str]:
        keys = value.keys if isinstance(value, ast.Dict) else getattr(value, "elts", [value])
        yield from (one.value for one in keys if isinstance(one, ast.Constant) and isinstance(one.value, str))

    def _value(self, value: ast.expr) -> None:
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            self.words |= {value.value} - {""}
        elif isinstance(value, ast.BoolOp):
            for one in value.values:
                self._value(one)
        elif isinstance(value, ast.IfExp):
            self._value(value.body)
            self._value(value.orelse)
        elif isinstance(value, ast.Name | ast.Attribute) and getattr(value, "attr", getattr(value, "id", "")) in (
            self.known
        ):
            self.words.add(self.known[getattr(value, "attr", getattr(value, "id", ""))])
        elif isinstance(value, ast.Call) and getattr(value.func, "id", "") in ANSWERS:
            return
        else:
            self.passed.add(ast.unparse(value))


def given() -> Reasons:
    found = Reasons()
    modules = [*(SOURCE / "reconcile").glob("*.py"), *(SOURCE / "kube").glob("*.py")]
    for path in (*modules, *(SOURCE / name for name in OTHERS)):
        found.read(ast.parse(path.read_text()))
    found.words |= HANDED_ON
    return found


def documented(text: str) -> dict[str, str]:
    """Reason -> what to do, of each table's rows."""
    rows = re.findall(r"^\| (`[^|]+`) \| [^|]+ \| ([^|]+) \|$", text, re.M)
    return {word: todo.strip() for words, todo in rows for word in re.findall(r"`(\w+)`", words)}


def test_every_reason_has_a_line_on_what_to_do_and_no_line_is_of_the_past() -> None:
    found, told = given(), documented((ROOT / "docs/reasons.md").read_text())
    assert found.words - set(told) == set(), "not in docs/reasons.md"
    assert set(told) - found.words == set(), "nobody gives these any more"
    assert all(told.values())


def test_where_a_variable_is_given_it_is_known_where_it_comes_from() -> None:
    assert given().passed - set(PASSED_ON) == set(), "look where these come from, then say so in PASSED_ON"


def test_the_reader_finds_what_it_is_to_find() -> None:
    source = """
NEW = "FromConstant"
def change(p): return "FromAnswer" if p else OTHER
def f(p):
    p.condition(RUNNING, False, "FromCondition" if p else NEW, "text")
    p.fail("FromFail", "text")
    stop.ask(p, "FromAsk")
    raise Refused(r.Why(hidden(), "text"))
    StopStatus(step=1, reason="FromStop")
"""
    found = Reasons()
    found.known["NEW"] = "FromConstant"
    found.read(ast.parse(source))
    assert {word for word in found.words if word.startswith("From")} == {
        f"From{name}" for name in ("Constant", "Answer", "Condition", "Fail", "Ask", "Stop")
    }
    assert found.passed == {"OTHER", "hidden()"}
    assert documented("| `A`, `B` | means | do |\n| `C` | means |  |\n") == {"A": "do", "B": "do"}
