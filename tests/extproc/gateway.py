"""A gateway on paper: writes the messages of one stream and reads what it is told, in one notation.

``RH RB RT`` are request headers, body, trailers and ``SH SB ST`` those of the response; ``*`` is
end of stream, ``(n)`` a body's bytes and ``[i:j]`` a slice of the sample body. A play-book is a table
of what happens and what is done then::

    RH POST          ->
    RB*(5)           -> ask
    decide a         -> RH a, RB*(5)

Headers that are set stand as ``name=value`` behind their message, one that is removed as ``-name``,
and a body that takes the place of the one that came as ``RB=(5)``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from picker.extproc._generated.external_processor_pb2 import ProcessingRequest, ProcessingResponse
from picker.extproc.bodies import BodyBudget
from picker.extproc.effects import Ask, Cancel, Done, Ended, FirstToken, NotRewritten, Send
from picker.extproc.messages import DESTINATION
from picker.extproc.session import Session, SessionOptions, Surroundings
from picker.routing.decision import Decision, Refusal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from picker.extproc._generated.base_pb2 import HeaderMap
    from picker.extproc._generated.external_processor_pb2 import CommonResponse
    from picker.extproc.effects import Effect
    from picker.inference.question import Question

MODES = {"none": 0, "streamed": 1, "buffered": 2, "buffered-partial": 3, "duplex": 4, "grpc": 5}
WORDS = {
    f"{side}_{part}": letter + part[0].upper()
    for side, letter in (("request", "R"), ("response", "S"))
    for part in ("headers", "body", "trailers")
}
ADDRESSES = {"a": "10.0.0.1:8000", "b": "10.0.0.2:8000"}
NAMES = {address: name for name, address in ADDRESSES.items()}
CHAT = "/v1/chat/completions"
PLAIN = {Cancel: "cancel", FirstToken: "first token", NotRewritten: "not rewritten"}
BODY = b'{"model":"llama","messages":[{"role":"user","content":"hello"}]}'
ANSWER = b'{"model":"llama-v2","usage":{"prompt_tokens":7,"completion_tokens":3}}'


def resolve(question: Question) -> None:
    """The rules that tests play with: another version of the model, a model for who names none."""
    question.model = {"llama": "llama-v2", "": "default"}.get(question.model, question.model)


class Mark:
    """Stands for routing's ticket."""


def message(
    phase: str,
    *,
    headers: dict[str, str] | None = None,
    body: bytes = b"",
    end: bool = False,
    modes: str = "",
    metadata: Mapping[str, Mapping[str, Any]] | None = None,
) -> bytes:
    """One ProcessingRequest; ``modes`` makes it the first of a stream: ``duplex/none``."""
    request = ProcessingRequest()
    if phase.endswith("headers"):
        part = getattr(request, phase)
        fill(part.headers, headers or {})
        part.end_of_stream = end
    elif phase.endswith("body"):
        getattr(request, phase).body = body
        getattr(request, phase).end_of_stream = end
    else:
        fill(getattr(request, phase).trailers, headers or {"x-trailer": "1"})
    if modes:
        asked, answered = modes.split("/")
        request.protocol_config.request_body_mode = MODES[asked]  # type: ignore[assignment]
        request.protocol_config.response_body_mode = MODES[answered]  # type: ignore[assignment]
    for namespace, fields in (metadata or {}).items():
        request.metadata_context.filter_metadata[namespace].update(dict(fields))
    return request.SerializeToString()


def fill(into: HeaderMap, headers: dict[str, str]) -> None:
    for name, value in headers.items():
        into.headers.add(key=name, raw_value=value.encode("latin-1"))


def response(effect: Send) -> ProcessingResponse:
    """The message that the gateway receives."""
    return ProcessingResponse.FromString(b"".join(effect.segments))


def lines(book: str) -> Iterator[tuple[str, str]]:
    """What happens, and what is to be done then."""
    for line in filter(None, map(str.strip, book.splitlines())):
        event, arrow, wanted = line.partition("->")
        assert arrow, f"a line without an arrow: {line}"
        yield event.strip(), wanted.strip()


def decision(names: str) -> Decision:
    return Decision(tuple(ADDRESSES[name] for name in names.split("+")), Mark())


def refusal(status: str) -> Refusal:
    return Refusal(int(status), "rejected-saturated", "full")


class Play:
    """One session, fed by lines of a play-book."""

    def __init__(
        self,
        modes: str = "",
        options: SessionOptions | None = None,
        budget: int = 1 << 20,
        surroundings: Surroundings | None = None,
    ) -> None:
        self.budget = BodyBudget(budget)
        self.session = Session(options or SessionOptions(), self.budget, surroundings or Surroundings())
        self.asked: list[Ask] = []
        self._modes = modes

    def act(self, book: str) -> None:
        """Do every line and compare what is done then."""
        for event, wanted in lines(book):
            assert self.do(event) == wanted, f"{event} -> {wanted}"

    def do(self, event: str) -> str:
        effects = self._effects(event)
        self.asked += [effect for effect in effects if isinstance(effect, Ask)]
        return ", ".join(map(describe_effect, effects))

    def _effects(self, event: str) -> list[Effect]:
        session = self.session
        word, *rest = event.split()
        match word:
            case "decide":
                return session.decided(decision(rest[0]))
            case "refuse":
                return session.decided(refusal(rest[0]))
            case "expire":
                return session.expired()
            case "close":
                return session.closed(clean=True)
            case "lose":
                return session.closed(clean=False)
            case _:
                modes, self._modes = self._modes, ""
                return session.receive(write(event, modes))


