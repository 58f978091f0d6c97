"""What `cachefw.transport` promises, sentence by sentence, and which tests of the kit hold a transport to it.

A promise is a sentence of a docstring of `Transfer`, `Prepared`, `Channel` or `Transport`. It has tests, or a reason
why no test from outside can see it. The core's own tests compare this list with the docstrings and with the kit, both
ways. ``python -m cachefw.testing.promises`` prints the lists of ``docs/conformance.md``.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import attrs

from cachefw import transport

__all__ = ["BESIDES", "PROMISES", "Promise", "promise_lines", "stated", "test_lines"]


@attrs.frozen
class Promise:
    """One sentence.

    Attributes:
        of: What promises: ``"Transport.register"``.
        says: How the sentence begins.
        tests: Names of the kit's tests that hold a transport to it.
        because: Why there is none.
    """

    of: str
    says: str
    tests: tuple[str, ...] = ()
    because: str = ""


def _promises() -> Iterator[Promise]:
    for of, sentences in _LIST.items():
        for says, what in sentences.items():
            if what.startswith("test_"):
                yield Promise(of, says, tuple(what.split()))
            else:
                yield Promise(of, says, because=what)


def stated() -> Iterator[tuple[str, str]]:
    """Each sentence of the contract: what promises it, and its text."""
    for cls in (transport.Transfer, transport.Prepared, transport.Channel, transport.Transport):
        for of, doc in ((cls.__name__, cls.__doc__), *_members(cls)):
            yield from ((of, sentence) for sentence in _sentences(doc or ""))


def _members(cls: type) -> Iterator[tuple[str, str | None]]:
    for name, member in vars(cls).items():
        if not name.startswith("_") and (callable(member) or isinstance(member, property)):
            yield f"{cls.__name__}.{name}", (member.fget if isinstance(member, property) else member).__doc__


def _sentences(doc: str) -> Iterator[str]:
    """Split where a sentence ends; of a section such as ``Raises:``, each entry is one."""
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(doc)):
        section = re.match(r"(Args|Raises|Returns):\n?", paragraph)
        if section:
            for entry in re.split(r"\n    (?=\S)", "\n" + paragraph[section.end() :]):
                if entry.strip():
                    yield f"{section[1]} {' '.join(entry.split())}"
        else:
            yield from re.split(r"(?<=[.;])\s+(?=[A-Z`])", " ".join(paragraph.split()))


#: Reasons that several sentences share.
_RULE = "a rule for the core, which the core's own tests hold"
_TITLE = "says what it is"
_RUNTIME = "only the transport's own runtime can fail like that; test it with the faults that your runtime can be given"
_THREADS = "test_several_threads_wait test_transfers_during_attach test_four_threads_post"
_COLD = "test_four_threads_use_the_cold_calls"

_LIST: dict[str, dict[str, str]] = {
    "Transfer": {
        "One posted batch.": _TITLE,
        "States: running": "test_settled_never_goes_back",
        "Thread safety": _THREADS,
    },
    "Transfer.settled": {
        "Whether no byte of it": "test_bytes_are_there_when_it_has_settled test_channel_close_settles_what_runs",
        "Cheap, never blocks": "test_settled_never_goes_back",
        "Raises nothing": "test_settled_never_goes_back",
        "Thread safety": _THREADS,
    },
    "Transfer.wait": {
        "Sleep until": "test_wait_without_time test_wait_with_a_timeout",
        "True when settled.": "test_wait_with_a_timeout test_wait_without_time",
        "Does not spin": "test_waiting_holds_up_nobody_else test_what_a_signal_handler_raises_passes_through_a_wait",
        "None waits": "test_wait_without_end",
        "The calling thread": "a liberty, not a duty",
        "Raises nothing": "test_what_a_signal_handler_raises_passes_through_a_wait",
        "Thread safety": "test_several_threads_wait",
    },
    "Transfer.error": {
        "Why it failed": "test_settled_never_goes_back test_every_byte_moves_and_no_other",
        "Asked only": _RULE,
        "Only the one": _RUNTIME,
        "A failure names": _RUNTIME,
        "Raises BusyError": "test_error_before_it_has_settled",
        "Thread safety": _THREADS,
    },
    "Transfer.add_done_callback": {
        "Have": "test_callbacks_are_called_once test_late_callback_is_called_in_this_thread",
        "Raises nothing": "test_callback_that_raises_breaks_nothing",
        "Thread safety": "test_callbacks_are_called_once",
    },
    "Transfer.cancel": {
        "Drop what has": "test_cancelled_transfer_settles",
        "It still has": "test_cancelled_transfer_settles",
        "Raises UnsupportedOperation": "test_capability_not_offered_is_refused",
        "Thread safety": "test_cancelled_transfer_settles",
    },
    "Transfer.path": {"How the bytes went": "test_prepared_once_and_posted_often"},
    "Prepared": {
        "A batch in native form": "test_prepared_once_and_posted_often",
        "Keeps what it needs": "test_prepared_once_and_posted_often",
        "It is dropped": "test_twenty_rounds_leak_nothing",
    },
    "Prepared.nbytes": {
        "Sum of": "test_prepared_once_and_posted_often",
        "Raises nothing": "test_prepared_once_and_posted_often",
        "Thread safety": "test_four_threads_post",
    },
    "Prepared.path": {"How the bytes will": "test_prepared_once_and_posted_often"},
    "Channel": {
        "A transport's way": "test_peer_is_killed test_two_channels_at_once",
        "Thread safety": "test_four_threads_post test_transfers_during_attach",
        "`prepare` and `post`": "test_four_threads_post test_transfers_during_attach",
    },
    "Channel.fences": {
        "Whether `close` stops": "test_closing_stops_the_peer_where_it_says_so",
        "So it is": "says when to offer it",
        "Where the peer reaches": _RULE,
    },
    "Channel.attach": {
        "Learn of memory": "test_memory_ids_are_any_64_bit_numbers test_regions_are_not_mixed_up",
        "Whatever is expensive": "a liberty, not a duty",
        "Raises BrokenError": "test_malformed_description_is_an_error",
        "Raises UnsupportedOperation": "test_capability_not_offered_is_refused",
        "Thread safety": "test_transfers_during_attach",
    },
    "Channel.detach": {
        "Forget memory": "test_detached_memory_is_an_error test_memory_withdrawn_while_the_channel_is_open",
        "No transfer": _RULE,
        "Raises nothing": "test_detach_of_unknown_memory_does_nothing",
        "Thread safety": "test_transfers_during_attach",
    },
    "Channel.prepare": {
        "Turn a batch": "test_scattered_pieces test_unaligned_addresses test_against_model",
        "Raises UnsupportedOperation": "test_capability_not_offered_is_refused",
        "Raises BrokenError": "test_unknown_memory_is_an_error test_detached_memory_is_an_error",
        "Thread safety": "test_four_threads_post",
    },
    "Channel.post": {
        "Start it": "test_post_is_one_native_call_however_many_pieces test_many_are_in_flight",
        "A small batch": "a liberty, not a duty",
        "After a failed post": "test_post_on_a_closed_channel test_unknown_memory_is_an_error",
        "When the transfer settles": "test_every_byte_moves_and_no_other test_bytes_are_there_when_it_has_settled",
        "Raises ClosedError": "test_post_on_a_closed_channel test_transport_close_settles_and_closes_channels",
        "Raises BrokenError": "test_target_closes_first test_peer_is_killed",
        "Thread safety": "test_four_threads_post",
    },
    "Channel.close": {
        "Give back everything.": "test_twenty_rounds_leak_nothing test_channel_opens_again",
        "Running transfers": "test_channel_close_settles_what_runs",
        "Idempotent.": "test_channel_closes_twice",
        "Raises nothing": "test_target_closes_first",
        "Thread safety": "test_several_threads_connect_and_close",
    },
    "Transport": {
        "One way to move": "test_several_are_open_at_once test_factory_makes_a_new_transport_each_time",
        "Thread safety": _COLD,
    },
    "Transport.probe": {
        "Find the runtime": "test_probe_takes_nothing test_probe_answers_the_same_twice",
        "Raises nothing": "test_probe_answers_the_same_twice",
        "Thread safety": _RULE,
    },
    "Transport.open": {
        "Take resources.": "test_another_opens_after_close test_settings_are_not_kept",
        "Args settings": "test_unknown_setting_is_refused",
        "Raises TransportUnavailable": "test_system_refuses_at_each_call",
        "Raises RequestError": "test_unknown_setting_is_refused",
        "Thread safety": _RULE,
    },
    "Transport.close": {
        "Give everything back": "test_transport_close_settles_and_closes_channels "
        "test_allocation_outlives_its_transport test_closing_one_leaves_the_others_open "
        "test_channel_closes_before_its_transport test_close_without_open "
        "test_close_gives_back_what_is_registered",
        "Idempotent.": "test_close_twice",
        "Raises nothing": "test_close_without_open test_close_twice",
        "Thread safety": _RULE,
    },
    "Transport.register": {
        "Make a region usable": "test_register_gives_the_region_back test_register_leaves_the_bytes_alone "
        "test_hundred_regions test_register_again_after_unregister test_memory_is_used_after_it_was_registered_again "
        "test_memory_of_others_here_moves test_memory_of_others_there_moves "
        "test_every_kind_of_memory_moves",
        "Its rules have passed": _RULE,
        "Raises CacheError": "test_system_refuses_at_each_call",
        "Raises ClosedError": "test_closed_transport_registers_nothing "
        "test_transport_that_is_not_open_registers_nothing",
        "Thread safety": "test_eight_threads_register_and_unregister",
    },
    "Transport.unregister": {
        "Give one registration": "test_hundred_regions test_memory_withdrawn_while_the_channel_is_open",
        "No transfer": _RULE,
        "Raises CacheError": _RUNTIME,
        "Thread safety": "test_eight_threads_register_and_unregister",
    },
    "Transport.card": {
        "How peers reach": "test_hundred_regions test_several_are_open_at_once",
        "Raises nothing": "test_system_refuses_at_each_call",
        "Thread safety": _COLD,
    },
    "Transport.describe": {
        "What a peer needs": "test_description_is_small test_two_regions_have_two_descriptions",
        "Raises nothing": "test_system_refuses_at_each_call",
        "Thread safety": _COLD,
    },
    "Transport.connect": {
        "Open the way": "test_channel_opens_again test_two_channels_at_once test_peer_is_killed",
        "Both ends of a link": "test_two_channels_at_once test_peer_is_killed",
        "The peer's own call": "test_channel_opens_again test_several_threads_connect_and_close",
        "Both have returned": _RULE,
        "A transport that is reached": "whether others can reach it, and how it tells them apart, is its own to test",
        "Args card": "test_malformed_card_is_an_error",
        "Args timeout": "takes a peer that is there and silent, which only its transport can be",
        "Args session": "test_two_channels_at_once",
        "Raises BrokenError": "test_malformed_card_is_an_error",
        "Raises UnsupportedOperation": "a peer out of reach takes another machine",
        "Raises ClosedError": "test_closed_transport_registers_nothing",
        "Raises TransferTimeout": "takes a peer that is there and silent, which only its transport can be",
        "Thread safety": "test_several_threads_connect_and_close",
    },
    "Transport.remark": {
        "What every report": "test_remark_is_text",
        "Raises nothing": "test_remark_is_text",
        "Thread safety": _COLD,
    },
    "Transport.identify": {
        "What kind": "test_registered_memory_is_identified",
        "None when": "test_nobodys_memory_has_no_kind",
        "Raises UnsupportedOperation": "test_capability_not_offered_is_refused",
        "Thread safety": _COLD,
    },
    "Transport.allocate": {
        "Make memory": "test_allocations_do_not_overlap test_array_keeps_an_allocation_alive "
        "test_allocation_closes_twice",
        "Args size": "test_allocation_is_aligned",
        "Args kind": "test_allocation_of_another_kind_is_refused",
        "Args alignment": "test_allocation_is_aligned",
        "Args options": "test_unknown_allocation_option_is_refused",
        "Raises UnsupportedOperation": "test_capability_not_offered_is_refused "
        "test_allocation_of_another_kind_is_refused",
        "Raises RequestError": "test_unknown_allocation_option_is_refused",
        "Raises OutOfMemoryError": "test_allocation_that_cannot_be",
        "Thread safety": _COLD,
    },
    "Transport.copy": {
        "Copy within": "test_copy_moves_every_byte_and_no_other test_copy_of_many_pieces "
        "test_copy_and_transfers_do_not_disturb_each_other",
        "Raises UnsupportedOperation": "test_capability_not_offered_is_refused",
        "Raises BrokenError": _RUNTIME,
        "Thread safety": _COLD,
    },
}

#: Every promise of the contract, in its order.
PROMISES: tuple[Promise, ...] = tuple(_promises())
#: Tests that hold a transport to what the contract says elsewhere: of versions, and of capabilities.
BESIDES: dict[str, str] = {
    "test_info_is_of_this_contract": "`TransportInfo.contract`: the version of the contract",
    "test_offered_capability_works": "`Capability`: advertised exactly when it works",
    "test_memory_attached_after_a_transfer": "`Capability.LATE_REGISTRATION`: also after bytes have moved",
}


def promise_lines() -> Iterator[str]:
    """A row of a table for each promise."""
    for of, sentence in stated():
        for promise in PROMISES:
            if promise.of == of and sentence.startswith(promise.says):
                what = " ".join(f"`{name}`" for name in promise.tests) or f"not tested: {promise.because}"
                yield f"| `{of}` | {sentence} | {what} |"
    for name, text in BESIDES.items():
        yield f"| | {text} | `{name}` |"


def test_lines() -> Iterator[str]:
    """A line for each test of the kit."""
    from cachefw.testing import TransportTests

    for name in sorted(name for name in dir(TransportTests) if name.startswith("test_")):
        first = inspect.getdoc(getattr(TransportTests, name)) or ""
        yield f"- `{name}`: {' '.join(first.split())}"


if __name__ == "__main__":
    print("\n".join([*promise_lines(), "", *test_lines()]))
