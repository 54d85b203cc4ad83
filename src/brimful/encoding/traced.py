"""A chat template that tells, while it is rendered, for which message it writes each part of the text.

transformers compiles a template in Jinja's sandbox, and takes a syntax tree in place of the template's text. So the tree is
changed, and transformers renders it as it renders the text: each loop begins an iteration with a note, and ends with one. A note
writes nothing. It keeps how many characters were written so far, and which message the loop variable is: the same object, as
templates slice, filter and reverse lists of messages. A loop over numbers that index a list is one over that list.

Loops whose output is held back (in a macro, a call block, a filter block, a `set` block, or a recursive loop) get no notes: what
they write is counted later. Nor do loops over other things say anything: what is written in them is for the message outside.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from functools import lru_cache
from itertools import count
from typing import Any, Final

from jinja2 import nodes
from jinja2.visitor import NodeTransformer

from brimful.encoding.turns import Span, Traced

_NOTE, _END, _BEGIN, _MARK = "brimful_note", "brimful_end", "brimful_begin", "brimful_mark"
_HELD: Final = (nodes.Macro, nodes.CallBlock, nodes.FilterBlock, nodes.AssignBlock)
_NOBODY: Final = -1


class TracedTemplate:
    """A template with notes. Threads may share it.

    Args:
        tree: its syntax tree.
        marks: whether it has {% generation %}, nowhere held back.
        compile: the function of transformers that compiles it.
    """

    def __init__(self, tree: nodes.Template, marks: bool, compile: Callable[[Any], Any]) -> None:
        self.tree = tree
        self.marks = marks
        self._compile = compile
        self._local = threading.local()

    def render(self, tokenizer: Any, messages: list[Any], tools: Any, **kwargs: Any) -> Traced:
        """A conversation by `tokenizer.apply_chat_template`, traced. Price: .2 us for each iteration of a loop."""
        # transformers keeps a few compiled templates, and may have compiled this one anew
        environment = self._compile(self.tree).environment
        if _NOTE not in environment.filters:
            environment.concat = self._joined
            environment.filters.update({_BEGIN: self._begin, _NOTE: self._note, _END: self._end, _MARK: self._mark})
        trace = self._local.trace = _Rendering()
        try:
            text = tokenizer.apply_chat_template(
                messages, tools=tools, chat_template=self.tree, tokenize=False, **kwargs
            )
        finally:
            self._local.trace = None
        return trace.done(text)

    def _joined(self, pieces: Iterable[str]) -> str:
        """As `"".join`, which Jinja uses for all that a template writes, and for what it holds back meanwhile."""
        trace: _Rendering | None = getattr(self._local, "trace", None)
        if trace is None or trace.running:
            return "".join(pieces)
        trace.running, found = True, []
        for piece in pieces:
            found.append(piece)
            trace.chars += len(piece)
        return "".join(found)

    def _begin(self, messages: Any) -> None:
        self._local.trace.messages = dict(zip(map(id, messages), count()))

    def _note(self, value: Any, loop: int, *lists: Any) -> None:
        self._local.trace.note(value, loop, lists)

    def _end(self, loop: int) -> None:
        self._local.trace.end(loop)

    def _mark(self, begins: bool) -> None:
        self._local.trace.mark(begins)


class _Rendering:
    """The notes of one rendering."""

    def __init__(self) -> None:
        self.chars = 0
        self.running = False
        self.messages: dict[int, int] = {}
        self._loops: list[tuple[int, int]] = []  # those that are running: their numbers, and for whom each writes
        self._visits: list[int] = []  # the message of each
        self._places: list[int] = [0]
        self._owners: list[int] = [_NOBODY]
        self._marked: list[list[int]] = []

    def note(self, value: Any, loop: int, lists: tuple[Any, ...]) -> None:
        """An iteration of a loop begins."""
        loops, known = self._loops, self.messages
        if loops and loops[-1][0] == loop:
            loops.pop()
        number = known.get(id(value))
        if number is None and isinstance(value, int | tuple | list):
            number = self._held(value, lists)
        if number is None:
            owner = loops[-1][1] if loops else _NOBODY
        else:
            owner = len(self._visits)
            self._visits.append(number)
        loops.append((loop, owner))
        self._write_for(owner)

    def end(self, loop: int) -> None:
        """A loop has ended, if it had an iteration."""
        loops = self._loops
        if loops and loops[-1][0] == loop:
            loops.pop()
            self._write_for(loops[-1][1] if loops else _NOBODY)

    def mark(self, begins: bool) -> None:
        """What the assistant generates begins here, or ends."""
        if begins:
            self._marked.append([self.chars, self.chars, self._owners[-1]])
        else:
            self._marked[-1][1] = self.chars

    def _held(self, value: int | tuple[Any, ...] | list[Any], lists: tuple[Any, ...]) -> int | None:
        """The number of the only message that a loop variable holds, or is the index of in a list."""
        if isinstance(value, int):
            value = [one[value] for one in lists if isinstance(one, list) and -len(one) <= value < len(one)]
        found = {self.messages[id(one)] for one in value if id(one) in self.messages}
        return found.pop() if len(found) == 1 else None

    def _write_for(self, owner: int) -> None:
        if self._owners[-1] == owner:
            return
        if self._places[-1] == self.chars:
            self._owners[-1] = owner
        else:
            self._places.append(self.chars)
            self._owners.append(owner)

    def done(self, text: str) -> Traced:
        wrote: dict[int, list[Span]] = {}
        visits: dict[int, list[list[Span]]] = {}
        for owner, begin, end in zip(self._owners, self._places, [*self._places[1:], len(text)]):
            if owner == _NOBODY or begin == end:
                continue
            if (spans := wrote.get(owner)) is None:
                spans = wrote[owner] = []
                visits.setdefault(self._visits[owner], []).append(spans)
            elif not text[spans[-1][1] : begin].strip():  # a loop that looks ahead may write line ends
                begin = spans.pop()[0]
            spans.append((begin, end))
        numbers = [*self._visits, _NOBODY]  # the last one is nobody's
        marked = [((begin, end), numbers[owner]) for begin, end, owner in self._marked]
        tail = self._places[-1] if self._owners[-1] == _NOBODY else len(text)
        return Traced(text, visits, marked, tail)


@lru_cache(maxsize=64)
def traced_template(template: str) -> TracedTemplate | None:
    """A template with notes; None where this transformers compiles templates elsewhere."""
    try:
        from transformers.utils.chat_template_utils import _compile_jinja_template
    except ImportError:
        return None
    tree = _compile_jinja_template(template).environment.parse(template)
    marks = sum(map(_is_generation, tree.find_all(nodes.CallBlock)))
    notes = _Notes()
    tree = notes.visit(tree)
    tree.body.insert(0, _call(_BEGIN, nodes.Name("messages", "load"), line=1))
    return TracedTemplate(tree, bool(marks) and notes.marks == marks, _compile_jinja_template)


class _Notes(NodeTransformer):
    """Puts notes into the loops of a tree."""

    def __init__(self) -> None:
        self.marks = 0
        self._loops = 0

    def visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> Any:
        if isinstance(node, nodes.CallBlock) and _is_generation(node):
            self.marks += 1
            return [
                _call(_MARK, nodes.Const(True), line=node.lineno),
                node,
                _call(_MARK, nodes.Const(False), line=node.lineno),
            ]
        if isinstance(node, _HELD) or (isinstance(node, nodes.For) and node.recursive):
            return node
        made = self.generic_visit(node)
        if not isinstance(node, nodes.For):
            return made
        self._loops += 1
        number, line = nodes.Const(self._loops), node.lineno
        indexed = [nodes.Name(name, "load") for name in _indexed(node)]
        node.body.insert(0, _call(_NOTE, _loaded(node.target), number, *indexed, line=line))
        return [node, _call(_END, number, line=line)]


def _is_generation(node: nodes.CallBlock) -> bool:
    called = node.call.node
    return isinstance(called, nodes.ExtensionAttribute) and called.name == "_generation_support"


def _indexed(loop: nodes.For) -> list[str]:
    """The names of what a loop indexes by its variable."""
    if not isinstance(loop.target, nodes.Name):
        return []
    variable = loop.target.name
    inside = nodes.Template(loop.body)
    own = {name.name for name in inside.find_all(nodes.Name) if name.ctx == "store"}
    found = (
        item.node.name
        for item in inside.find_all(nodes.Getitem)
        if isinstance(item.node, nodes.Name) and isinstance(item.arg, nodes.Name) and item.arg.name == variable
    )
    return sorted({*found} - own - {variable})


def _loaded(target: nodes.Node) -> nodes.Expr:
    """The variables of a loop as a value."""
    if isinstance(target, nodes.Tuple):
        return nodes.Tuple([*map(_loaded, target.items)], "load")
    assert isinstance(target, nodes.Name)
    return nodes.Name(target.name, "load")


def _call(name: str, value: nodes.Expr, *args: nodes.Expr, line: int) -> nodes.Node:
    """A statement that calls a filter and writes nothing. Under an `if`, the filter need not be there yet when it is compiled."""
    called = nodes.Filter(value, name, [*args], [], None, None)
    return nodes.If(nodes.Const(True), [nodes.ExprStmt(called)], [], []).set_lineno(line)