def write(event: str, modes: str = "") -> bytes:
    """The message that an event such as ``RH POST`` stands for."""
    word, *rest = event.split()
    found = re.fullmatch(r"([RS])([HBT])(\*?)(?:\((\d+)\)|\[(\d*):(\d*)\])?", word)
    assert found, f"no such message: {word}"
    side = {"R": "request", "S": "response"}[found[1]]
    extra = dict(item.split("=", 1) for item in rest if "=" in item)
    plain = [item for item in rest if "=" not in item]
    end = bool(found[3])
    if found[2] == "B":
        sample = BODY if side == "request" else ANSWER
        if found[5] is not None:
            body = sample[int(found[5] or 0) : int(found[6] or len(sample))]
        else:
            size = int(found[4] or 0)
            body = (sample * (size // len(sample) + 1))[:size]
        return message(f"{side}_body", body=body, end=end, modes=modes)
    if found[2] == "T":
        return message(f"{side}_trailers", modes=modes)
    if side == "request":
        headers = {":method": plain[0], ":path": plain[1] if len(plain) > 1 else CHAT} | extra
    else:
        headers = {":status": plain[0]} | extra
    return message(f"{side}_headers", headers=headers, end=end, modes=modes)


def describe_effect(effect: Effect) -> str:
    """What is done, in the notation of play-books."""
    match effect:
        case Send():
            return describe(response(effect))
        case Ask():
            flags = [name for name in ("provisional", "simplest") if getattr(effect, name)]
            return " ".join(["ask", *flags])
        case Cancel() | FirstToken() | NotRewritten():
            return PLAIN[type(effect)]
        case Ended(outcome):
            extra = [f"{outcome.status}"] if outcome.status else []
            extra += ["full"] if outcome.back_pressure else []
            extra += [f"retry={outcome.retry_after:g}"] if outcome.retry_after is not None else []
            extra += [f"served={NAMES[outcome.served]}"] if outcome.served else []
            if outcome.usage is not None:
                extra += [f"used={outcome.usage.prompt_tokens}+{outcome.usage.completion_tokens}"]
            return " ".join(["ended", outcome.cause.value, *extra])
        case Done(error):
            return "reset" if error else "done"


def describe(answer: ProcessingResponse) -> str:
    """What the gateway is told, in the notation of play-books."""
    kind = answer.WhichOneof("response")
    match kind:
        case "request_headers" | "response_headers":
            return _headers(WORDS[kind], answer, getattr(answer, kind).response)
        case "request_body" | "response_body":
            return _body(WORDS[kind], answer, getattr(answer, kind).response)
        case "request_trailers" | "response_trailers":
            return WORDS[kind]
        case "immediate_response":
            return f"reply {answer.immediate_response.status.code}"
        case _:
            raise AssertionError(f"an answer that Envoy does not take: {kind}")


def _headers(word: str, answer: ProcessingResponse, common: CommonResponse) -> str:
    words = [word, *_mutation(answer, common)]
    if answer.HasField("mode_override"):
        names = {number: name for name, number in MODES.items()}
        mode = answer.mode_override
        assert mode.response_header_mode == mode.SEND
        words.append(f"modes={names[mode.request_body_mode]}/{names[mode.response_body_mode]}")
    return " ".join(words)


def _body(word: str, answer: ProcessingResponse, common: CommonResponse) -> str:
    kind = common.body_mutation.WhichOneof("mutation")
    mutation = _mutation(answer, common)
    if kind is None:
        return " ".join([word, *mutation])
    if kind == "body":
        return " ".join([f"{word}=({len(common.body_mutation.body)})", *mutation])
    assert not mutation
    streamed = common.body_mutation.streamed_response
    return f"{word}{'*' if streamed.end_of_stream else ''}({len(streamed.body)})"


def _mutation(answer: ProcessingResponse, common: CommonResponse) -> list[str]:
    """What is changed in headers. The destination's header and metadata must say one and the same."""
    changed = {}
    for option in common.header_mutation.set_headers:
        assert option.append_action == option.OVERWRITE_IF_EXISTS_OR_ADD
        assert not option.header.value
        changed[option.header.key] = option.header.raw_value.decode()
    assert len(changed) == len(common.header_mutation.set_headers)
    destination = changed.pop(DESTINATION, "")
    words = []
    if destination:
        assert answer.dynamic_metadata["envoy.lb"][DESTINATION] == destination  # type: ignore[index]
        words.append("+".join(NAMES[address] for address in destination.split(",")))
    else:
        assert not answer.HasField("dynamic_metadata")
    words += [f"{name}={value}" for name, value in changed.items()]
    return words + [f"-{name}" for name in common.header_mutation.remove_headers]
